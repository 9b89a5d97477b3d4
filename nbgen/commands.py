"""Commands that the engine executes between two steps, and its answers to them."""

from __future__ import annotations

from typing import Literal

import msgspec

from nbgen.messages import AbortRequest, Struct

#: What a pause does to running sequences: end them, preempt them (they free their blocks), or keep them as they are.
PauseMode = Literal["abort", "retract", "in_place"]
#: The memory that the engine can release: the KV cache with all cached prefixes, or also the model's weights.
MemoryTag = Literal["kv_cache", "weights"]


class FlushCache(Struct, frozen=True):
    """Forget every cached prefix that no sequence uses."""


class PauseGeneration(Struct, frozen=True):
    """Compute nothing until told to continue; new requests are accepted and wait."""

    mode: PauseMode = "abort"


class ContinueGeneration(Struct, frozen=True):
    """Compute again."""


class ReleaseMemory(Struct, frozen=True):
    """End all requests with an error, release memory, and refuse requests until it is resumed.

    `tags` has "kv_cache", alone or with "weights". Answered by one `MemoryState`.
    """

    rid: str
    tags: list[MemoryTag]


class ResumeMemory(Struct, frozen=True):
    """Allocate released memory again, the weights first. Answered by one `MemoryState`, after any `LoadProgress`."""

    rid: str
    tags: list[MemoryTag]


class MemoryState(Struct, frozen=True):
    """The memory that is released now; requests are served if none is. `error`, with `status`, tells of a failure."""

    rid: str
    released: list[MemoryTag] = msgspec.field(default_factory=list)
    error: str | None = None
    status: int = 400


class LoadAdapter(Struct, frozen=True):
    """Read the LoRA adapter in a folder, for requests that come after this. Answered by one `AdapterState`."""

    rid: str
    name: str
    folder: str


class UnloadAdapter(Struct, frozen=True):
    """Unload an adapter once all earlier requests for it have ended. Answered by one `AdapterState` then."""

    rid: str
    name: str


class AdapterState(Struct, frozen=True):
    """The adapter command `rid` is done, or has failed: then `error` says why."""

    rid: str
    name: str
    error: str | None = None
    status: int = 400


#: Commands that load and unload adapters.
AdapterCommand = LoadAdapter | UnloadAdapter
#: Commands that the engine executes between two steps; only those about memory are answered.
Command = AbortRequest | FlushCache | PauseGeneration | ContinueGeneration | ReleaseMemory | ResumeMemory
