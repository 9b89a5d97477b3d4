"""Which adapters are served, model by model, and what to tell an engine process of them.

The engine forgets with its process; this does not. A name that was unloaded is remembered with its folder, and loaded
again by the first request that asks for it. Knows nothing of HTTP.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nbgen import model_files
from nbgen.commands import AdapterCommand, AdapterState, LoadAdapter, UnloadAdapter
from nbgen.errors import EngineStopped, InvalidRequest, from_status
from nbgen.model_files import Stamp
from nbgen.server import model_identity
from nbgen.server.replies import Replies


@dataclass
class ModelAdapters:
    """The adapters of one model: folders by name; `loaded` are the names that its engine has."""

    folders: dict[str, str] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    #: Of the files in the folder of each that was loaded, as its engine has read them.
    stamps: dict[str, Stamp] = field(default_factory=dict)


class PendingCommand(NamedTuple):
    """A command that was sent to the engine and not answered yet, and the adapters that it changes."""

    command: AdapterCommand
    adapters: ModelAdapters


class Adapters:
    """The adapters of every model that was served here."""

    def __init__(self, model: str, folders: Mapping[str, str]) -> None:
        """`folders` are those of `model`, named by the server's owner."""
        self._model = model
        self._by_model = {model: ModelAdapters(dict(folders), set(folders))}
        self._pending: dict[str, PendingCommand] = {}
        self._replies = Replies[AdapterState]()

    @property
    def loaded(self) -> dict[str, str]:
        """Names and folders of those that the present model's engine has, or will have once it runs."""
        return {name: folder for name, folder in self._present.folders.items() if name in self._present.loaded}

    @property
    def _present(self) -> ModelAdapters:
        return self._by_model.setdefault(self._model, ModelAdapters())

    def select(self, model: str) -> None:
        """Make this model the present one."""
        self._model = model

    def named(self, name: str) -> str | None:
        """The adapter that a model's name means: the adapter's own, or after the base model's and a colon."""
        known = self._present.folders
        return next((part for part in (name, name.partition(":")[2]) if part in known), None)

    def check(self, name: str, *, field: str = "lora_path") -> None:
        """Raise InvalidRequest for a name, given in `field`, that was never loaded."""
        if name not in self._present.folders:
            loaded = ", ".join(sorted(self.loaded)) or "none"
            raise InvalidRequest(
                f"{field}: the adapter {name!r:.200} has never been loaded; loaded: {loaded}", field=field
            )

    def identities(self, model: str) -> dict[str, str]:
        """The identity of each adapter, by name, on the model of this identity."""
        return {name: self.identity(name, model) for name in tuple(self._present.folders)}

    def identity(self, name: str, model: str) -> str:
        """The identity of one adapter; empty for a name that was never loaded."""
        known = self._present
        if (folder := known.folders.get(name)) is None:
            return ""
        stamp = known.stamps.get(name) if name in known.loaded else None  # or else it is loaded as it is now
        return model_identity.with_adapter(model, folder, model_files.stamp(folder) if stamp is None else stamp)

    # --- what the engine is told

    def at_start(self) -> Iterator[AdapterCommand]:
        """What makes a fresh engine have the loaded ones."""
        for name in sorted(self._present.loaded):
            yield self._load(name)

    def for_request(self, name: str) -> Iterator[AdapterCommand]:
        """What must come before a request that asks for `name`: nothing, or its loading."""
        if name and name not in self._present.loaded:
            self._present.loaded.add(name)
            yield self._load(name)

    def load(self, name: str, folder: str) -> LoadAdapter:
        """The command that loads a new one. Raises InvalidRequest. `heard` says when it is done."""
        if name == self._model:
            raise InvalidRequest(f"{name!r:.200} is the model's own name: give the adapter another", field="lora_name")
        if name in self._present.loaded:
            raise InvalidRequest(f"the adapter {name!r} is already loaded: unload it first", field="lora_name")
        return LoadAdapter(rid=uuid.uuid4().hex, name=name, folder=folder)

    def unload(self, name: str) -> UnloadAdapter:
        """The command that lets one go; requests that come later load it again. Raises InvalidRequest."""
        if name not in self._present.loaded:
            raise InvalidRequest(f"the adapter {name!r} does not exist, so it cannot be unloaded", field="lora_name")
        self._present.loaded.discard(name)
        return UnloadAdapter(rid=uuid.uuid4().hex, name=name)

    # --- what the engine answers

    async def done(self, command: AdapterCommand) -> None:
        """Return once the engine has done the command, which was just sent. Raises what kept it from that."""
        self._pending[command.rid] = PendingCommand(command, self._present)
        state = await self._replies.ask(command.rid)
        if state.error is not None:
            raise from_status(state.status, state.error)

    def heard(self, state: AdapterState) -> None:
        """The engine has answered. One that could not be loaded is not there."""
        pending = self._pending.pop(state.rid, None)
        if pending is None:
            if state.error is not None:
                self._present.loaded.discard(state.name)
            return
        if isinstance(pending.command, LoadAdapter) and state.error is None:
            pending.adapters.folders[state.name] = pending.command.folder
            pending.adapters.stamps[state.name] = model_files.stamp(pending.command.folder)
            pending.adapters.loaded.add(state.name)
        self._replies.answer(state.rid, state)

    def lost(self) -> None:
        """The engine has ended: nothing more is answered."""
        self._pending.clear()
        self._replies.lost(EngineStopped("the engine stopped"))

    def _load(self, name: str) -> LoadAdapter:
        folder = self._present.folders[name]
        self._present.stamps[name] = model_files.stamp(folder)
        return LoadAdapter(rid=uuid.uuid4().hex, name=name, folder=folder)
