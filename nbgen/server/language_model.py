"""The language model as one of the models that Triton's routes serve."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator

from nbgen.errors import InvalidRequest, ModelError, NbgenError, NotFound, Unavailable
from nbgen.protocols import language_model
from nbgen.protocols.inference import Inference, InferenceResponse
from nbgen.protocols.kserve_metadata import ModelState
from nbgen.protocols.language_model import Call, Renderer
from nbgen.protocols.sample import Sample
from nbgen.server.engine_client import EngineClient
from nbgen.server.reader import Reader
from nbgen.server.runs import Run, Runs
from nbgen.server.served_model import ServedModel
from nbgen.server.statistics import Timing
from nbgen.tensor_spec import ModelSpec

_STATES: dict[str, ModelState] = {
    "ready": "READY",
    "stopped": "READY",  # the first request starts it
    "starting": "LOADING",
    "loading": "LOADING",
    "stopping": "UNLOADING",
    "failed": "UNAVAILABLE",
}


class LanguageModel(ServedModel):
    """The engine's model. Its runs live as long as whoever reads the responses."""

    def __init__(self, engine: EngineClient, runs: Runs) -> None:
        super().__init__()
        self._engine = engine
        self._runs = runs
        self._described: tuple[object, ModelSpec] | None = None

    @property
    def spec(self) -> ModelSpec:
        known = self._engine.config.model, self._engine.model
        if self._described is None or self._described[0] != known:
            self._described = known, language_model.interface(language_model.serving_name(known[0]), known[1])
        return self._described[1]

    @property
    def device(self) -> str:
        return self._engine.model.device if self._engine.model else "cpu"

    @property
    def state(self) -> ModelState:
        return "UNAVAILABLE" if self.unloaded else _STATES[self._engine.state]

    @property
    def reason(self) -> str:
        return super().reason or (self._engine.error.message if self._engine.error else "")

    async def load(self) -> None:
        try:
            await self._engine.load()
        except NbgenError as error:
            raise Unavailable(f"failed to load '{self.spec.name}': {error.message}") from None
        self.unloaded = False

    async def unload(self) -> None:
        self.unloaded = True
        await self._engine.stop()

    async def compute(self, inference: Inference) -> AsyncGenerator[tuple[InferenceResponse, Timing]]:
        if self.unloaded:
            raise NotFound(f"Request for unknown model: '{self.spec.name}' has no available versions")
        call = language_model.parse(inference)
        run, reader = Run(call.request), Reader()
        reader.watch(run.watchers)
        try:
            self._start(run)
            await _begun(run, reader, inference.timeout_us)
            async for sample in self._stream(run, reader) if call.stream else self._whole(run, reader):
                yield self._response(call, sample, run), _timing(run)
        finally:
            reader.close()
            self._runs.abort(run.id)

    def _start(self, run: Run) -> None:
        try:
            self._runs.start(run)
        except ModelError as error:
            raise Unavailable(error.message) from None

    async def _whole(self, run: Run, reader: Reader) -> AsyncIterator[list[Sample]]:
        while run.ended is None:
            await reader.wait()
        _raise_error(run)
        yield run.samples

    async def _stream(self, run: Run, reader: Reader) -> AsyncIterator[list[Sample]]:
        """What is new of the one sample, from token to token."""
        read = 0
        while True:
            _raise_error(run)
            over, news = run.ended is not None, Sample()
            if over or any(output.token_ids for output in run.outputs[read:]):
                for output in run.outputs[read:]:
                    news.add(output)
                read = len(run.outputs)
                yield [news]
            if over:
                return
            await reader.wait()

    def _response(self, call: Call, samples: list[Sample], run: Run) -> InferenceResponse:
        model = self._engine.model
        if model is None:
            raise Unavailable("the engine was stopped")
        outputs = Renderer(call, model).outputs(samples)
        spec = self.spec
        return InferenceResponse(
            model_name=spec.name, model_version=spec.version, outputs=outputs, final=run.ended is not None
        )


async def _begun(run: Run, reader: Reader, timeout_us: int) -> None:
    """Wait for the first output where that may only take so long. Raises Unavailable."""
    deadline = time.monotonic() + timeout_us / 1e6
    while timeout_us and not run.outputs and run.ended is None:
        left = deadline - time.monotonic()
        if left <= 0 or not await reader.wait(left):
            raise Unavailable(f"Request timeout expired: it did not start within {timeout_us} microseconds")


def _raise_error(run: Run) -> None:
    if isinstance(run.error, ModelError):
        raise Unavailable(run.error.message)
    if run.error is not None:
        raise run.error
    if run.finish_reason is not None and run.finish_reason.type == "abort":
        raise InvalidRequest("the request was cancelled")


def _timing(run: Run) -> Timing:
    """The queue ends with the first output."""
    now = time.monotonic()
    first = run.first_token or run.ended or now
    infer = (run.ended or now) - first
    return Timing(queue=int((first - run.started) * 1e9), compute_infer=int(infer * 1e9))
