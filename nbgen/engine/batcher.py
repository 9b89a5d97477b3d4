"""Dynamic batching: requests of equal shapes that wait at the same time are computed together. One thread a module.

Follows Triton's dynamic batcher: up to the model's batch size, for at most its queue delay. A second thread answers
late requests, since the first may hang in the module. Does not look into tensors.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol

from nbgen.errors import NbgenError
from nbgen.messages import Tensor
from nbgen.tensor_messages import InferOutput, InferRequest
from nbgen.tensor_spec import ModelSpec

log = logging.getLogger(__name__)

MAX_WAITING = 4096
#: Interval at which late requests are looked for.
LOOK_SECONDS = 0.25


class Computed(NamedTuple):
    """The outputs of each request of a batch, and where the nanoseconds went."""

    outputs: list[list[Tensor]]
    input_ns: int
    infer_ns: int
    output_ns: int


class Module(Protocol):
    """Computes batches."""

    spec: ModelSpec

    def compute(self, requests: list[InferRequest]) -> Computed: ...

    def usable(self) -> bool:
        """Whether another batch may be computed after one that failed."""

    def release(self) -> None:
        """Free its memory."""


class Waiting(NamedTuple):
    """A request that `arrived` at this time, in monotonic nanoseconds; `entries` is its share of a batch."""

    request: InferRequest
    arrived: int
    entries: int

    def late(self, seconds: float | None) -> str:
        """An error message if it has waited longer than its own timeout, or than `seconds`; else empty."""
        waited, timeout = time.monotonic_ns() - self.arrived, self.request.timeout_us * 1000
        if 0 < timeout < waited:
            return f"Request timeout expired: it waited over {self.request.timeout_us} microseconds"
        if seconds is not None and waited > seconds * 1e9:
            return f"the request waited {seconds:g} seconds for its turn, as long as one may: try again later"
        return ""

    @property
    def likeness(self) -> Hashable:
        """Requests whose likeness is equal can be computed together."""
        inputs = tuple((tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in self.request.inputs)
        return inputs, tuple(self.request.outputs)


class Batcher:
    """Runs one module; `send` gets an output for every request, whatever happens to it.

    `lost` is called once a failure has left the module unusable. No request waits longer than `queue_seconds` for its
    turn, nor computes longer than `run_seconds`; None: no limit.
    """

    def __init__(
        self,
        module: Module,
        send: Callable[[InferOutput], None],
        lost: Callable[[], None] = lambda: None,
        *,
        queue_seconds: float | None = None,
        run_seconds: float | None = None,
    ) -> None:
        self._module = module
        self._send = send
        self._lost = lost
        self._most = max(1, module.spec.max_batch_size)
        self._delay_ns = module.spec.max_queue_delay_us * 1000
        self._queue_seconds, self._run_seconds = queue_seconds, run_seconds
        #: Ids of the requests in order of arrival; some may be answered already, and are no longer in `_waiting`.
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._held: str | None = None
        self._waiting: dict[str, Waiting] = {}
        #: The batch being computed, and when that began, in monotonic seconds.
        self._running: tuple[float, list[Waiting]] = 0.0, []
        self._closed = False
        self._over = threading.Event()
        #: Held while a request, or the None that ends the queue, is put into it.
        self._entrance = threading.Lock()
        for target, name in ((self._run, "module"), (self._watch, "late")):
            threading.Thread(target=target, name=f"{name}-{module.spec.name}", daemon=True).start()

    def add(self, request: InferRequest) -> None:
        """Let the request wait for its turn."""
        item = Waiting(request, time.monotonic_ns(), self._entries(request))
        with self._entrance:
            full = self._queue.qsize() >= MAX_WAITING
            if not (full or self._closed):
                self._waiting[request.rid] = item
                self._queue.put(request.rid)
                return
        why = f"the queue of {request.model} is full ({MAX_WAITING} waiting)"
        self._fail(item, why if full else f"{request.model} was unloaded", 503)

    @property
    def over(self) -> bool:
        """Whether every request that it accepted is answered."""
        return self._over.is_set()

    def drop(self, rid: str) -> None:
        """Forget a request that has not begun."""
        self._refuse(rid, "the request was cancelled", 400)

    def retire(self) -> None:
        """Accept no more requests, and end once all that wait are answered."""
        with self._entrance:
            self._closed = True
            self._queue.put(None)

    def close(self) -> None:
        """Refuse all that wait, and end once the current batch is done."""
        self.retire()
        for rid in list(self._waiting):
            self._refuse(rid, f"{self._module.spec.name} was unloaded", 503)

    def _entries(self, request: InferRequest) -> int:
        """The size of the first dimension; 1 if the module does not batch, as no dimension counts entries then."""
        shape = request.inputs[0].shape if self._module.spec.max_batch_size and request.inputs else ()
        return shape[0] if shape else 1

    def _run(self) -> None:
        while not (self._closed and self._queue.empty() and self._held is None):
            if (first := self._next(None)) is not None:
                batch = self._collect(first)
                if wanted := [item for item in batch if self._waiting.pop(item.request.rid, None)]:
                    self._execute(wanted)
        self._over.set()
        self._module.release()

    def _watch(self) -> None:
        """Answer late requests while a batch computes, perhaps for ever."""
        while not self._over.wait(LOOK_SECONDS):
            for item in list(self._waiting.values()):
                self._is_late(item)
            began, batch = self._running
            if batch and self._run_seconds is not None and time.monotonic() - began > self._run_seconds:
                self._running = 0.0, []
                for item in batch:
                    self._fail(item, f"timeout: it ran {self._run_seconds:g} seconds, as long as a request may", 503)

    def _is_late(self, item: Waiting) -> bool:
        """Whether a request has waited too long; if so, it is refused."""
        if why := item.late(self._queue_seconds):
            self._refuse(item.request.rid, why, 503)
        return bool(why)

    def _refuse(self, rid: str, error: str, status: int) -> None:
        """Answer a request that has not begun; one that has begun or is answered is not in `_waiting`."""
        if (item := self._waiting.pop(rid, None)) is not None:
            self._fail(item, error, status)

    def _next(self, timeout: float | None) -> Waiting | None:
        """The next request to compute; None after `timeout`, or when the batcher retires."""
        while (rid := self._take(timeout)) is not None:
            if (item := self._waiting.get(rid)) is not None and not self._is_late(item):
                return item
        return None

    def _take(self, timeout: float | None) -> str | None:
        rid, self._held = self._held, None
        try:
            return rid or self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def _collect(self, first: Waiting) -> list[Waiting]:
        """The requests to compute together with `first`: as many as fit and arrive in time."""
        batch, entries = [first], first.entries
        deadline = first.arrived + self._delay_ns
        while entries < self._most:
            left = max(0, deadline - time.monotonic_ns()) / 1e9
            if (item := self._next(left)) is None:
                break
            if item.likeness != first.likeness or entries + item.entries > self._most:
                self._held = item.request.rid
                break
            batch.append(item)
            entries += item.entries
        return batch

    def _execute(self, batch: list[Waiting]) -> None:
        self._running = time.monotonic(), batch
        computed = self._computed(batch)
        (_, unanswered), self._running = self._running, (0.0, [])
        if computed is None:
            for item in unanswered if len(batch) > 1 else ():  # only now: the exception kept the batch's tensors alive
                self._execute([item])
            if not self._module.usable():
                self._lost()
            return
        executed = sum(item.entries for item in batch)
        for index, (item, outputs) in enumerate(zip(batch, computed.outputs, strict=True)):
            output = InferOutput(
                rid=item.request.rid,
                outputs=outputs,
                input_ns=computed.input_ns,
                infer_ns=computed.infer_ns,
                output_ns=computed.output_ns,
                executed=executed,
                leads=index == 0,
            )
            self._send(output)

    def _computed(self, batch: list[Waiting]) -> Computed | None:
        """None if that fails; a request that is alone in its batch is then answered with the error."""
        try:
            return self._module.compute([item.request for item in batch])
        except BaseException as error:  # whatever the module raises, even SystemExit, fails only its requests
            if len(batch) == 1:
                self._blame(batch[0], error)
        return None

    def _blame(self, item: Waiting, error: BaseException) -> None:
        name = item.request.model
        if isinstance(error, NbgenError):
            self._fail(item, error.message, error.status)
            return
        log.error("%s failed", name, exc_info=error)
        self._fail(item, f"the module of {name} failed ({type(error).__name__}); the server's log says why", 500)

    def _fail(self, item: Waiting, error: str, status: int) -> None:
        self._send(InferOutput(rid=item.request.rid, error=error, status=status))
