"""LoRA adapters from a notebook: a folder that peft saved, or a peft model that lives in this kernel.

A live model's adapter is saved into a private folder of this kernel, which ends with it; the server reads it at once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from nbgen.errors import InvalidRequest
from nbgen.notebook.client import Client

#: Folders of live models, kept while the kernel lives: an engine that starts again reads them again.
_saved: dict[str, tempfile.TemporaryDirectory[str]] = {}


def load_adapter(client: Any, name: str, adapter: Any) -> dict[str, str]:
    """Have the client's server load an adapter; the names and folders of all that are loaded then."""
    return _nbgen(client).load_adapter(name, _folder(name, adapter))


def unload_adapter(client: Any, name: str) -> dict[str, str]:
    """Have the server let an adapter go, once the last request that uses it has ended."""
    return _nbgen(client).unload_adapter(name)


def _nbgen(client: Any) -> Client:
    if not isinstance(client, Client):
        raise InvalidRequest(f"adapters are loaded into an nbgen server, and {client!r} is none: nbgen.serve()")
    return client


def _folder(name: str, adapter: Any) -> str:
    """The full path: the server runs in another folder."""
    if isinstance(adapter, str | Path):
        return str(Path(adapter).expanduser().resolve())
    if not hasattr(adapter, "peft_config") or not hasattr(adapter, "save_pretrained"):
        raise InvalidRequest(f"an adapter is a folder or a peft model, got {type(adapter).__name__}", field="adapter")
    _saved[name] = saved = tempfile.TemporaryDirectory(prefix="nbgen-adapter-")
    active = getattr(adapter, "active_adapter", "default")
    adapter.save_pretrained(saved.name, selected_adapters=[active])
    return saved.name if active == "default" else str(Path(saved.name) / active)
