"""What the engine is told between two steps, and what it answers to that."""

from __future__ import annotations

from typing import Literal

import msgspec

from nbgen.messages import AbortRequest, Struct

#: What pausing does to what runs: end it, let it give its blocks back and wait, or leave it as it stands.
PauseMode = Literal["abort", "retract", "in_place"]
#: What the engine can give back of its memory: keys and values with all cached prefixes, or the model as well.
MemoryTag = Literal["kv_cache", "weights"]


class FlushCache(Struct, frozen=True):
    """Forget every cached prefix that no sequence uses."""


class PauseGeneration(Struct, frozen=True):
    """Compute nothing until told to continue; requests are taken in and wait."""

    mode: PauseMode = "abort"


class ContinueGeneration(Struct, frozen=True):
    """Compute again."""


class ReleaseMemory(Struct, frozen=True):
    """End all requests with an error, give memory back, and refuse requests until it is resumed.

    `tags` has "kv_cache", alone or with "weights". Answered by one `MemoryState`.
    """

    rid: str
    tags: list[MemoryTag]


class ResumeMemory(Struct, frozen=True):
    """Take released memory again, the weights first. Answered by one `MemoryState`, after any `LoadProgress`."""

    rid: str
    tags: list[MemoryTag]


class MemoryState(Struct, frozen=True):
    """What is released now; requests are served when nothing is. `error`, of `status`, says why it is not as asked."""

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
    """Let an adapter go once the requests that came before this have ended. Answered by one `AdapterState` then."""

    rid: str
    name: str


class AdapterState(Struct, frozen=True):
    """What `rid` asked of an adapter is done; or not, and `error` says why."""

    rid: str
    name: str
    error: str | None = None
    status: int = 400


#: What names an adapter, or takes its name away.
AdapterCommand = LoadAdapter | UnloadAdapter
#: What the engine is told between two steps; only memory has an answer.
Command = AbortRequest | FlushCache | PauseGeneration | ContinueGeneration | ReleaseMemory | ResumeMemory
