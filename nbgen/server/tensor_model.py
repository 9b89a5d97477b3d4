"""A plain module as one of the models that Triton's routes serve: loaded as the server starts, or by a request.

Knows no wire, and not what the module computes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from nbgen.errors import NbgenError, Unavailable, anew
from nbgen.protocols.inference import Inference, InferenceResponse, OutputTensor
from nbgen.protocols.kserve_checks import batch_size
from nbgen.protocols.kserve_metadata import ModelState
from nbgen.protocols.tensors import Binary
from nbgen.server.repository import Entry
from nbgen.server.served_model import ServedModel
from nbgen.server.statistics import Timing
from nbgen.server.tensor_engine import Result, TensorEngine
from nbgen.tensor_spec import ModelSpec

#: The reason shown for a ready model that the present process, if there is one, has not loaded.
NOT_LOADED = "not loaded: its next request loads it"


class TensorModel(ServedModel):
    """One model of the repository. `awaited` is true until the server's startup has tried to load it."""

    device = "cpu"
    load_seconds = 0.0

    def __init__(self, entry: Entry, engine: TensorEngine) -> None:
        super().__init__()
        self.entry = entry
        self.awaited = False
        self._found = entry
        self._engine = engine
        self._loaded = 0
        self._error = entry.error
        self._loading = asyncio.Lock()
        #: The load that requests wait for.
        self._coming: asyncio.Task[None] | None = None

    @property
    def spec(self) -> ModelSpec:
        return self.entry.spec or ModelSpec(name=self.entry.name, inputs=(), outputs=())

    def check(self) -> None:
        if self.entry.spec is None:
            raise Unavailable(f"failed to load '{self.entry.name}': {self.entry.error}")

    @property
    def state(self) -> ModelState:
        if self.unloaded or self._error:
            return "UNAVAILABLE"
        return "LOADING" if self.is_loading or self._is_due else "READY"

    @property
    def reason(self) -> str:
        return super().reason or self._error or ("" if self.loaded or self.state == "LOADING" else NOT_LOADED)

    @property
    def loaded(self) -> bool:
        """Whether the present process has it; modules of earlier processes are gone."""
        return self._loaded == self._engine.generation

    @property
    def is_loading(self) -> bool:
        """Whether a load is in progress."""
        return self._loading.locked()

    @property
    def _is_due(self) -> bool:
        return self.awaited and not self.loaded

    def configure(self, entry: Entry) -> None:
        """Have the next load use this entry, which is what the folder says now."""
        self._found = entry

    async def load_at_start(self) -> None:
        """Load it, unless somebody has taken it out of service already."""
        try:
            if not self.unloaded:
                await self._ensure_loaded()
        finally:
            self.awaited = False

    async def load(self) -> None:
        async with self._loading:
            self.unloaded = False
            await self._load(self._found)

    async def unload(self) -> None:
        self.unloaded = True
        self.leave()

    def leave(self) -> None:
        """Unload it from the process, which frees its memory."""
        self._loaded = 0
        self._engine.unload(self.entry.name)

    async def compute(self, inference: Inference) -> AsyncGenerator[tuple[InferenceResponse, Timing]]:
        asked = self.spec
        await self._wait_until_loaded()
        spec = self.spec
        if _interface(spec) != _interface(asked):
            raise Unavailable(f"'{spec.name}' was loaded anew with another interface: look at it, and ask again")
        wanted = [output.name for output in inference.outputs] or [output.name for output in spec.outputs]
        inputs = list(inference.inputs.values())
        result = await self._engine.infer(spec.name, inputs, wanted, inference.timeout_us)
        response = InferenceResponse(model_name=spec.name, model_version=spec.version, outputs=_outputs(result))
        yield response, _timing(result, batch_size(inference, spec))

    async def _wait_until_loaded(self) -> None:
        """Wait for the load, as long as a request may wait. The load itself goes on for later requests."""
        if self.loaded and not self.is_loading:
            return
        if self._coming is None or self._coming.done():
            self._coming = asyncio.create_task(self._ensure_loaded())
            self._coming.add_done_callback(lambda coming: coming.cancelled() or coming.exception())
        done, _ = await asyncio.wait({self._coming}, timeout=self._engine.queue_seconds)
        if not done:
            raise Unavailable(f"'{self.entry.name}' is loading: ask again later")
        try:
            self._coming.result()
        except NbgenError as error:
            raise anew(error) from None

    async def _ensure_loaded(self) -> None:
        if self.loaded and not self.is_loading:
            return
        async with self._loading:
            if not self.loaded:
                await self._load(self.entry)

    async def _load(self, entry: Entry) -> None:
        """Load it as the entry says. Raises Unavailable if that fails; a version that is loaded is served on."""
        started = time.monotonic()
        try:
            if entry.spec is None or entry.folder is None:
                raise Unavailable(entry.error)
            self.device, self._loaded = await self._engine.load(entry.spec, str(entry.folder))
        except Unavailable as error:
            if not self.loaded:
                self.entry, self._error = entry, error.message
            raise Unavailable(f"failed to load '{entry.name}': {error.message}") from None
        self.entry, self._error = entry, ""
        self.load_seconds = time.monotonic() - started
        if self.unloaded:  # it was taken out of service during the load
            self.leave()


def _interface(spec: ModelSpec) -> tuple[object, ...]:
    """The parts of the spec that requests are checked against."""
    return spec.inputs, spec.outputs, spec.max_batch_size


def _outputs(result: Result) -> list[OutputTensor]:
    return [
        OutputTensor(
            tensor.name,
            tensor.datatype,
            list(tensor.shape),
            Binary([*result.pieces.get(tensor.name, ()), tensor.data]),
        )
        for tensor in result.output.outputs
    ]


def _timing(result: Result, batch: int) -> Timing:
    output = result.output
    return Timing(
        compute_input=output.input_ns,
        compute_infer=output.infer_ns,
        compute_output=output.output_ns,
        batch=batch,
        executed_batch=output.executed,
        leads=output.leads,
    )
