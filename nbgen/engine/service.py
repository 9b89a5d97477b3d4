"""Runs one engine for one server: makes it, reports success or failure, serves until the end. Knows no sockets."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from nbgen.engine.channel import Channel
from nbgen.engine.checkpoint import Report
from nbgen.engine.lean_imports import LeftOut
from nbgen.engine.pulse import Pulse
from nbgen.engine_state import EngineFailed, EngineReady, LoadProgress, ModelInfo
from nbgen.errors import ModelError
from nbgen.frames import ToEngine

log = logging.getLogger(__name__)


class Made(Protocol):
    """Something that serves requests: an `Assembly`, an `EmbeddingModel`."""

    @property
    def model(self) -> ModelInfo: ...

    def close(self) -> None: ...


M = TypeVar("M", bound=Made)


class Running(Protocol):
    """The loop that runs what was made."""

    def run(self, messages: Iterable[ToEngine]) -> None: ...


def by_percents(report: Report) -> Report:
    """A `report` that is called less often: if there is a total, only when another percent is done."""
    last = None

    def step(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = (stage, 100 * done // total) if total else None
        if now is None or now != last:
            report(stage, done, total)
        last = now

    return step


def serve(
    channel: Channel,
    name: str,
    assemble: Callable[[Report], M],
    messages: Iterable[ToEngine],
    loop: Callable[[Channel, M], Running],
) -> None:
    """Run what `assemble` makes. If making it fails, the server is told why. Raises LeftOut before it is made."""
    started = time.monotonic()
    try:
        with Pulse(channel.send, whole=True) as pulse:
            assembly = assemble(by_percents(lambda *step: pulse.say(LoadProgress(*step))))
    except ModelError as error:
        channel.send(EngineFailed(message=error.message))
        return
    except LeftOut:
        raise
    except Exception:  # a model may raise anything; to start again would raise it again
        log.exception("%s cannot be run", name)
        channel.send(EngineFailed(message=f"{name} cannot be run; the server's log says why"))
        return
    channel.send(EngineReady(model=assembly.model, load_seconds=time.monotonic() - started))
    try:
        loop(channel, assembly).run(messages)
    finally:
        assembly.close()
