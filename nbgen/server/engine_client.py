"""The messages between the server and its engine: requests and outputs, memory, adapters.

Knows nothing of HTTP or of the dialects; `engine_life` starts and stops the engine.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from logging import Logger

import msgspec

from nbgen import model_files, model_hub
from nbgen.commands import AdapterCommand, AdapterState, Command, MemoryState, MemoryTag, ReleaseMemory, ResumeMemory
from nbgen.engine_config import BUNDLED, EngineConfig
from nbgen.engine_state import EngineFailed, EngineReady, EngineStatus, LoadProgress
from nbgen.errors import EngineStopped, InvalidRequest, ModelError, Unavailable, anew, from_status
from nbgen.frames import FromEngine, Request, Unreadable
from nbgen.messages import AbortRequest, EmbedOutput, FinishReason, GenerateOutput, GenerateRequest, StepOutputs
from nbgen.server import model_identity
from nbgen.server.adapters import Adapters
from nbgen.server.delivery import Deliveries, suited
from nbgen.server.engine_channel import EngineChannel
from nbgen.server.engine_life import EngineLife
from nbgen.server.installation import check_unchanged
from nbgen.server.replies import Listener, Replies
from nbgen.tokenizer_messages import TokenizerAnswer


class EngineClient(EngineLife):
    """Passes requests and outputs. `load_seconds` is the duration of the last model load, `loaded` the time of its end.

    `loadable` are the models to offer for loading: the configured one, the bundled one, and those loaded so far.
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
        """`adapters` are folders by their names; the rest is `EngineLife`'s."""
        super().__init__(config, log, standby=standby, attach=attach)
        self.adapters = Adapters(config.model, adapters or {})
        self._deliveries = Deliveries()
        self._memory_replies = Replies[MemoryState]()
        self.load_seconds = 0.0
        #: In seconds since 1970; 0 before the first load.
        self.loaded = 0.0
        self.loadable = [config.model] if attach else list(dict.fromkeys([config.model, BUNDLED]))
        self._own_quantization = config.quantization
        #: Identity (see `identity`) of the loaded model; empty while none is loaded.
        self._identity = ""

    # --- requests

    def submit(self, request: Request, listener: Listener) -> None:
        """Send the request, or keep it until the engine is ready. Raises the error that keeps the engine down."""
        self._activity.note()
        if self._closed:
            raise Unavailable("the server is stopping")
        if self._stays_down():
            assert self.error is not None
            raise anew(self.error)
        if not self._memory_replies:  # a pending memory command may be resuming it
            self._check_memory()
        if adapter := _adapter(request):
            self.adapters.check(adapter)
        if self.state == "ready" and self._process:
            self._pass(request, self._process)
            self._listeners[request.rid] = listener
        else:
            self._listeners[request.rid] = listener
            self._unsent[request.rid] = request
            self._begin()

    def abort(self, rid: str) -> None:
        """End the request of exactly this id, if it is in flight."""
        request = self._unsent.pop(rid, None) or self._deliveries.cancel(self._process, rid)
        if request is not None:
            listener = self._listeners.pop(rid, None)  # none once the engine is being stopped
            if listener is None:
                return
            reason = FinishReason(type="abort", message="Abort in waiting queue")
            for index in range(request.params.n if isinstance(request, GenerateRequest) else 0):
                listener.add(GenerateOutput(rid=rid, index=index, finish_reason=reason))
        elif rid in self._listeners and self._process:
            self._process.send(AbortRequest(rid=rid))

    def tell(self, command: Command) -> bool:
        """Send a command, which a loaded engine executes before later requests; False if none is loaded."""
        if self.state != "ready" or self._process is None:
            return False
        self._activity.note()
        self._process.send(command)
        return True

    def forget(self, rid: str) -> None:
        """Drop a request that has ended: no more outputs of it are expected."""
        self._activity.note()
        self._listeners.pop(rid, None)
        self._unsent.pop(rid, None)
        self._deliveries.cancel(self._process, rid)
        if self._closed and not self._listeners:
            self._drained.set()

    # --- memory

    async def change_memory(self, command: type[ReleaseMemory | ResumeMemory], tags: list[MemoryTag]) -> None:
        """Have a loaded engine release or resume memory. Raises the error that prevents it."""
        with self._activity.lasting():
            await self._until_not("stopping")
            if self.state in ("starting", "loading") and not self._has_model:
                await self.start()
            if self._has_model and self._process:
                reply = self._memory_replies.ask(rid := uuid.uuid4().hex)
                self._process.send(command(rid=rid, tags=tags))
                if (state := await reply).error:
                    raise from_status(state.status, state.error)

    @property
    def _has_model(self) -> bool:
        """Whether a model is loaded; its memory may be released, or be coming back."""
        return self.model is not None and self.state in ("ready", "released", "loading")

    def _check_memory(self) -> None:
        if self.state == "released":
            raise Unavailable("the engine's memory is released: resume it, or load the model, and ask again")

    # --- adapters

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load the model if need be, then a LoRA adapter for it. Raises the error that prevents it."""
        with self._activity.lasting():
            await self._running()
            await self._adapt(self.adapters.load(name, folder))

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; returns when the last request that uses it has ended."""
        with self._activity.lasting():
            await self._running()
            await self._adapt(self.adapters.unload(name))

    async def _running(self) -> None:
        if self._has_model:
            await self._until_not("loading")
        self._check_memory()
        if self.state != "ready":
            await self.start()

    async def _adapt(self, command: AdapterCommand) -> None:
        assert self._process is not None
        self._process.send(command)
        await self.adapters.done(command)

    # --- life

    async def load(self, model: str | None = None, quantization: str | None = None) -> None:
        """Load `model` (None: the configured one) in place of any other, and again if its files have changed.

        `quantization` is one of EngineConfig's or "none". None means the server's own option or, without a `model`, the
        present quantization. Raises ModelError and keeps the present model if the name is unknown, its folder holds no
        model, or the model is not downloaded and the hub cannot be reached.
        """
        if not self._attached:
            await self._check(model or self.config.model)
        if self._closed:  # requests in flight may still end with the present model
            raise Unavailable("the server is stopping")
        wanted = self._wanted(model, quantization)
        if self._attached and wanted != self.config:
            raise ModelError(
                f"this server serves the live model {self.config.model!r} of a notebook's kernel and no other; "
                "nbgen.serve(name) starts one that loads models"
            )
        changes = wanted != self.config or self._is_outdated()
        if not changes and self._has_model:
            return await self.change_memory(ResumeMemory, ["kv_cache", "weights"])
        stops = self._stops
        if changes or self.state == "failed":
            check_unchanged()  # before the present model is given up
            if changes:
                again = "the model was loaded anew meanwhile, from other files or with another quantization"
                other = f"another model was loaded meanwhile: {wanted.model!r}"
                self._note_change(again if wanted.model == self.config.model else other)
            self.config = wanted
            self.adapters.select(wanted.model)
            self._restarts.forget()
            await self._stop(self._last_change)
        await self.start(stops)
        if self.config != wanted:
            raise Unavailable(f"another model was loaded meanwhile: {self.config.model!r}")

    def identity(self, adapter: str = "") -> str:
        """An id that tells the model (with `adapter`) from others of its name: the loaded one, or the one to be loaded.

        Empty for a live model, whose weights change with each training step.
        """
        if self._attached:
            return ""
        model = self._identity or model_identity.of_model(self.config, model_files.stamp(self.config.model))
        return self.adapters.identity(adapter, model) if adapter else model

    def identities(self) -> dict[str, object]:
        """The identities of the model and of each of its adapters."""
        model = self.identity()
        return {"identity": model, "adapters": self.adapters.identities(model) if model else {}}

    def _is_outdated(self) -> bool:
        """Whether the model's files have changed since the process was told to load them."""
        return self._process is not None and not self._attached and model_files.stamp(self.config.model) != self._stamp

    async def _check(self, name: str) -> None:
        """Raise ModelError for a name without a model. If it is the configured one, the engine has failed with it."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, model_hub.check, name)
        except ModelError as error:
            if name == self.config.model and (self._life is None or self._life.done()):
                self._give_up(self._load_error(error.message))
            raise

    def _wanted(self, model: str | None, quantization: str | None) -> EngineConfig:
        bits = self.config.quantization if model is None else self._own_quantization
        if quantization is not None:
            bits = None if quantization == "none" else quantization
        return msgspec.structs.replace(self.config, model=model or self.config.model, quantization=bits)

    # --- messages

    def _hear(self, process: EngineChannel, messages: list[FromEngine]) -> None:
        outputs: list[GenerateOutput] = []
        for message in messages:
            if isinstance(message, StepOutputs):
                outputs += message.outputs
                continue
            self._tell(outputs)
            outputs = []
            self._receive(process, message)
        self._tell(outputs)

    def _tell(self, outputs: list[GenerateOutput]) -> None:
        """Give each listener its new outputs in one call, even if they come from several steps."""
        news: dict[str, list[GenerateOutput]] = {}
        for output in outputs:
            news.setdefault(output.rid, []).append(output)
        for rid, gained in news.items():
            if (listener := self._listeners.get(rid)) is not None:
                listener.add(*gained)

    def _receive(self, process: EngineChannel, message: FromEngine) -> None:
        match message:
            case TokenizerAnswer() | EmbedOutput():
                if (listener := self._listeners.get(message.rid)) is not None:
                    listener.add(message)
            case Unreadable():
                self._not_read(process, message)
            case EngineStatus():
                self.status = message
            case _ if self.state == "stopping":
                return
            case LoadProgress() if self.state == "ready":
                return  # a live model is being rebuilt: it serves on afterwards
            case LoadProgress():
                self.progress = message
                self._set("loading")
            case EngineReady():
                self._loaded(process, message)
            case MemoryState():
                self.progress = None
                self._memory_replies.answer(message.rid, message)
                self._set("released" if message.released else "ready")
                self._send_waiting(process)
            case AdapterState():
                if message.error is not None:
                    self._log.warning("%s", message.error)
                self.adapters.heard(message)
            case EngineFailed():
                self._restarts.failed()
                self._give_up(self._load_error(message.message))

    def _not_read(self, process: EngineChannel, message: Unreadable) -> None:
        """Fail what waits for the answer: a listener, a memory command or an adapter command."""
        self._log.error("A message about %s could not be read: %s", message.rid, message.error)
        if (listener := self._listeners.get(message.rid)) is not None:
            listener.fail(from_status(message.status, message.error))
            process.send(AbortRequest(rid=message.rid))
        self._memory_replies.answer(message.rid, MemoryState(rid=message.rid, error=message.error))
        self.adapters.heard(AdapterState(rid=message.rid, name="", error=message.error))

    def _loaded(self, process: EngineChannel, message: EngineReady) -> None:
        """Note the loaded model, have its adapters loaded, and send the waiting requests."""
        self.model, self.progress, self.load_seconds = message.model, None, message.load_seconds
        self._identity = model_identity.of_model(self.config, self._stamp)
        self.loaded = time.time()
        if self.config.model not in self.loadable:
            self.loadable.append(self.config.model)
        self._set("ready")
        for command in self.adapters.at_start():
            process.send(command)
        self._send_waiting(process)
        self._standby.prepare()

    def _load_error(self, cause: str) -> ModelError:
        """The error that requests get from now on: why there is no model, and how to get one."""
        if self._attached:
            return ModelError(cause)
        return ModelError(
            f"the model {self.config.model!r} cannot be loaded: {cause}. No model is there now: a later request tries "
            "again, or load another one, in a notebook with `%nbgen load bundled`"
        )

    def _lost(self) -> None:
        self._identity = ""
        self._memory_replies.lost(EngineStopped("the engine stopped"))
        self._deliveries.lost()
        self.adapters.lost()

    def _send_waiting(self, process: EngineChannel) -> None:
        waiting, self._unsent = self._unsent, {}
        for request in waiting.values():
            try:
                self._pass(request, process)
            except InvalidRequest as error:
                self._listeners.pop(request.rid).fail(error)

    def _pass(self, request: Request, process: EngineChannel) -> None:
        """Send a request, and first the load of its adapter if need be. Raises InvalidRequest for unsupported media."""
        assert self.model is not None
        fitting = suited(request, self.model)
        for command in self.adapters.for_request(_adapter(request)):
            process.send(command)
        self._deliveries.send(process, fitting)


def _adapter(request: Request) -> str:
    return request.adapter if isinstance(request, GenerateRequest) else ""
