"""Which adapters are served for each model, and the commands that load them into an engine process.

An engine process's adapters end with it; these records stay. An unloaded adapter's name and folder are kept, and the
first request that asks for it loads it again. Knows nothing of HTTP.
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
    #: By name, the stamp of the adapter's files when its engine loaded it.
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
        """Names and folders of the adapters that the present model's engine has, or will have once it runs."""
        return {name: folder for name, folder in self._present.folders.items() if name in self._present.loaded}

    @property
    def _present(self) -> ModelAdapters:
        return self._by_model.setdefault(self._model, ModelAdapters())

    def select(self, model: str) -> None:
        """Make this model the present one."""
        self._model = model

    def named(self, name: str) -> str | None:
        """The adapter that a request's `model` names, as "adapter" or as "base:adapter"; None if it names none."""
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
        stamp = known.stamps.get(name) if name in known.loaded else None  # else its present files count
        return model_identity.with_adapter(model, folder, model_files.stamp(folder) if stamp is None else stamp)

    # --- what the engine is told

    def at_start(self) -> Iterator[AdapterCommand]:
        """The commands by which a fresh engine loads the loaded adapters."""
        for name in sorted(self._present.loaded):
            yield self._load(name)

    def for_request(self, name: str) -> Iterator[AdapterCommand]:
        """The commands to send before a request that asks for `name`: its load, or none."""
        if name and name not in self._present.loaded and not self._is_coming(name):
            self._present.loaded.add(name)
            yield self._load(name)

    def load(self, name: str, folder: str) -> LoadAdapter:
        """The command that loads a new adapter. Raises InvalidRequest. `done` waits for its answer."""
        if name == self._model:
            raise InvalidRequest(f"{name!r:.200} is the model's own name: give the adapter another", field="lora_name")
        if name in self._present.loaded:
            raise InvalidRequest(f"the adapter {name!r} is already loaded: unload it first", field="lora_name")
        return LoadAdapter(rid=uuid.uuid4().hex, name=name, folder=folder)

    def unload(self, name: str) -> UnloadAdapter:
        """The command that unloads an adapter; later requests load it again. Raises InvalidRequest."""
        if name not in self._present.loaded:
            raise InvalidRequest(f"the adapter {name!r} does not exist, so it cannot be unloaded", field="lora_name")
        self._present.loaded.discard(name)
        return UnloadAdapter(rid=uuid.uuid4().hex, name=name)

    # --- what the engine answers

    async def done(self, command: AdapterCommand) -> None:
        """Return once the engine has done the command, which was just sent. Raises the error that prevented it."""
        self._pending[command.rid] = PendingCommand(command, self._present)
        state = await self._replies.ask(command.rid)
        if state.error is not None:
            raise from_status(state.status, state.error)

    def heard(self, state: AdapterState) -> None:
        """Take in an answer of the engine. An adapter that could not be loaded no longer counts as loaded."""
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
        """The engine has ended: fail all pending commands."""
        self._pending.clear()
        self._replies.lost(EngineStopped("the engine stopped"))

    def _is_coming(self, name: str) -> bool:
        """Whether the engine was told to load it and has not answered: it would refuse to load it twice."""
        pending = [each.command for each in self._pending.values()]
        return any(isinstance(command, LoadAdapter) and command.name == name for command in pending)

    def _load(self, name: str) -> LoadAdapter:
        folder = self._present.folders[name]
        self._present.stamps[name] = model_files.stamp(folder)
        return LoadAdapter(rid=uuid.uuid4().hex, name=name, folder=folder)
