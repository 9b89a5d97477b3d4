"""All models that Triton's routes serve, by name and version. Knows no wire."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from logging import Logger
from pathlib import Path

from nbgen.errors import InvalidRequest, NbgenError, NotFound, Unavailable
from nbgen.server import repository
from nbgen.server.repository import Entry
from nbgen.server.served_model import ServedModel
from nbgen.server.tensor_engine import TensorEngine
from nbgen.server.tensor_model import TensorModel

MAX_VERSION = 2**63 - 1
_VERSION = re.compile("[0-9]{1,19}")


class Models:
    """The language model, and beside it the modules of the repository's folder."""

    def __init__(self, language_model: ServedModel, engine: TensorEngine, folder: Path) -> None:
        self.language_model = language_model
        self._engine = engine
        self._folder = folder
        self._modules: dict[str, TensorModel] = {}
        #: The error of a module that cannot be served, since the language model has its name; else empty.
        self._namesake = ""
        self._take(repository.scan(folder))

    def __iter__(self) -> Iterator[ServedModel]:
        yield self.language_model
        yield from self._modules.values()

    def find(self, name: str, version: str = "") -> ServedModel:
        """The model, whether or not it is loaded. Raises NotFound; InvalidRequest for a version that is no number.

        A `version` of "" stands for any version.
        """
        if version and not (_VERSION.fullmatch(version) and int(version) <= MAX_VERSION):
            raise InvalidRequest(f"failed to get model version from specified version string '{version[:30]}'")
        model = next((model for model in self if model.spec.name == name), None)
        if model is None:
            raise NotFound(f"Request for unknown model: '{name[:200]}' is not found")
        if version and int(version) != int(model.spec.version):
            raise NotFound(f"Request for unknown model: '{name[:200]}' version {int(version)} is not found")
        return model

    def serving(self, name: str, version: str = "") -> ServedModel:
        """The model, if it is in service. Raises NotFound; Unavailable for one whose interface cannot be read."""
        model = self.find(name, version)
        if model.unloaded:
            raise NotFound(f"Request for unknown model: '{name[:200]}' has no available versions")
        model.check()
        return model

    def will_load(self) -> None:
        """Announce that modules are loaded soon: until then none is reported as ready."""
        for module in self._modules.values():
            module.awaited = True

    async def load_modules(self, log: Logger) -> None:
        """Load the repository's modules concurrently. Failures go to the log and to each module's `reason`."""
        if self._namesake:
            log.error("%s", self._namesake)
        await asyncio.gather(*(_load_at_start(module, log) for module in self._modules.values()))

    async def load(self, name: str) -> None:
        """Load a model by its configured name, as its folder has it now. Raises InvalidRequest, Unavailable."""
        try:
            entries = await asyncio.get_running_loop().run_in_executor(None, repository.scan, self._folder)
        except OSError as error:
            raise Unavailable(f"the model repository cannot be read: {error.strerror}") from None
        self._take(entries, name)
        try:
            model = self.find(name)
        except NotFound:
            raise InvalidRequest(f"failed to load '{name[:200]}', no such model is configured") from None
        if self._namesake and model is self.language_model and not model.unloaded:
            raise InvalidRequest(self._namesake)
        await model.load()

    async def unload(self, name: str) -> None:
        """Take a model out of service; an unknown model is no error."""
        try:
            model = self.find(name)
        except NotFound:
            return
        await model.unload()

    def _take(self, entries: list[Entry], name: str | None = None) -> None:
        """Update the modules from the folder's entries: all, or `name` alone. Loaded ones outlive their folder."""
        own = self.language_model.spec.name
        twins = any(entry.name == own for entry in entries)
        words = f"failed to load the module '{own}': that is the language model's own name: give the module another"
        self._namesake = words if twins else ""
        for entry in entries:
            if entry.name == own or name not in (None, entry.name):
                continue
            if entry.name in self._modules:
                self._modules[entry.name].configure(entry)
            else:
                self._modules[entry.name] = TensorModel(entry, self._engine)
        for gone in self._modules.keys() - {entry.name for entry in entries}:
            module = self._modules[gone]
            if gone == name or not (module.loaded or module.is_loading):
                self._modules.pop(gone).leave()


async def _load_at_start(module: TensorModel, log: Logger) -> None:
    try:
        await module.load_at_start()
    except NbgenError as error:
        log.error("%s", error.message)
