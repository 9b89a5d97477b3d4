"""The models of a comparison: which server answers for each, and what that server must load first.

Knows clients and names; nothing of settings, grids or widgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from nbgen.errors import InvalidRequest
from nbgen.notebook.client import Client
from nbgen.notebook.models import place
from nbgen.notebook.remote import AnyClient, RemoteClient


class Contender(NamedTuple):
    """A model by its label. `server` is the index of its server among the others, None for the kernel's own server.

    For that one, `load` is the model that it must load first ("" if that does not matter), and `adapter` the LoRA
    adapter on top.
    """

    label: str = ""
    server: int | None = None
    load: str = ""
    adapter: str = ""

    def fields(self) -> dict[str, Any]:
        """The fields that the panel must know, without those at their default."""
        given = {"server": self.server, "load": self.load or None, "adapter": self.adapter or None}
        return {name: value for name, value in given.items() if value is not None}


def contenders(models: Any, own: AnyClient) -> tuple[list[Contender], list[AnyClient]]:
    """The models that a person named, and the clients of the servers that they need besides the kernel's `own`.

    A model is a text (a loaded adapter, or what `nbgen.load` takes), what `nbgen.connect` or `nbgen.serve` returned, or
    either under a label, in a mapping. Raises InvalidRequest for anything else.
    """
    named = models.items() if isinstance(models, Mapping) else [("", model) for model in _several(models)]
    others: list[AnyClient] = []
    found = [_contender(str(label), model, own, others) for label, model in named]
    if {one.load for one in found if one.server is None} == {_name(own)}:  # nothing else needs to be loaded there
        found = [one._replace(load="") for one in found]
    return found, others


def _several(models: Any) -> Sequence[Any]:
    return models if isinstance(models, list | tuple) else [models]


def _contender(label: str, model: Any, own: AnyClient, others: list[AnyClient]) -> Contender:
    if isinstance(model, str | Path):
        return _named(label, str(model), own, others)
    client = getattr(model, "client", model)
    if not isinstance(client, Client | RemoteClient):
        raise InvalidRequest(
            f"a model is a name, a folder, or what nbgen.connect or nbgen.serve returned, got {model!r}", field="model"
        )
    name = _name(client)
    if client.url == own.url and isinstance(own, Client):
        return Contender(label or _short(name), load=name)
    others.append(client)
    return Contender(label or f"{_short(name)} at {urlsplit(client.url).netloc}", server=len(others) - 1)


def _named(label: str, model: str, own: AnyClient, others: list[AnyClient]) -> Contender:
    if isinstance(own, RemoteClient):
        others.append(own.serving(model))
        return Contender(label or model, server=len(others) - 1)
    parents = {str(card.get("id")): card.get("parent") for card in own.models()}
    if base := parents.get(model):
        return Contender(label or model, load=str(base), adapter=model)
    return Contender(label or _short(model), load=str(place(model)))


def _name(client: AnyClient) -> str:
    return str(client.hello()["model"]["name"])


def _short(name: str) -> str:
    """A model's name without the folders or the owner before it."""
    return name.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
