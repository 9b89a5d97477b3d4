"""The base of the models that Triton's routes serve: an interface, a state, statistics, and responses to inferences.

Knows no wire and no engine: a subclass computes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from nbgen.errors import NbgenError
from nbgen.protocols.inference import Cancelled, Inference, InferenceResponse
from nbgen.protocols.kserve_metadata import ModelState
from nbgen.server.statistics import Reason, Statistics, Timing
from nbgen.tensor_spec import ModelSpec

UNLOADED = "unloaded"


class ServedModel:
    """One model. `unloaded` is set while somebody has taken it out of service."""

    def __init__(self) -> None:
        self.statistics = Statistics()
        self.unloaded = False

    @property
    def spec(self) -> ModelSpec:
        raise NotImplementedError

    def check(self) -> None:
        """Raise the error that keeps the model's interface from being read, if there is one."""

    @property
    def device(self) -> str:
        """The device that it runs on, or would run on once loaded."""
        raise NotImplementedError

    @property
    def load_seconds(self) -> float:
        """How long the last load took."""
        raise NotImplementedError

    @property
    def state(self) -> ModelState:
        """The state that the repository index reports."""
        raise NotImplementedError

    @property
    def reason(self) -> str:
        """Why it is not ready, if more is known than the state."""
        return UNLOADED if self.unloaded else ""

    async def load(self) -> None:
        """Put it into service. Raises NbgenError."""
        raise NotImplementedError

    async def unload(self) -> None:
        """Take it out of service, and give its memory back."""
        raise NotImplementedError

    def compute(self, inference: Inference) -> AsyncGenerator[tuple[InferenceResponse, Timing]]:
        """The responses to a checked inference; the timing of the last one counts."""
        raise NotImplementedError

    async def responses(self, inference: Inference) -> AsyncGenerator[InferenceResponse]:
        """As `compute`, counted in the statistics. Closing the iterator ends the inference."""
        started, index, timing = time.monotonic_ns(), 0, Timing()
        self.statistics.pending += 1
        try:
            async with aclosing(self.compute(inference)) as computed:
                async for response, spent in computed:
                    timing = spent
                    self.statistics.responded(index, time.monotonic_ns() - started)
                    index += 1
                    yield response
            self.statistics.succeeded(time.monotonic_ns() - started, timing)
        except (GeneratorExit, asyncio.CancelledError, Cancelled):
            self._count_failure(index, started, "cancel", "CANCELED")
            raise
        except NbgenError as error:
            if error.status >= 500:  # errors below 500 are refusals by validation, and not counted
                self._count_failure(index, started, "fail", "REJECTED" if error.retryable else "BACKEND")
            raise
        finally:
            self.statistics.pending -= 1

    def _count_failure(self, index: int, started: int, outcome: str, reason: Reason) -> None:
        spent = time.monotonic_ns() - started
        self.statistics.failed(spent, reason)
        self.statistics.responded(index, spent, outcome)
