"""The language model as one of the models that Triton's routes serve.

Knows no wire: tensors come in and go out.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator

from nbgen.errors import InvalidRequest, ModelError, NbgenError, NotFound, Unavailable, anew, renamed
from nbgen.protocols import language_model
from nbgen.protocols.inference import Cancelled, Inference, InferenceResponse
from nbgen.protocols.kserve_metadata import ModelState
from nbgen.protocols.language_model import Call, Renderer, Times
from nbgen.protocols.sample import Sample
from nbgen.protocols.triton_options import NAMES
from nbgen.server.engine_client import EngineClient
from nbgen.server.engine_life import State
from nbgen.server.off_loop import off_loop
from nbgen.server.reader import Reader
from nbgen.server.runs import Run, Runs
from nbgen.server.served_model import ServedModel
from nbgen.server.statistics import Timing
from nbgen.tensor_spec import ModelSpec

#: The repository index's name of each state of the engine.
STATES: dict[State, ModelState] = {
    "ready": "READY",
    "stopped": "READY",  # the first request starts it
    "starting": "LOADING",
    "loading": "LOADING",
    "released": "UNAVAILABLE",
    "stopping": "UNLOADING",
    "failed": "UNAVAILABLE",
}


class LanguageModel(ServedModel):
    """The engine's model. A run is aborted when its reader stops reading the responses."""

    def __init__(self, engine: EngineClient, runs: Runs) -> None:
        super().__init__()
        self._engine = engine
        self._runs = runs
        self._described: tuple[object, ModelSpec] | None = None
        engine.watchers.add(self._note_start)

    def _note_start(self) -> None:
        """Put the model into service again when anybody has the engine start."""
        if self._engine.state in ("starting", "loading", "ready"):
            self.unloaded = False

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
    def load_seconds(self) -> float:
        return self._engine.load_seconds

    @property
    def state(self) -> ModelState:
        return "UNAVAILABLE" if self.unloaded else STATES[self._engine.state]

    @property
    def reason(self) -> str:
        if reason := super().reason:
            return reason
        if self._engine.state == "released":
            return "released"
        return self._engine.error.message if self._engine.error else ""

    async def load(self) -> None:
        self.unloaded = False
        try:
            await self._engine.load()
        except NbgenError as error:
            raise Unavailable(f"failed to load '{self.spec.name}': {error.message}") from None

    async def unload(self) -> None:
        self.unloaded = True
        await self._engine.stop()

    async def compute(self, inference: Inference) -> AsyncGenerator[tuple[InferenceResponse, Timing]]:
        size = sum(len(tensor.data) for tensor in inference.inputs.values())
        calls = await off_loop(size, language_model.parse, inference)
        if self.unloaded:
            raise NotFound(f"Request for unknown model: '{self.spec.name}' has no available versions")
        runs, reader = [Run(call.request) for call in calls], Reader()
        stepwise = calls[0].stream or inference.timeout_us
        for run in runs:
            reader.watch(run.watchers if stepwise else run.end_watchers)
        try:
            for run in runs:
                self._start(run)
            await _begun(runs[0], reader, inference.timeout_us)
            async for samples in self._stream(runs[0], reader) if calls[0].stream else self._whole(runs, reader):
                yield self._response(calls, runs, samples), _timing(runs)
        except InvalidRequest as error:
            raise renamed(error, NAMES) from None
        finally:
            reader.close()
            for run in runs:
                self._runs.abort(run.id)

    def _start(self, run: Run) -> None:
        try:
            self._runs.start(run)
        except ModelError as error:
            raise Unavailable(error.message) from None

    async def _whole(self, runs: list[Run], reader: Reader) -> AsyncIterator[list[list[Sample]]]:
        """Yield the samples of each run once all have ended; the first error is raised for all."""
        while not all(run.ended is not None for run in runs):
            for run in runs:
                _raise_error(run)
            await reader.wait()
        for run in runs:
            _raise_error(run)
        yield [run.samples for run in runs]

    async def _stream(self, run: Run, reader: Reader) -> AsyncIterator[list[list[Sample]]]:
        """Yield the new outputs of the run's one sample."""
        read = 0
        while True:
            _raise_error(run)
            over, news, new = run.ended is not None, Sample(), run.outputs[read:]
            while new and not over and not new[-1].token_ids:  # rows of a token that is still to come
                new.pop()
            if over or new:
                for output in new:
                    news.add(output)
                read += len(new)
                yield [[news]]
            if over:
                return
            await reader.wait()

    def _response(self, calls: list[Call], runs: list[Run], samples: list[list[Sample]]) -> InferenceResponse:
        model, spec = self._engine.model, self.spec
        if model is None:
            raise Unavailable("the engine was stopped")
        answers = [
            Renderer(call, model).outputs(some, _times(run))
            for call, run, some in zip(calls, runs, samples, strict=True)
        ]
        return InferenceResponse(
            model_name=spec.name,
            model_version=spec.version,
            outputs=language_model.joined(answers),
            final=runs[0].ended is not None,
            pieces=max(1, len(samples[0][0].output_ids)) if calls[0].stream else 1,
        )


async def _begun(run: Run, reader: Reader, timeout_us: int) -> None:
    """Wait for the first output, if there is a timeout for it. Raises Unavailable."""
    deadline = time.monotonic() + timeout_us / 1e6
    while timeout_us and not run.outputs and run.ended is None:
        left = deadline - time.monotonic()
        if left <= 0 or not await reader.wait(left):
            raise Unavailable(f"Request timeout expired: it did not start within {timeout_us} microseconds")


def _raise_error(run: Run) -> None:
    if isinstance(run.error, ModelError):
        raise Unavailable(run.error.message)
    if run.error is not None:
        raise anew(run.error)
    if run.finish_reason is not None and run.finish_reason.type == "abort":
        words = run.finish_reason.message or ""
        raise Unavailable(words) if words.startswith("timeout") else Cancelled("the request was cancelled")


def _times(run: Run) -> Times:
    def since_1970(moment: float | None) -> int:
        return int((run.created + moment - run.started) * 1e9) if moment is not None else 0

    return Times(since_1970(run.started), since_1970(run.first_token), since_1970(run.ended or time.monotonic()))


def _timing(runs: list[Run]) -> Timing:
    """Compute time counts from the start of the first run; before that, the runs wait."""
    now = time.monotonic()
    infer = max(run.ended or now for run in runs) - min(run.running_since or run.ended or now for run in runs)
    return Timing(compute_infer=int(infer * 1e9), batch=len(runs), executed_batch=len(runs))
