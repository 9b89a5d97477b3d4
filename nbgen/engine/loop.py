"""The steps of an engine and the messages between them.

One thread computes (`run`); another receives, tokenizes and admits (`receive`), so that a long prompt's tokens never
hold up a running stream.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterable

import msgspec

from nbgen.engine import memory
from nbgen.engine.assembly import Assembly
from nbgen.engine.channel import Channel
from nbgen.engine.sequence import Sequence
from nbgen.errors import NbgenError
from nbgen.messages import (
    AbortRequest,
    FinishReason,
    FlushCache,
    GenerateOutput,
    GenerateRequest,
    MemoryState,
    ReleaseMemory,
    ResumeMemory,
    StepOutputs,
    ToEngine,
)

STATUS_SECONDS = 0.5

#: What the computing thread does itself, in the order of arrival.
ForLoop = AbortRequest | FlushCache | ReleaseMemory | ResumeMemory

log = logging.getLogger(__name__)


class Loop:
    """Runs one assembled engine for the server at the other end of `channel`."""

    def __init__(self, channel: Channel, assembly: Assembly) -> None:
        self._channel = channel
        self._engine = assembly.engine
        self._admission = assembly.admission
        self._device = assembly.device
        self._occupation = assembly.occupation
        self._inbox: queue.SimpleQueue[list[Sequence] | ForLoop | None] = queue.SimpleQueue()
        self._status_due = 0.0

    def run(self, messages: Iterable[ToEngine]) -> None:
        """Serve until the server closes its end."""
        threading.Thread(target=self._receive, args=(messages,), name="admission", daemon=True).start()
        while self._take_in():
            if self._engine.has_work:
                self._send(self._engine.step())
                if not self._engine.has_work:
                    self._status_due = 0.0  # idle again: say so at once
            self._send_status()

    def _receive(self, messages: Iterable[ToEngine]) -> None:
        for message in messages:
            if isinstance(message, GenerateRequest):
                self._admit(message)
            elif isinstance(message, ForLoop):
                self._inbox.put(message)
        self._inbox.put(None)

    def _admit(self, request: GenerateRequest) -> None:
        try:
            self._inbox.put(self._admission.sequences(request))
        except NbgenError as error:
            self._refuse(request, error.message, error.status)
        except Exception:  # whatever a tokenizer or a template raises is this request's alone
            log.exception("request %s could not be tokenized", request.rid)
            self._refuse(request, "the prompt could not be tokenized", 400)

    def _refuse(self, request: GenerateRequest, message: str, status: int) -> None:
        reason = FinishReason(type="error", message=message, status=status)
        self._send([GenerateOutput(rid=request.rid, finish_reason=reason)])

    def _take_in(self) -> bool:
        """Take what has arrived, waiting a moment if there is nothing to compute; False when the server is gone."""
        timeout = 0.0 if self._engine.has_work else STATUS_SECONDS
        while True:
            try:
                item = self._inbox.get(block=timeout > 0, timeout=timeout)
            except queue.Empty:
                return True
            if item is None:
                return False
            self._send(self._apply(item))
            timeout = 0.0

    def _apply(self, item: list[Sequence] | ForLoop) -> list[GenerateOutput]:
        if isinstance(item, AbortRequest):
            return self._engine.abort(item.rid)
        if isinstance(item, FlushCache):
            self._engine.flush_cache()
            return []
        if isinstance(item, ReleaseMemory | ResumeMemory):
            self._occupy(item)
            return []
        return self._engine.add(item)

    def _occupy(self, item: ReleaseMemory | ResumeMemory) -> None:
        """Release or resume memory, and say what is released then."""
        error, status = None, 400
        try:
            if isinstance(item, ReleaseMemory):
                self._send(self._occupation.release(set(item.tags)))
            else:
                self._occupation.resume(set(item.tags))
        except NbgenError as refused:
            error, status = refused.message, refused.status
        except Exception:  # the GPU may have been filled meanwhile; what is released stays so
            log.exception("memory could not be resumed")
            error, status = "the memory is not free any more: free some and resume again", 503
        self._status_due = 0.0
        self._send_status()
        self._channel.send(MemoryState(released=sorted(self._occupation.released), error=error, status=status))

    def _send(self, outputs: list[GenerateOutput]) -> None:
        for output in outputs:
            if output.tensors:  # large ones go alone, before what may end their request
                self._channel.send(StepOutputs(outputs=[output]))
        if plain := [output for output in outputs if not output.tensors]:
            self._channel.send(StepOutputs(outputs=plain))

    def _send_status(self) -> None:
        now = time.monotonic()
        if now < self._status_due:
            return
        self._status_due = now + STATUS_SECONDS
        _free, total = memory.device_memory(self._device)
        used = memory.used_memory(self._device)
        self._channel.send(msgspec.structs.replace(self._engine.status(), memory_used=used, memory_total=total))
