"""SGLang's `/load_lora_adapter` and `/unload_lora_adapter`: bodies and answers. Follows SGLang 0.5.23."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.protocols.json_body import parse_object
from nbgen.protocols.sglang import SchemaError

NAME = re.compile(r"[^\x00-\x1f]{1,512}")
MAX_FOLDER = 4096


class Loading(NamedTuple):
    """An adapter's name and folder."""

    name: str
    folder: str


def parse_load(body: bytes) -> Loading:
    """The body of `/load_lora_adapter`. `pinned` is checked, but has no effect: all adapters stay until unloaded."""
    fields = parse_object(body)
    name, folder = _text(fields, "lora_name"), _text(fields, "lora_path")
    if not isinstance(fields.get("pinned"), bool | None):
        raise SchemaError("`pinned` must be true or false", field="pinned")
    if not NAME.fullmatch(name) or not 0 < len(folder) <= MAX_FOLDER or "\0" in folder:
        raise InvalidRequest(
            f"lora_name has 1 to 512 characters, none of them a control character, and lora_path 1 to {MAX_FOLDER}",
            field="lora_name",
        )
    return Loading(name, folder)


def parse_unload(body: bytes) -> str:
    """The name in a body of `/unload_lora_adapter`."""
    return _text(parse_object(body), "lora_name")


def answer(loaded: Mapping[str, str], error: str | None = None) -> bytes:
    """The answer: success or the error, and the loaded adapters with their folders."""
    fields = {
        "rid": None,
        "http_worker_ipc": None,
        "success": error is None,
        "error_message": error,
        "loaded_adapters": dict(loaded),
    }
    return msgspec.json.encode(fields)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise SchemaError(f"`{name}` must be text", field=name)
    return value
