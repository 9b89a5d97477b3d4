"""Checks a model's folder by the headers of its files, and refuses one that is no model nbgen can read.

Only safetensors are read. The engine uses it, and the server before it gives up the present model for another.
"""

import json
import os
import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from nbgen.engine_config import BUNDLED, BUNDLED_FOLDER
from nbgen.errors import ModelError
from nbgen.safetensors_file import is_whole

OTHERS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.npz")
#: Weights are in one file, or in those that the index names.
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
#: The files that peft saves an adapter in.
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CODE_FILES = ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json")
TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"
#: Files in which tokenizers keep their tokens; `tokenizer_config.json` holds none.
VOCABULARIES = ("tokenizer*.json", "*.model", "*vocab*", "*.spm", "*.tiktoken", "*tekken*", "*.codes", "*.tokenizer")
#: Tokenizers whose tokens are bytes or characters, so that they have no such file.
WITHOUT_VOCABULARY = ("byt5", "canine", "perceiver")

#: The form OWNER/NAME of a hub id; `_is_hub_id` checks further rules.
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(?<=\w)", re.ASCII)
HUB_ID_LENGTH = 96
HUB_PAGE = re.compile(rf"(?:huggingface\.co|hf\.co)/({HUB_ID.pattern})", re.ASCII)
#: Models that once had no owner on the hub, by their old names, which still work there.
OWNED = {"gpt2": "openai-community/gpt2", "distilgpt2": "distilbert/distilgpt2", BUNDLED: BUNDLED}

#: Names, sizes and times of the files in a folder.
Stamp = frozenset[tuple[str, int, int]]
#: Decodes the top level only: a tokenizer may have many megabytes.
_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def model_folder(name: str) -> Path | None:
    """The folder that a model's name stands for, or None for a hub id. Raises ModelError if it is neither."""
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise ModelError(f"the model's name {name!r} is not UTF-8: rename its folder")
    try:
        folder = BUNDLED_FOLDER if name == BUNDLED else Path(name).expanduser()
        if os.path.isdir(folder):  # Path's own method raises for a name that is too long
            return folder
        if os.path.isfile(folder):
            raise ModelError(f"{name!r} is a file: a model is a folder, with its config.json, or a hub id (OWNER/NAME)")
    except (RuntimeError, ValueError):  # ValueError: there is a NUL in it
        raise ModelError(f"{name!r} names the home of a user that there is not") from None
    if not _is_hub_id(name):
        meant = [found[1]] if (found := HUB_PAGE.search(name)) else get_close_matches(name, OWNED, 1)
        words = "".join(f"; did you mean {OWNED.get(known, known)}?" for known in meant)
        raise ModelError(f"there is no folder {name!r}, and it is not a hub id (OWNER/NAME) either{words}")
    return None


def check(name: str) -> Path | None:
    """The folder that a model's name stands for, checked, or None for a hub id. Raises ModelError."""
    if folder := model_folder(name):
        check_files(folder, name)
    return folder


def stamp(name: str) -> Stamp:
    """The stamp of a model's folder, which differs once a file has changed; empty for a hub id."""
    try:
        folder = model_folder(name)
        files = [(path.name, path.stat()) for path in folder.iterdir() if path.is_file()] if folder else []
    except (OSError, ModelError):  # loading reports the error
        return frozenset()
    return frozenset((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)


def _is_hub_id(name: str) -> bool:
    parts_apart = "--" not in name and ".." not in name and not name.endswith(".git")
    return parts_apart and len(name) <= HUB_ID_LENGTH and HUB_ID.fullmatch(name) is not None


def check_files(folder: Path, name: str) -> None:
    """Raise ModelError for a folder that lacks a readable configuration, a tokenizer or complete safetensors."""
    try:
        os.listdir(folder)  # a folder that may not be listed would look empty
        os.stat(os.path.join(folder, os.curdir))  # as would one that may not be entered, since Python 3.14
        _check_files(folder, name)
    except OSError as error:
        raise ModelError(f"{name} cannot be read: {error.strerror}") from None


def _check_files(folder: Path, name: str) -> None:
    _refuse_adapter(folder, name)
    _refuse_other_formats(folder, name)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} has no config.json: it is not a model in transformers' format")
    architecture = read_json(folder / "config.json", name)
    if not isinstance(model_type := architecture.get("model_type"), str):
        raise ModelError(f"config.json of {name} has no model_type: it is not a model in transformers' format")
    if architecture.get("is_encoder_decoder") is True:
        raise two_parts(name, model_type)
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{name} has no weights: no *.safetensors file is there")
    _refuse_no_files(folder, name)
    _check_shards(folder, name)
    if "transformers_weights" not in architecture:
        _check_file_names(folder, name)
    _refuse_code(folder, name)
    _check_type(model_type, name)
    _check_tokenizer(folder, architecture, name)
    _check_template(folder, name)
    _check_weights(folder, name)


def two_parts(name: str, model_type: str) -> ModelError:
    return ModelError(f"{name} is an encoder-decoder model ({model_type}); nbgen runs decoder-only models")


def unknown(name: str, model_type: object) -> ModelError:
    return ModelError(f"{name} is of the type {model_type!r}, which is no causal language model of transformers")


def read_json(path: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of the model's; empty if there is no file. Raises ModelError for a damaged one."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ModelError(f"{path.name} of {name} is damaged: it is not JSON") from None
    except OSError as error:
        raise ModelError(f"{path.name} of {name} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path.name} of {name} is damaged: it holds no JSON object")
    return content


def _refuse_adapter(folder: Path, name: str) -> None:
    weights = {path.name for path in folder.glob("*.safetensors")} - {ADAPTER_WEIGHTS}
    if not (folder / ADAPTER).is_file() or (weights and (folder / "config.json").is_file()):
        return
    base = read_json(folder / ADAPTER, name).get("base_model_name_or_path")
    of = f" ({base[:100]!r})" if isinstance(base, str) and base else ""
    raise ModelError(
        f"{name} is an adapter, not a model: load the model that it was made for{of}, and then the adapter, by "
        "nbgen.load_adapter(NAME, FOLDER), /load_lora_adapter or --adapters NAME=FOLDER"
    )


def _refuse_other_formats(folder: Path, name: str) -> None:
    """Refuse a folder without safetensors: pickles run code when read, and transformers misreads other formats."""
    found = next((path.name for pattern in OTHERS for path in folder.glob(pattern)), None)
    if found is None or any(folder.glob("*.safetensors")):
        return
    raise ModelError(
        f"nbgen reads safetensors only, and {name} holds {found}: convert it by loading it with transformers "
        "where you trust it and calling save_pretrained"
    )


def shards(folder: Path, name: str) -> list[str]:
    """The files that the index names; empty if there is no index. Raises ModelError for a damaged one."""
    found = read_json(folder / INDEX, name).get("weight_map", {})
    if not isinstance(found, dict) or not all(isinstance(shard, str) for shard in found.values()):
        raise ModelError(f"{INDEX} of {name} is damaged: its weight_map does not give each weight a file")
    if outside := [shard for shard in found.values() if os.path.isabs(shard) or ".." in Path(shard).parts]:
        raise ModelError(f"{INDEX} of {name} names {outside[0]!r}, which is not in the model's folder")
    return sorted(set(found.values()))


def _check_file_names(folder: Path, name: str) -> None:
    """Refuse weights under names that transformers does not read."""
    if (folder / WHOLE).is_file() or shards(folder, name):
        return
    first, *more = sorted(path.name for path in folder.glob("*.safetensors"))
    if more:
        raise ModelError(f"{name} has no {INDEX}, which says what is in {first} and {len(more)} more: download it too")
    raise ModelError(f"the weights of {name} are in {first}, and are read from {WHOLE}: rename the file")


def _refuse_no_files(folder: Path, name: str) -> None:
    """Refuse weights that are dangling links, or no files: reading a pipe would block."""
    for path in weight_files(folder):
        if os.path.islink(path) and not os.path.exists(path):
            words = "download it again, or copy the folder with `cp -L`"
            raise ModelError(f"{path.name} of {name} is a link to what is not there: {words}")
        if os.path.exists(path) and not os.path.isfile(path):
            raise ModelError(f"{path.name} of {name} is no file: download it again")


def _check_shards(folder: Path, name: str) -> None:
    missing = [shard for shard in shards(folder, name) if not os.path.isfile(folder / shard)]
    if missing:
        raise ModelError(f"the index of {name} names files that are not there: {', '.join(missing)}")


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads in a checked folder: others may hold the same weights once more."""
    if (whole := folder / WHOLE).is_file():
        return [whole]
    return [folder / shard for shard in shards(folder, folder.name)] or sorted(folder.glob("*.safetensors"))


def _check_weights(folder: Path, name: str) -> None:
    for path in weight_files(folder):
        try:
            whole = is_whole(path)
        except OSError as error:
            raise ModelError(f"{path.name} of {name} cannot be read: {error.strerror}") from None
        if not whole:
            raise ModelError(f"{path.name} of {name} is damaged or was cut off: download it again")


def _check_tokenizer(folder: Path, architecture: dict[str, Any], name: str) -> None:
    if (folder / TOKENIZER).is_file():
        try:
            _object_decoder.decode((folder / TOKENIZER).read_bytes())
        except (ValueError, RecursionError):
            raise ModelError(f"{TOKENIZER} of {name} is damaged: it holds no JSON object") from None
    found = {path for pattern in VOCABULARIES for path in folder.glob(pattern)}
    if found - {folder / "tokenizer_config.json"}:
        return
    said = read_json(folder / "tokenizer_config.json", name).get("tokenizer_class")
    kind = f"{said} {architecture.get('tokenizer_class')} {architecture['model_type']}".lower()
    if not any(each in kind for each in WITHOUT_VOCABULARY):
        raise ModelError(f"{name} has no tokenizer: no file of one, such as tokenizer.json, is there")


def _check_template(folder: Path, name: str) -> None:
    if (folder / TEMPLATE).is_file():
        try:
            (folder / TEMPLATE).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ModelError(f"{TEMPLATE} of {name} is not UTF-8: save it as that") from None


def _check_type(model_type: str, name: str) -> None:
    """Refuse a type that is not in transformers' own table of models, if that can be read."""
    table = next((place / "auto" / "modeling_auto.py" for place in _models_of_transformers()), None)
    if table is not None and table.is_file() and f'"{model_type}"' not in table.read_text(encoding="utf-8"):
        raise unknown(name, model_type)


def _models_of_transformers() -> list[Path]:
    """The folder with transformers' model code; empty if it is not installed."""
    spec = find_spec("transformers")  # found, not imported
    return [Path(place) / "models" for place in (spec and spec.submodule_search_locations) or ()]


def _refuse_code(folder: Path, name: str) -> None:
    for file in CODE_FILES:
        if "auto_map" in (content := read_json(folder / file, name)):
            words = f"{name} needs its own code (auto_map in {file}); nbgen does not run code from a model folder"
            raise ModelError(words + (_without_code(content.get("model_type")) if file == "config.json" else ""))


def _without_code(model_type: object) -> str:
    """Advice for a model with code of its own whose type transformers also implements; else ""."""
    file = Path(f"{model_type}", f"configuration_{model_type}.py")
    if not any((models / file).is_file() for models in _models_of_transformers()):
        return ""
    return f". transformers has {model_type} itself: in a copy of the folder, take auto_map out of config.json"
