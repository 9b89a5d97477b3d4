"""Which adapter a name stands for, for requests that arrive now. The admission thread loads and unloads names.

Unloading a name and loading it again makes another version: a request keeps the version that was there when it came,
however long its admission takes. Does not know how adapters are computed.
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
        #: Adapters of requests that have come and are not admitted yet, by the requests' ids.
        self._claimed: dict[str, Adapter] = {}

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

    def claim(self, rid: str, name: str) -> None:
        """Keep the adapter that has this name now for the request of this id, until `unclaim`."""
        if (adapter := self._named.get(name)) is not None:
            self._claimed[rid] = adapter

    def unclaim(self, rid: str) -> None:
        """Note that the request is admitted, or has ended before."""
        self._claimed.pop(rid, None)

    def is_claimed(self, adapter: Adapter) -> bool:
        """Whether the adapter is kept for any request."""
        return any(each is adapter for each in tuple(self._claimed.values()))

    def find(self, name: str, rid: str) -> Adapter | None:
        """The adapter kept for the request of this id, or else the one of this name; None for "".

        Raises InvalidRequest.
        """
        if not name:
            return None
        if (adapter := self._claimed.get(rid) or self._named.get(name)) is None:
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
