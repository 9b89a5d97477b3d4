"""The server's side of the engine process that runs plain modules: started when first needed, again after a crash.

It is a process of its own, so that no module can crash the language model or delay its tokens. Knows neither HTTP nor
the repository.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from logging import Logger
from typing import NamedTuple

from nbgen.engine_config import EngineConfig
from nbgen.engine_state import EngineStatus
from nbgen.errors import EngineStopped, Unavailable, from_status
from nbgen.frames import FromEngine, Unreadable
from nbgen.messages import AbortRequest, Tensor, TensorPiece
from nbgen.pieces import cut_tensor
from nbgen.server import silence
from nbgen.server.engine_process import EngineProcess
from nbgen.server.installation import check_unchanged
from nbgen.server.replies import Replies
from nbgen.server.silence import Silence
from nbgen.tensor_messages import InferOutput, InferRequest, LoadModule, ModuleState, ServeTensors, UnloadModule
from nbgen.tensor_spec import ModelSpec

STOP_PATIENCE = 2.0
#: Time limit for loading one module: a longer load may never end.
LOAD_SECONDS = 600.0
#: The process itself refuses a request that waits or runs too long. If it does not for this long more, it hangs: code
#: that computes and keeps Python's lock leaves no thread to refuse it, and is otherwise given its time.
HALT_SECONDS = 60.0


class Result(NamedTuple):
    """A module's answer: the message that completed it, and the pieces that came before, by name."""

    output: InferOutput
    pieces: dict[str, list[memoryview]]


class Loaded(NamedTuple):
    """Where a module is: its device, and the number of the process."""

    device: str
    generation: int


class EndedTogether(EngineStopped):
    """The process ended while it loaded several modules: another module may be the cause."""


class TensorEngine:
    """One process for all modules. `generation` is its number, or the next one's; modules of earlier ones are gone."""

    def __init__(self, config: EngineConfig, log: Logger) -> None:
        self.generation = 1  # 0 means "not loaded"
        self._config = config
        self._log = log
        self._process: EngineProcess | None = None
        self._life: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        #: Lets loads be retried one at a time, so that a module that ends the process fails no other load.
        self._loading = asyncio.Lock()
        self._loads = Replies[ModuleState]()
        self._answers = Replies[Result]()
        self._pieces: dict[str, dict[str, list[memoryview]]] = defaultdict(lambda: defaultdict(list))
        self._silence = Silence()
        #: Why the process was killed, if it was.
        self._cause = ""
        self._closed = False

    @property
    def queue_seconds(self) -> float | None:
        """How long a request may wait for its turn."""
        return self._config.queue_seconds

    @property
    def _patience(self) -> float | None:
        """Seconds after which no answer is expected any more."""
        queue, run = self._config.queue_seconds, self._config.run_seconds
        return None if queue is None or run is None else queue + run + HALT_SECONDS

    async def begin(self) -> None:
        """Start the process, if there is none, for a module that is still being exported."""
        await self._started(exported=True)

    async def load(self, spec: ModelSpec, folder: str) -> Loaded:
        """Load or reload a module, concurrently with others. Raises Unavailable with the reason of a failure.

        A version loaded before then stays. If the process ends during several loads, each is tried again.
        """
        try:
            return await self._load(spec, folder)
        except EndedTogether:
            async with self._loading:
                try:
                    return await self._load(spec, folder)
                except EndedTogether:  # another load began meanwhile
                    return await self._load(spec, folder)

    async def _load(self, spec: ModelSpec, folder: str) -> Loaded:
        process, rid = await self._started(), uuid.uuid4().hex
        generation = self.generation
        process.send(LoadModule(rid=rid, spec=spec, folder=folder))
        try:
            state = await asyncio.wait_for(self._loads.ask(rid), LOAD_SECONDS)
        except TimeoutError:
            raise Unavailable(f"it takes longer than {LOAD_SECONDS:g} seconds") from None
        finally:
            if rid in self._loads:  # after the time limit, or when the caller is cancelled
                self._loads.forget(rid)
                process.send(AbortRequest(rid=rid))
        if state.error is not None:
            raise Unavailable(state.error)
        return Loaded(state.device, generation)

    def unload(self, name: str) -> None:
        """Unload a module."""
        if self._process is not None:
            self._process.send(UnloadModule(name=name))

    async def infer(self, model: str, inputs: list[Tensor], outputs: list[str], timeout_us: int = 0) -> Result:
        """Run the module on the inputs. Raises its error. If the caller is cancelled, the request is aborted."""
        process, rid = await self._started(), uuid.uuid4().hex
        reply = self._answers.ask(rid)
        try:
            async with asyncio.timeout(self._patience):
                whole = [await self._send_pieces(process, rid, tensor) for tensor in inputs]
                process.send(InferRequest(rid=rid, model=model, inputs=whole, outputs=outputs, timeout_us=timeout_us))
                result = await reply
        except TimeoutError:
            process.kill()
            raise EngineStopped(f"the process for modules did not answer for {self._patience:g} seconds") from None
        except asyncio.CancelledError:
            process.send(AbortRequest(rid=rid))
            raise
        finally:
            self._answers.forget(rid)
            self._pieces.pop(rid, None)
        if result.output.error is not None:
            raise from_status(result.output.status, result.output.error or "the module failed")
        return result

    async def close(self, patience: float = 0) -> None:
        """End the process for good; requests that still run after `patience` seconds end with an error."""
        self._closed = True
        if self._answers and patience:
            await asyncio.wait(self._answers.values(), timeout=patience)
        async with self._starting:  # or else a process that is just being started would stay
            if self._process is not None:
                self._process.close()
        if self._life is not None:
            await asyncio.wait_for(asyncio.shield(self._life), STOP_PATIENCE + 4)

    def kill(self) -> None:
        """Kill the process at once."""
        if self._process is not None:
            self._process.kill()

    async def _send_pieces(self, process: EngineProcess, rid: str, tensor: Tensor) -> Tensor:
        """Send a large tensor's pieces, as fast as the process reads them; return its end, for the request itself."""
        pieces, end = cut_tensor(rid, tensor)
        for piece in pieces:
            process.send(piece)
            await process.drain()
        return end

    async def _started(self, *, exported: bool = False) -> EngineProcess:
        async with self._starting:
            if self._closed:
                raise Unavailable("the server is stopping")
            if self._process is None:
                check_unchanged()
                try:
                    self._process = await EngineProcess.spawn(self._log)
                except OSError as error:
                    raise Unavailable(f"the process for modules could not be started: {error.strerror}") from None
                self._cause = ""
                self._process.send(ServeTensors(config=self._config, exported=exported))
                self._life = asyncio.create_task(self._live(self._process))
            return self._process

    async def _live(self, process: EngineProcess) -> None:
        """Handle the process's messages until its channel closes; then fail the calls that it left unanswered."""
        watch = asyncio.create_task(self._watch(process))
        try:
            await process.listen(self._hear)
        except Exception:  # a bug of our own must not leave anybody waiting
            self._log.exception("What the process for modules says cannot be taken in")
            process.kill()
        finally:
            watch.cancel()
        self._process = None
        self.generation += 1
        cause, loads, answers = self._cause, self._loads.taken(), self._answers.taken()
        ended = await process.end(STOP_PATIENCE)  # meanwhile another may begin
        why = cause or f"stopped ({ended})"
        words = "the server is stopping" if self._closed else f"the process for modules {why}"
        loads.lost((EndedTogether if len(loads) > 1 else EngineStopped)(words))
        answers.lost(EngineStopped(words))

    async def _watch(self, process: EngineProcess) -> None:
        """Kill a process that neither says anything nor computes although somebody waits for it."""
        seconds = await self._silence.lasts(lambda: self._allowed(process))
        self._cause = f"did not answer for {seconds} seconds; the next request starts it again"
        self._log.error("The process for modules %s", self._cause)
        process.kill()

    def _allowed(self, process: EngineProcess) -> int | None:
        """How long it may be silent now. While it loads a module, the disk may keep it from answering."""
        if process.computes():
            self._silence.broken()
        if not (self._loads or self._answers):
            return None
        return silence.LOADING_SECONDS if self._loads else silence.SILENT_SECONDS

    def _hear(self, messages: list[FromEngine]) -> None:
        self._silence.broken()
        for message in messages:
            self._receive(message)

    def _receive(self, message: FromEngine) -> None:
        match message:
            case EngineStatus():
                pass  # a sign of life
            case TensorPiece():
                if message.rid in self._answers:
                    self._pieces[message.rid][message.name].append(message.data)
            case InferOutput():
                self._answers.answer(message.rid, Result(message, dict(self._pieces.pop(message.rid, {}))))
            case Unreadable():
                refusal = InferOutput(rid=message.rid, error=message.error, status=message.status)
                self._answers.answer(message.rid, Result(refusal, {}))
                self._loads.answer(message.rid, ModuleState(rid=message.rid, error=message.error))
            case ModuleState():
                self._loads.answer(message.rid, message)
