"""Identities, which tell a model (with an adapter) from others of its name: hashes of its files and of load options.

Of files only names, sizes and times count. Knows nothing of what is loaded.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from nbgen import model_files, model_hub
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError
from nbgen.model_files import Stamp


def of_model(config: EngineConfig, files: Stamp) -> str:
    """A model's identity. `files` are those of its folder; for a hub model the downloaded commit counts instead."""
    try:
        folder = model_files.model_folder(config.model)
    except ModelError:  # loading reports the error
        folder = None
    place = str(folder.resolve()) if folder else f"{config.model}@{model_hub.commit(config.model)}"
    read = (config.dtype, config.kv_cache_dtype, config.quantization, config.sampling_defaults, config.context_length)
    return _digest(place, sorted(files), read)


def with_adapter(model: str, folder: str, files: Stamp) -> str:
    """The identity of a model with an adapter; `model` is that of the model alone."""
    return _digest(model, str(Path(folder).resolve()), sorted(files))


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
