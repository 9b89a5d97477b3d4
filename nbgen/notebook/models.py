"""The models that the server serves or can load, as a list that shows itself as a table."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

from nbgen.errors import InvalidRequest
from nbgen.notebook.table import html_table, markdown_table


class Models(list[dict[str, Any]]):
    """Entries in OpenAI's shape, and the state of the model that the server is configured to serve."""

    def __init__(self, entries: list[dict[str, Any]], model: dict[str, Any]) -> None:
        """`model` is what the server reports of the model that it is configured to serve."""
        served = {entry.get("id") for entry in entries}
        others = [name for name in model.get("loadable", ()) if name not in served]
        super().__init__([*entries, *({"id": name, "object": "model"} for name in others)])
        self._configured, state = str(model.get("name")), str(model.get("state"))
        self._state = "loaded" if state == "ready" else state

    def __repr__(self) -> str:
        return markdown_table(["model", "state"], ([entry["model"], entry["state"]] for entry in self._rows()))

    def _repr_html_(self) -> str:
        return html_table(self._rows())

    def _rows(self) -> list[dict[str, str]]:
        return [{"model": str(entry.get("id", "")), "state": self._state_of(entry)} for entry in self]

    def _state_of(self, entry: dict[str, Any]) -> str:
        """Adapters have a parent: they can be asked, as what is loaded can, and are no models to load."""
        if entry.get("id") == self._configured:
            return self._state
        return "adapter" if entry.get("parent") else ""


def place(model: str | PathLike[str] | None) -> str | None:
    """A model's name as the server needs it: a folder gets its full path, for the server runs in another folder."""
    if model is None:
        return None
    if not isinstance(model, str | PathLike) or not str(model).strip():
        got = type(model).__name__ if model else repr(model)
        raise InvalidRequest(f"a model is a folder, a hub id or 'bundled', got {got}", field="model")
    folder = os.path.expanduser(model)  # Path's own raises for some names, here and below
    return str(Path(folder).resolve()) if os.path.isdir(folder) else str(model)
