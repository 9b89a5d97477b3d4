"""The model repository: a folder with a folder for each model. It is listed; no request's name ever becomes a path.

`NAME/config.toml` (or `config.json`) declares the interface, in the names of Triton's model configuration; the highest
`NAME/VERSION/` holds the module. Knows no torch and no wire.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from nbgen.errors import ModelError
from nbgen.tensor_spec import ELEMENT_BYTES, ModelSpec, TensorSpec

CONFIGS = ("config.toml", "config.json")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Entry(NamedTuple):
    """A model of the repository: its interface and its version's folder, or the error in its configuration."""

    name: str
    spec: ModelSpec | None = None
    folder: Path | None = None
    error: str = ""


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    data_type: str = ""
    datatype: str = ""
    dims: tuple[int, ...] = ()
    reshape: dict[str, tuple[int, ...]] | None = None
    format: str = "FORMAT_NONE"
    optional: bool = False
    label_filename: str = ""


class _Batching(msgspec.Struct):
    max_queue_delay_microseconds: int = 0


class _Config(msgspec.Struct, forbid_unknown_fields=True):
    input: list[_Tensor]
    output: list[_Tensor]
    name: str = ""
    platform: str = ""
    backend: str = "nbgen"
    max_batch_size: int = 0
    dynamic_batching: _Batching = msgspec.field(default_factory=_Batching)


def scan(repository: Path) -> list[Entry]:
    """All models of the folder, the broken ones with their errors. Raises OSError where it cannot be read."""
    try:
        inside = list(repository.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    folders = sorted(path for path in inside if path.is_dir() and NAME.fullmatch(path.name))
    return [entry for folder in folders if (entry := _entry(folder)) is not None]


def _entry(folder: Path) -> Entry | None:
    try:
        config = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
        return None if config is None else _described(folder, config)
    except OSError as error:
        return Entry(folder.name, error=f"the folder of {folder.name} cannot be read: {error.strerror}")


def _described(folder: Path, config: Path) -> Entry:
    try:
        version = _version(folder)
        spec = _spec(folder, _read(config), version.name)
    except (ModelError, msgspec.ValidationError) as error:
        return Entry(folder.name, error=f"{config.name} of {folder.name}: {error}")
    return Entry(folder.name, spec, version)


def _version(folder: Path) -> Path:
    versions = [path for path in folder.iterdir() if path.is_dir() and path.name.isdecimal() and path.name.isascii()]
    if not versions:
        raise ModelError("there is no version: a folder 1 with the module in it")
    return max(versions, key=lambda path: int(path.name))


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"it cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ModelError("it holds no object")
    return content


def _spec(folder: Path, content: dict[str, Any], version: str) -> ModelSpec:
    config = msgspec.convert(content, _Config)
    if config.name not in ("", folder.name):
        raise ModelError(f"it names {config.name!r}, and its folder is {folder.name!r}")
    if not (config.input and config.output) or config.max_batch_size < 0:
        raise ModelError("a model needs an input, an output, and a max_batch_size of 0 or more")
    return ModelSpec(
        name=folder.name,
        version=version,
        inputs=tuple(_tensor(folder, item) for item in config.input),
        outputs=tuple(_tensor(folder, item) for item in config.output),
        max_batch_size=config.max_batch_size,
        max_queue_delay_us=config.dynamic_batching.max_queue_delay_microseconds,
        platform=config.platform,
        backend=config.backend,
    )


def _tensor(folder: Path, item: _Tensor) -> TensorSpec:
    datatype = item.datatype or item.data_type.removeprefix("TYPE_").replace("STRING", "BYTES")
    if datatype not in ELEMENT_BYTES:
        raise ModelError(f"{item.name} is of datatype {datatype or 'nothing'!r}; there are {', '.join(ELEMENT_BYTES)}")
    if any(size < -1 or size == 0 for size in item.dims):
        raise ModelError(f"{item.name} has dims {list(item.dims)}; each must be positive, or -1 for any size")
    return TensorSpec(
        name=item.name,
        datatype=datatype,
        dims=item.dims,
        optional=item.optional,
        reshape=item.reshape.get("shape") if item.reshape else None,
        format=item.format,
        labels=_labels(folder, item.label_filename),
        label_filename=item.label_filename,
    )


def _labels(folder: Path, name: str) -> tuple[str, ...]:
    """One label a line; the file lies in the model's folder."""
    if not name:
        return ()
    if Path(name).name != name or not (folder / name).is_file():
        raise ModelError(f"there is no label file {name!r} beside it")
    try:
        return tuple((folder / name).read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        raise ModelError(f"the label file {name!r} is not UTF-8") from None
