"""LoRA adapters from a notebook: a folder that peft saved, or a peft model that lives in this kernel.

A live model's adapter is saved into a private folder, which is deleted with this kernel; the server reads it at once,
and again if it has to, until another adapter of the same name replaces it.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbgen.errors import InvalidRequest, renamed
from nbgen.notebook import session
from nbgen.notebook.client import Client
from nbgen.notebook.models import place
from nbgen.notebook.private_folder import PrivateFolder
from nbgen.notebook.short_traceback import short_traceback

#: Folders of live models' adapters, by the server's URL, its model and the adapter's name.
_folders: dict[tuple[str, str, str], str] = {}


@functools.cache
def _home() -> str:
    """The folder of live models' adapters, kept while the kernel lives: an engine that restarts reads them again."""
    return str(PrivateFolder("nbgen-adapters-").path)


@short_traceback
def load_adapter(name: str, adapter: Any) -> dict[str, str]:
    """Load a LoRA adapter under the name that requests use: a folder that peft saved, or a peft model of this kernel.

    Returns the names and folders of all loaded adapters. Loads the model first if need be. Raises InvalidRequest for a
    name that is loaded already, and for an adapter that does not fit the model or is no plain LoRA.
    """
    server = _server()
    with _named():
        if isinstance(adapter, str | Path):  # by its full path: the server runs in another folder
            return server.load_adapter(name, str(place(adapter)))
        return _load_live(server, name, adapter)


@short_traceback
def unload_adapter(name: str) -> dict[str, str]:
    """Unload a LoRA adapter, once the last request that uses it has ended. A later request loads it again."""
    with _named():
        return _server().unload_adapter(name)


@contextmanager
def _named() -> Iterator[None]:
    """Around a call: an error about SGLang's `lora_name` or `lora_path` names our own argument instead."""
    try:
        yield
    except InvalidRequest as error:
        raise renamed(error, {"lora_name": "name", "lora_path": "adapter"}) from None


def _server() -> Client:
    client = session.default_client()
    if not isinstance(client, Client):
        raise InvalidRequest(f"adapters are loaded into an nbgen server, and {client!r} is none: nbgen.serve()")
    return client


def _load_live(server: Client, name: str, adapter: Any) -> dict[str, str]:
    """Load a live model's adapter from a new folder; deletes the folder that an adapter of this name had before."""
    if not hasattr(adapter, "peft_config") or not hasattr(adapter, "save_pretrained"):
        raise InvalidRequest(f"an adapter is a folder or a peft model, got {type(adapter).__name__}", field="adapter")
    folder = tempfile.mkdtemp(dir=_home())
    try:
        saved = _save(adapter, folder)
    except BaseException:  # Ctrl-C, too
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        loaded = server.load_adapter(name, saved)
    except InvalidRequest:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    whose = server.url, server.model()["name"], name
    if before := _folders.get(whose):
        shutil.rmtree(before, ignore_errors=True)
    _folders[whose] = folder
    return loaded


def _save(adapter: Any, folder: str) -> str:
    """Save a live model's active adapter. Returns the folder that holds it."""
    active = getattr(adapter, "active_adapter", "default")
    adapter.save_pretrained(folder, selected_adapters=[active])
    return folder if active == "default" else str(Path(folder) / active)
