"""The lifecycle of the server's engine: one process at a time, started when needed, restarted after a crash, stopped.

Requests wait while it starts; each gets outputs or one error. A subclass defines the messages in both directions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from logging import Logger
from typing import Literal

from nbgen import model_files
from nbgen.engine_config import EngineConfig
from nbgen.engine_state import EngineStatus, LoadModel, LoadProgress, ModelInfo
from nbgen.errors import Conflict, EngineStopped, InternalError, ModelError, NbgenError, Unavailable, anew
from nbgen.frames import FromEngine, Request
from nbgen.server import silence
from nbgen.server.activity import Activity
from nbgen.server.attached_engine import Attachment
from nbgen.server.engine_channel import EngineChannel
from nbgen.server.installation import check_unchanged
from nbgen.server.replies import Listener
from nbgen.server.restarts import MAX_RESTARTS, Restarts
from nbgen.server.silence import Silence
from nbgen.server.standby import Standby

State = Literal["stopped", "starting", "loading", "ready", "released", "stopping", "failed"]

STOP_PATIENCE = 5.0
CLOSE_PATIENCE = 1.0
CRASH_PATIENCE = 0.5


class EngineLife:
    """Starts, watches and stops the engine. `watchers` are called whenever `state` or `progress` changes."""

    def __init__(self, config: EngineConfig, log: Logger, *, standby: bool, attach: str) -> None:
        """`standby` keeps a second, empty process ready for the next start.

        `attach` names a socket where an engine with its own model waits; then no process is started.
        """
        self.config = config
        self.state: State = "stopped"
        self.progress: LoadProgress | None = None
        self.model: ModelInfo | None = None
        self.status: EngineStatus | None = None
        self.error: NbgenError | None = None
        #: Seconds without a request after which the engine was stopped as idle; None unless that is why it is stopped.
        self.unasked_seconds: float | None = None
        self.watchers: set[Callable[[], None]] = set()
        self._log = log
        self._listeners: dict[str, Listener] = {}
        self._unsent: dict[str, Request] = {}
        self._process: EngineChannel | None = None
        self._attached = bool(attach)
        self._standby = Attachment(attach, log) if attach else Standby(log, wanted=standby)
        self._life: asyncio.Task[None] | None = None
        self._restarts = Restarts()
        self._cause: str | None = None
        #: Stamp of the model's files, taken when the process was told to load them.
        self._stamp: model_files.Stamp = frozenset()
        self._silence = Silence()
        self._activity = Activity()
        self._closed = False
        self._stops = 0
        #: How often callers have replaced or unloaded the model; `_last_change` says what the last of them did.
        self.changes = 0
        self._last_change = ""
        self._drained = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return self._process.pid if self._process else None

    @property
    def closed(self) -> bool:
        """Whether the server is stopping, so that new requests are refused."""
        return self._closed

    @property
    def healthy(self) -> bool:
        """Whether a request would be served: the engine is ready, or stopped so that the request starts it."""
        return self.state in ("ready", "stopped") and not self._closed

    @property
    def paused(self) -> bool:
        """Whether the engine was told to pause generation."""
        return self.status is not None and self.status.paused

    @property
    def idle_seconds(self) -> float | None:
        """How long the engine has been ready without a request; None while it is not ready, busy or paused."""
        idle = self.state == "ready" and not self._listeners and not self.paused
        return self._activity.idle_seconds if idle else None

    def will_start(self) -> None:
        """Announce a start that comes soon, so that a stopped engine is not reported as ready before it."""
        self._set("starting")

    async def start(self, stops: int | None = None) -> None:
        """Return once the engine is ready; several callers may wait for one start. Raises the error that prevented it.

        If a stop is in progress, the engine starts after it, unless `stop` is called once more meanwhile, or has been
        since it had been called `stops` times.
        """
        stops = self._stops if stops is None else stops
        await self._until_not("stopping")
        if not self._closed and self._stops == stops:
            self._begin()
        await self._until_not("starting", "loading", "stopping")
        if self.state != "ready":
            raise anew(self.error or Unavailable("the engine was stopped while it started"))

    async def stop(self, unasked_seconds: float | None = None) -> None:
        """End the child; return when it is reaped. Requests in flight end with an error.

        `unasked_seconds` is how long there was no request, if that is the reason; None if a caller wants the stop.
        """
        self._stops += 1
        if unasked_seconds is None:
            self._note_change("the model was unloaded meanwhile")
        self.unasked_seconds = unasked_seconds
        closing = asyncio.create_task(self._standby.close())
        try:
            await self._stop()  # awaited first, so that no request comes between a decision to stop and this
        finally:
            await closing

    def check_changes(self, known: int) -> None:
        """Raise Conflict if the model was replaced or unloaded since there were `known` changes."""
        if known != self.changes:
            raise Conflict(self._last_change, field="changes")

    def _note_change(self, words: str) -> None:
        self.changes += 1
        self._last_change = words

    async def _stop(self, why: str = "the engine was stopped; the next request starts it again") -> None:
        if self._life is not None and not self._life.done():
            self._set("stopping")
            self._fail(self._take(), Unavailable("the server is stopping" if self._closed else why))
            if self._process:
                self._process.close()
            await asyncio.shield(self._life)
        else:
            self.error = None
            self._set("stopped")

    async def close(self, patience: float) -> None:
        """Stop for good: refuse new requests at once, and give running ones `patience` seconds to end."""
        self._closed = True
        if self._listeners and self.state == "ready":  # requests that wait for a model would wait in vain
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), patience)
        await self.stop()

    def hurry(self) -> None:
        """Make `close` stop waiting for running requests."""
        self._drained.set()

    def kill(self) -> None:
        """Kill the child and the standby process at once, without the event loop: for an interpreter that exits."""
        self._standby.kill()
        if self._process:
            self._process.kill()

    async def _until_not(self, *states: State) -> None:
        """Return once the state is none of these."""
        changed = asyncio.Event()
        self.watchers.add(changed.set)
        try:
            while self.state in states:
                changed.clear()
                await changed.wait()
        finally:
            self.watchers.discard(changed.set)

    def _begin(self) -> None:
        if self._life is None or self._life.done():
            self._set("starting")
            self._life = asyncio.create_task(self._live())
            self._life.add_done_callback(self._life_ended)

    def _life_ended(self, life: asyncio.Task[None]) -> None:
        if not life.cancelled() and (fault := life.exception()) is not None:
            self._failed(fault)

    def abandon(self, fault: BaseException) -> None:
        """Handle an unexpected exception of a load. An engine that other callers have started keeps running."""
        if self._life is None or self._life.done():
            self._failed(fault)
        else:
            self._log.error("A load failed", exc_info=fault)

    def _failed(self, fault: BaseException) -> None:
        """Handle a bug of our own: kill the child, and end every waiting request with an error."""
        self._log.error("The engine's client failed", exc_info=fault)
        self.kill()
        self._lost()
        self._give_up(InternalError("internal error; the server's log has it"))

    async def _live(self) -> None:
        """Run one process after another, until one is stopped on purpose, fails to load, or crashes once too often."""
        while self.state == "starting":
            self.error = self._cause = None
            self._restarts.begun()
            try:
                check_unchanged()
                self._process = await self._standby.take()
            except Unavailable as error:
                return self._give_up(error)
            except OSError as error:
                self._log.exception("The engine could not be started")
                return self._give_up(Unavailable(f"the engine process could not be started: {error.strerror}"))
            await self._serve(self._process)
            await self._bury(self._process)
        self._life = None
        if self.state == "stopping":
            self._set("stopped")
        if self._unsent:  # requests that came while the last process ended
            self._begin()

    async def _serve(self, process: EngineChannel) -> None:
        """Have the process load the model, and handle its messages until its channel closes."""
        if self.state == "stopping":
            process.close()
        else:
            self._stamp = model_files.stamp(self.config.model)
            process.send(LoadModel(config=self.config))
        watch = asyncio.create_task(self._watch(process))

        def hear(messages: list[FromEngine]) -> None:
            self._silence.broken()
            self._hear(process, messages)

        try:
            await process.listen(hear)
        except Exception:  # a bug of our own must not leave anybody waiting
            self._log.exception("What the engine says cannot be taken in")
            self._cause = "the server could not take in what the engine said"
            process.kill()
        finally:
            watch.cancel()

    async def _bury(self, process: EngineChannel) -> None:
        """Reap the child. After a crash, fail its requests and decide whether to start another one."""
        crashed = self.state not in ("stopping", "failed")
        lost = self._take() if crashed else {}
        self.model = self.status = self.progress = None
        self._lost()
        if crashed:
            self._set("starting")
        ended = await process.end(CRASH_PATIENCE if crashed else CLOSE_PATIENCE if self._closed else STOP_PATIENCE)
        self._process = None
        if crashed:
            error = self._crash_error(self._cause or _cause(ended), process.last_words())
            self._log.error("%s", error.message)
            self._fail(lost, error)
            if not self._restarts.allowed and self.state == "starting":
                self._give_up(error)

    def _crash_error(self, cause: str, words: str) -> EngineStopped:
        self._restarts.crashed()
        if self._restarts.allowed:
            return EngineStopped(f"{cause}; it is starting again")
        said = f": {words}" if words else ""
        return EngineStopped(
            f"{cause}, the {MAX_RESTARTS + 1}th time within 10 minutes, and stays down{said}. "
            "Load the model again to try once more"
        )

    def _stays_down(self) -> bool:
        """Whether a request may not restart the engine: after too many crashes, or soon after a failed load."""
        paused = self._restarts.paused if isinstance(self.error, ModelError) else not self._restarts.allowed
        return self.state == "failed" and paused

    def _give_up(self, error: NbgenError) -> None:
        self.error = error
        self._fail(self._take(), error)
        self._set("failed")

    def _hear(self, process: EngineChannel, messages: list[FromEngine]) -> None:
        """Handle messages from the engine."""
        raise NotImplementedError

    def _lost(self) -> None:
        """Fail everything that waits for this process's answers: none will come."""
        raise NotImplementedError

    async def _watch(self, process: EngineChannel) -> None:
        """Kill an engine that sends nothing although somebody waits for it."""
        seconds = await self._silence.lasts(self._patience)
        self._cause = f"the engine did not answer for {seconds} seconds"
        process.kill()

    def _patience(self) -> int | None:
        if self.state in ("starting", "loading"):
            return silence.LOADING_SECONDS
        awaited = self.state in ("ready", "released") and (self._listeners or self._activity.lasts)
        return silence.SILENT_SECONDS if awaited else None

    def _take(self) -> dict[str, Listener]:
        taken, self._listeners = self._listeners, {}
        self._unsent = {}
        return taken

    @staticmethod
    def _fail(listeners: dict[str, Listener], error: NbgenError) -> None:
        for listener in listeners.values():
            listener.fail(error)

    def _set(self, state: State) -> None:
        self.state = state
        self._activity.note()
        if state not in ("stopping", "stopped"):
            self.unasked_seconds = None
        for watcher in tuple(self.watchers):
            watcher()


def _cause(ended: str) -> str:
    """The likely cause of a child's unexpected end; the system kills processes that take too much memory."""
    causes = {
        "signal 7": "the engine stopped (signal 7), perhaps since the model's files have changed on disk",
        "signal 9": "the engine was killed (signal 9), perhaps for want of memory",
    }
    return causes.get(ended, f"the engine stopped ({ended})")
