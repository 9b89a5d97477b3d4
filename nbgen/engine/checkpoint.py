"""A model's files on disk: found or downloaded, and refused by name before anything reads them.

Only safetensors are read and no code of a model's folder is ever run. Knows nothing of torch.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbgen.engine_config import model_folder
from nbgen.errors import ModelError

DOWNLOADED = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
CODE_FILES = ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json")
OTHERS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.npz")
PAGE_IN_BYTES = 8 * 2**20

Report = Callable[[str, int, int], None]


def find(name: str, report: Report) -> Path:
    """The checked folder of `name`; a hub id is downloaded if it is not there yet. Raises ModelError."""
    return _checked(model_folder(name) or _download(name, report), name)


def refuse_damaged(name: str) -> None:
    """Raises ModelError, in a moment, for a name of no model, and for a folder of this machine that cannot be read."""
    if folder := model_folder(name):
        _checked(folder, name)


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def tensor_bytes(folder: Path) -> dict[str, int]:
    """The size of each tensor, from the heads of the files; a damaged one, which loading tells of, has none."""
    from huggingface_hub import parse_local_safetensors_file_metadata
    from huggingface_hub.errors import SafetensorsParsingError

    sizes: dict[str, int] = {}
    for path in folder.glob("*.safetensors"):
        with suppress(SafetensorsParsingError, AttributeError, IndexError, TypeError):
            tensors = parse_local_safetensors_file_metadata(path).tensors
            sizes |= {name: tensor.data_offsets[1] - tensor.data_offsets[0] for name, tensor in tensors.items()}
    return sizes


def present(name: str) -> Path | None:
    """The folder of `name` if it is on this machine, unchecked; what is wrong is said by whoever loads the model."""
    try:
        return model_folder(name) or _downloaded(name)
    except (ModelError, ValueError):  # no name of a model
        return None


def _downloaded(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def page_in(name: str) -> None:
    """Have the operating system read the weights of a model on this machine ahead of their use."""
    folder = present(name)
    buffer = bytearray(PAGE_IN_BYTES)
    for path in sorted(folder.glob("*.safetensors")) if folder else ():
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _download(name: str, report: Report) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from tqdm.auto import tqdm

    class Progress(tqdm):
        """Counts the files that have arrived."""

        def display(self, *_: Any, **__: Any) -> None:
            report(f"downloading {name}", int(self.n), int(self.total or 0))

    try:
        return Path(snapshot_download(name, allow_patterns=DOWNLOADED, tqdm_class=Progress))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"{name!r} is not in the local cache and could not be downloaded ({type(error).__name__}): "
            "check the name, the network, and that you are logged in if the model is gated"
        ) from error


def _checked(folder: Path, name: str) -> Path:
    """The folder, if it holds a whole model that nbgen reads."""
    _refuse_other_formats(folder, name)
    missing = [f for f in ("config.json",) if not (folder / f).is_file()]
    if missing:
        raise ModelError(f"{name} has no {missing[0]}: it is not a model in transformers' format")
    _refuse_code(folder, name)
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{name} has no weights: no *.safetensors file is there")
    _check_shards(folder, name)
    return folder


def _refuse_code(folder: Path, name: str) -> None:
    for file in CODE_FILES:
        if "auto_map" in read_json(folder / file, name):
            words = f"{name} needs its own code (auto_map in {file}); nbgen does not run code from a model folder"
            raise ModelError(words + (_without_code(folder, name) if file == "config.json" else ""))


def _without_code(folder: Path, name: str) -> str:
    """What to do about a model that transformers has a class of its own for."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_type = read_json(folder / "config.json", name).get("model_type")
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return ""
    return f". transformers has {model_type} itself: in a copy of the folder, take auto_map out of config.json"


def _refuse_other_formats(folder: Path, name: str) -> None:
    """Pickles run code as they are read, and of the others transformers makes something else than what is in them."""
    found = next((path.name for pattern in OTHERS for path in folder.glob(pattern)), None)
    if found is None or any(folder.glob("*.safetensors")):
        return
    raise ModelError(
        f"nbgen reads safetensors only, and {name} holds {found}: convert it by loading it with transformers "
        "where you trust it and calling save_pretrained"
    )


def _check_shards(folder: Path, name: str) -> None:
    index = read_json(folder / "model.safetensors.index.json", name)
    missing = sorted({shard for shard in index.get("weight_map", {}).values() if not (folder / shard).is_file()})
    if missing:
        raise ModelError(f"the index of {name} names files that are not there: {', '.join(missing)}")


def read_json(path: Path, name: str) -> dict[str, Any]:
    """A JSON object of the model's, empty where the file is not there. Raises ModelError for a damaged one."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ModelError(f"{path.name} of {name} is damaged: it is not JSON") from None
    return content if isinstance(content, dict) else {}
