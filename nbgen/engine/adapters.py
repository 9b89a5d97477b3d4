"""Which adapter a name stands for, for requests that arrive now. For the admission thread; any may call `forget`.

Unloading a name and loading it again makes another version: sequences keep the version they were admitted with. Does
not know how adapters are computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nbgen.engine.adapter_folder import Adapter, read_adapter
from nbgen.engine.lora import linear_shapes
from nbgen.errors import InvalidRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Most failed names whose errors are remembered, the latest ones.
MOST_FAULTS = 100


class Adapters:
    """The named adapters of one base model."""

    def __init__(self, model: PreTrainedModel, unsuited: Iterable[str] = ()) -> None:
        """`unsuited` are paths of linear layers that adapters must leave alone."""
        self._shapes = linear_shapes(model)
        self._unsuited = frozenset(unsuited)
        self._named: dict[str, Adapter] = {}
        #: Error messages of names that failed to load.
        self._faults: dict[str, str] = {}

    def load(self, name: str, folder: str) -> Adapter:
        """Read the adapter and give it its name. Raises InvalidRequest."""
        if name in self._named:
            raise InvalidRequest(f"the adapter {name!r} is already loaded: unload it first", field="lora_name")
        try:
            adapter = self._read(name, folder)
        except Exception as error:  # the folder may contain anything
            words = f"the adapter {name!r} cannot be read; the server's log says why"
            self._faults[name] = error.message if isinstance(error, InvalidRequest) else words
            if len(self._faults) > MOST_FAULTS:
                self._faults.pop(next(iter(self._faults)))
            raise
        self._faults.pop(name, None)
        self._named[name] = adapter
        return adapter

    def unload(self, name: str) -> Adapter:
        """Take the adapter's name away. Raises InvalidRequest."""
        if (adapter := self._named.pop(name, None)) is None:
            raise InvalidRequest(f"the adapter {name!r} does not exist, so it cannot be unloaded", field="lora_name")
        return adapter

    def forget(self, adapter: Adapter) -> None:
        """Take away the name of an adapter that cannot be used, unless another adapter has the name by now."""
        if self._named.get(adapter.name) is adapter:
            self._named.pop(adapter.name, None)

    def find(self, name: str) -> Adapter | None:
        """The adapter of this name; None for "". Raises InvalidRequest."""
        if not name:
            return None
        if (adapter := self._named.get(name)) is None:
            if name in self._faults:
                raise InvalidRequest(self._faults[name], field="lora_path")
            known = ", ".join(sorted(self._named)) or "none"
            raise InvalidRequest(
                f"lora_path: the adapter {name!r:.200} has never been loaded here; loaded: {known}", field="lora_path"
            )
        return adapter

    def _read(self, name: str, folder: str) -> Adapter:
        adapter = read_adapter(name, folder, self._shapes)
        if strange := sorted(self._unsuited & adapter.pairs.keys()):
            raise InvalidRequest(
                f"the adapter {name!r} cannot be loaded: it changes {strange[0]!r}"
                + (f" and {len(strange) - 1} more layers" if len(strange) > 1 else "")
                + ", which this model does not give one row for each token, so that requests could not be told apart: "
                "merge it into the model (peft: merge_and_unload) and load that",
                field="lora_path",
            )
        return adapter
