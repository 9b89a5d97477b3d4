"""The server's side of the engine: one process at a time, started when needed, restarted after a crash, stopped.

Requests wait while it starts; each gets outputs or one error. Knows nothing of HTTP or of the dialects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from logging import Logger
from typing import Literal

import msgspec

from nbgen.engine_config import EngineConfig, model_folder
from nbgen.errors import EngineStopped, InternalError, ModelError, NbgenError, Unavailable, from_status
from nbgen.frames import FromEngine
from nbgen.messages import (
    AbortRequest,
    AdapterCommand,
    AdapterState,
    Command,
    EmbedOutput,
    EngineFailed,
    EngineReady,
    EngineStatus,
    FinishReason,
    GenerateOutput,
    GenerateRequest,
    LoadModel,
    LoadProgress,
    MemoryState,
    ModelInfo,
    ReleaseMemory,
    Request,
    ResumeMemory,
    StepOutputs,
    TokenizerAnswer,
)
from nbgen.server.adapters import Adapters
from nbgen.server.attached_engine import Attachment
from nbgen.server.engine_channel import EngineChannel
from nbgen.server.listener import Listener
from nbgen.server.restarts import MAX_RESTARTS, Restarts
from nbgen.server.silence import SILENT_SECONDS, Silence
from nbgen.server.standby import Standby

State = Literal["stopped", "starting", "loading", "ready", "released", "stopping", "failed"]

STOP_PATIENCE = 5.0
CRASH_PATIENCE = 0.5


class EngineClient:
    """Starts, watches and stops the child, and passes requests and outputs.

    `watchers` are called whenever `state` or `progress` changes.
    """

    def __init__(
        self,
        config: EngineConfig,
        log: Logger,
        *,
        standby: bool = False,
        attach: str = "",
        adapters: Mapping[str, str] | None = None,
    ) -> None:
        """`standby` keeps a second, empty process ready for the next start; `adapters` are folders by their names.

        `attach` names a socket where an engine with its own model waits; then no process is started.
        """
        self.config = config
        self.state: State = "stopped"
        self.progress: LoadProgress | None = None
        self.model: ModelInfo | None = None
        self.status: EngineStatus | None = None
        self.error: NbgenError | None = None
        self.adapters = Adapters(config.model, adapters or {})
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
        self._silence = Silence()
        self._closed = False
        self._drained = asyncio.Event()
        self._memory_replies: deque[asyncio.Future[MemoryState]] = deque()

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return self._process.pid if self._process else None

    @property
    def closed(self) -> bool:
        """Whether the server is stopping, so that nothing new is taken."""
        return self._closed

    @property
    def healthy(self) -> bool:
        """Whether a request would be served: ready, or idle and never in trouble."""
        return self.state in ("ready", "stopped") and not self._closed

    # --- requests

    def submit(self, request: Request, listener: Listener) -> None:
        """Send the request, or keep it until the engine is ready. Raises what keeps the engine down."""
        if self._closed:
            raise Unavailable("the server is stopping")
        if self.state == "failed" and not self._may_recover():
            assert self.error is not None
            raise self.error
        if self.state == "released":
            raise Unavailable("the engine's memory is released: resume it, or load the model, and ask again")
        adapter = request.adapter if isinstance(request, GenerateRequest) else ""
        if adapter:
            self.adapters.check(adapter)
        self._listeners[request.rid] = listener
        if self.state == "ready" and self._process:
            for command in self.adapters.for_request(adapter):
                self._process.send(command)
            self._process.send(request)
        else:
            self._unsent[request.rid] = request
            self._begin()

    def abort(self, rid: str) -> None:
        """End the request of exactly this id, if it is in flight."""
        request = self._unsent.pop(rid, None)
        if request is not None:
            listener = self._listeners.pop(rid)
            reason = FinishReason(type="abort", message="Abort in waiting queue")
            for index in range(request.params.n if isinstance(request, GenerateRequest) else 0):
                listener.add(GenerateOutput(rid=rid, index=index, finish_reason=reason))
        elif rid in self._listeners and self._process:
            self._process.send(AbortRequest(rid=rid))

    def tell(self, command: Command) -> bool:
        """Have a loaded engine do this before any request that is submitted later; False where none is loaded."""
        if self.state != "ready" or self._process is None:
            return False
        self._process.send(command)
        return True

    def forget(self, rid: str) -> None:
        """The request has ended: nothing more is expected of it."""
        self._listeners.pop(rid, None)
        self._unsent.pop(rid, None)
        if self._closed and not self._listeners:
            self._drained.set()

    # --- memory

    async def occupy(self, message: ReleaseMemory | ResumeMemory) -> None:
        """Have a loaded engine release or resume memory. Raises what keeps it from that."""
        if self.state in ("starting", "loading"):
            await self.start()
        if self.state in ("ready", "released") and self._process:
            reply: asyncio.Future[MemoryState] = asyncio.get_running_loop().create_future()
            self._memory_replies.append(reply)
            self._process.send(message)
            if (state := await reply).error:
                raise from_status(state.status, state.error)

    # --- adapters

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load the model if need be, and a LoRA adapter for it. Raises what keeps it from that."""
        await self._running()
        await self._adapt(self.adapters.load(name, folder))

    async def unload_adapter(self, name: str) -> None:
        """Let an adapter go; returns when the last request that uses it has ended."""
        await self._running()
        await self._adapt(self.adapters.unload(name))

    async def _running(self) -> None:
        if self.state == "released":
            raise Unavailable("the engine's memory is released: resume it, or load the model, and ask again")
        if self.state != "ready":
            await self.start()

    async def _adapt(self, command: AdapterCommand) -> None:
        assert self._process is not None
        self._process.send(command)
        await self.adapters.done(command)

    # --- life

    async def start(self) -> None:
        """Return once the engine is ready; many may wait for one start. Raises what kept it from it."""
        changed = asyncio.Event()
        self.watchers.add(changed.set)
        try:
            if not self._closed:
                self._begin()
            while self.state in ("starting", "loading", "stopping"):
                changed.clear()
                await changed.wait()
        finally:
            self.watchers.discard(changed.set)
        if self.state != "ready":
            raise self.error or Unavailable("the engine was stopped while it started")

    async def stop(self) -> None:
        """End the child. Returns when it is reaped; requests in flight end with an error."""
        await asyncio.gather(self._stop(), self._standby.close())

    async def _stop(self) -> None:
        if self._life is not None and not self._life.done():
            self._set("stopping")
            words = "the server is stopping" if self._closed else "the engine was stopped"
            self._fail(self._take(), Unavailable(words))
            if self._process:
                self._process.close()
            await asyncio.shield(self._life)
        else:
            self.error = None
            self._set("stopped")

    async def load(self, model: str | None = None) -> None:
        """Make `model` (None: the configured one) the loaded one, replacing any other.

        A name that stands for nothing raises ModelError and leaves the present model alone.
        """
        wanted = model or self.config.model
        if not self._attached:
            model_folder(wanted)
        elif wanted != self.config.model:
            raise ModelError(
                f"this server serves the live model {self.config.model!r} of a notebook's kernel and no other; "
                "nbgen.serve(name) starts one that loads models"
            )
        if wanted == self.config.model and self.state in ("ready", "released"):
            return await self.occupy(ResumeMemory(tags=["kv_cache", "weights"]))
        if wanted != self.config.model or self.state == "failed":
            self.config = msgspec.structs.replace(self.config, model=wanted)
            self.adapters.of(wanted)
            self._restarts.forget()
            await self._stop()
        await self.start()

    async def close(self, patience: float) -> None:
        """Stop for good: refuse what is new at once, and give what runs `patience` seconds to end."""
        self._closed = True
        if self._listeners:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), patience)
        await self.stop()

    def kill(self) -> None:
        """End the child at once, without the event loop: for an interpreter that exits."""
        self._standby.kill()
        if self._process:
            self._process.kill()

    def _begin(self) -> None:
        if self._life is None or self._life.done():
            self._set("starting")
            self._life = asyncio.create_task(self._live())
            self._life.add_done_callback(self._life_ended)

    def _life_ended(self, life: asyncio.Task[None]) -> None:
        """A fault of our own must not leave anybody waiting."""
        if not life.cancelled() and (fault := life.exception()) is not None:
            self._log.error("The engine's client failed", exc_info=fault)
            self.kill()
            self._give_up(InternalError("internal error; the server's log has it"))

    async def _live(self) -> None:
        """Processes one after another, until one is stopped on purpose, cannot load, or crashed too often."""
        while self.state == "starting":
            self.error = self._cause = None
            try:
                self._process = await self._standby.take()
            except OSError as error:
                self._log.exception("The engine could not be started")
                self._give_up(Unavailable(f"the engine process could not be started: {error.strerror}"))
                return
            await self._serve(self._process)
            await self._bury(self._process)
        if self.state == "stopping":
            self._life = None
            self._set("stopped")
            if self._unsent:
                self._begin()

    async def _serve(self, process: EngineChannel) -> None:
        """Load the model and pass on what the engine says, until its channel ends."""
        if self.state == "stopping":
            process.close()
        process.send(LoadModel(config=self.config))
        watch = asyncio.create_task(self._watch(process))
        async for message in process.messages():
            self._silence.broken()
            self._receive(process, message)
        watch.cancel()

    async def _bury(self, process: EngineChannel) -> None:
        """Reap the child; if nobody wanted its end, answer what it left and decide whether to start again."""
        crashed = self.state not in ("stopping", "failed")
        lost = self._take() if crashed else {}
        self.model = self.status = self.progress = None
        while self._memory_replies:
            self._memory_replies.popleft().set_exception(EngineStopped("the engine stopped"))
        self.adapters.lost()
        if crashed:
            self._set("starting")
        ended = await process.end(CRASH_PATIENCE if crashed else STOP_PATIENCE)
        self._process = None
        if crashed:
            error = self._crash_error(self._cause or f"the engine stopped ({ended})", process.last_words())
            self._log.error("%s", error.message)
            self._fail(lost, error)
            if not self._may_recover() and self.state == "starting":
                self._give_up(error)

    def _crash_error(self, cause: str, words: str) -> EngineStopped:
        self._restarts.crashed()
        if self._may_recover():
            return EngineStopped(f"{cause}; it is starting again")
        said = f": {words}" if words else ""
        return EngineStopped(
            f"{cause} more than {MAX_RESTARTS} times within 10 minutes and stays down{said}. "
            "Load the model again to try once more"
        )

    def _may_recover(self) -> bool:
        return self._restarts.allowed and not isinstance(self.error, ModelError)

    def _give_up(self, error: NbgenError) -> None:
        self.error = error
        self._fail(self._take(), error)
        self._set("failed")

    # --- messages

    def _receive(self, process: EngineChannel, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                for output in message.outputs:
                    if (listener := self._listeners.get(output.rid)) is not None:
                        listener.add(output)
            case TokenizerAnswer() | EmbedOutput():
                if (listener := self._listeners.get(message.rid)) is not None:
                    listener.add(message)
            case EngineStatus():
                self.status = message
            case _ if self.state == "stopping":
                return
            case LoadProgress() if self.state == "ready":
                return  # it serves on as soon as it is done: a live model was rebuilt
            case LoadProgress():
                self.progress = message
                self._set("loading")
            case EngineReady():
                self.model, self.progress = message.model, None
                self._set("ready")
                for command in self.adapters.at_start():
                    process.send(command)
                self._send_waiting(process)
                self._standby.prepare()
            case MemoryState():
                self.progress = None
                self._memory_replies.popleft().set_result(message)
                self._set("released" if message.released else "ready")
                self._send_waiting(process)
            case AdapterState():
                if message.error is not None:
                    self._log.warning("%s", message.error)
                self.adapters.heard(message)
            case EngineFailed():
                self._give_up(ModelError(message.message))

    def _send_waiting(self, process: EngineChannel) -> None:
        waiting, self._unsent = self._unsent, {}
        for request in waiting.values():
            adapter = request.adapter if isinstance(request, GenerateRequest) else ""
            for command in self.adapters.for_request(adapter):
                process.send(command)
            process.send(request)

    async def _watch(self, process: EngineChannel) -> None:
        """Kill an engine that says nothing while requests wait for it."""
        await self._silence.lasts(lambda: self.state == "ready" and bool(self._listeners))
        self._cause = f"the engine did not answer for {SILENT_SECONDS} seconds"
        process.kill()

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
        for watcher in tuple(self.watchers):
            watcher()
