"""Loads and unloads adapters: the admission thread reads and names them, the engine installs them between two steps."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from nbgen.commands import AdapterCommand, AdapterState, LoadAdapter
from nbgen.engine import memory
from nbgen.engine.adapter_folder import Adapter
from nbgen.engine.adapters import Adapters
from nbgen.engine.engine import Engine
from nbgen.errors import NbgenError, writable
from nbgen.messages import GenerateRequest

log = logging.getLogger(__name__)


class AdapterChange(NamedTuple):
    """An adapter that was read and is to be installed; or, if it `leaves`, one to remove once no sequence uses it."""

    rid: str
    adapter: Adapter
    leaves: bool


class AdapterChanges:
    """The adapter changes of one engine; `answer` gets the result of each."""

    def __init__(self, adapters: Adapters, engine: Engine, answer: Callable[[AdapterState], object]) -> None:
        self._adapters, self._engine, self._answer = adapters, engine, answer
        self._leaving: list[AdapterChange] = []

    def read(self, command: AdapterCommand) -> AdapterChange | None:
        """Read and name an adapter, or take its name away; returns the change that `apply` is to make in the model."""
        try:
            if isinstance(command, LoadAdapter):
                return AdapterChange(command.rid, self._adapters.load(command.name, command.folder), leaves=False)
            return AdapterChange(command.rid, self._adapters.unload(command.name), leaves=True)
        except NbgenError as error:
            words = writable(error.message)
        except Exception:  # whatever the folder contains must not end the engine
            log.exception("adapter %s", command.name)
            words = "the adapter cannot be read; the server's log says why"
        self._answer(AdapterState(rid=command.rid, name=command.name, error=words))
        return None

    def apply(self, change: AdapterChange) -> None:
        """Install the adapter in the model, or note that it leaves."""
        if change.leaves:
            self._leaving.append(change)
            return
        name = change.adapter.name
        try:
            self._engine.install(change.adapter)
        except Exception as error:  # memory may be full; running requests go on
            log.exception("adapter %s", name)
            self._adapters.forget(change.adapter)
            full = memory.ran_out(error)
            why = "does not fit into the device's memory" if full else "cannot be used; the server's log says why"
            words, status = f"the adapter {name!r} {why}", 503 if full else 400
            self._answer(AdapterState(rid=change.rid, name=name, error=words, status=status))
        else:
            self._answer(AdapterState(rid=change.rid, name=name))

    def claim(self, request: GenerateRequest) -> None:
        """Keep the adapter that the request names, if any, until `unclaim`."""
        if request.adapter:
            self._adapters.claim(request.rid, request.adapter)

    def unclaim(self, rid: str) -> None:
        """Note that the request of this id is about to be added to the engine, or has ended before."""
        self._adapters.unclaim(rid)

    def let_go(self) -> None:
        """Remove the leaving adapters that no sequence uses any more, and no request that is still to be admitted."""
        for change in [change for change in self._leaving if not self._is_used(change.adapter)]:
            self._leaving.remove(change)
            try:
                self._engine.remove(change.adapter)
            except Exception:  # no memory to move the others; its remains go with the next change
                log.exception("adapter %s could not be taken out", change.adapter.name)
            self._answer(AdapterState(rid=change.rid, name=change.adapter.name))

    def _is_used(self, adapter: Adapter) -> bool:
        return self._adapters.is_claimed(adapter) or self._engine.uses(adapter)
