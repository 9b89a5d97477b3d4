"""Runs an engine's steps, and handles the messages that arrive between them.

One thread computes (`run`). Another receives, tokenizes and admits requests, so that tokenizing never holds up a
running stream. Two more admit requests whose media have to be decoded first and requests whose texts are long.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import msgspec

from nbgen.commands import (
    AdapterCommand,
    Command,
    ContinueGeneration,
    FlushCache,
    MemoryState,
    PauseGeneration,
    ReleaseMemory,
    ResumeMemory,
)
from nbgen.engine import memory
from nbgen.engine.adapter_changes import AdapterChange, AdapterChanges
from nbgen.engine.assembly import Assembly
from nbgen.engine.channel import Channel
from nbgen.engine.endings import ABORTED, UNSENDABLE, ended_by, ending
from nbgen.engine.grammar import LABELS, Compiled, Grammar
from nbgen.engine.pulse import ADMISSION_SECONDS, MEDIA_SECONDS, Pulse
from nbgen.engine.sequence import Sequence
from nbgen.engine.slow_lane import SlowLanes
from nbgen.engine_state import LoadModel
from nbgen.errors import InvalidRequest, NbgenError
from nbgen.frames import Request, ToEngine
from nbgen.messages import AbortRequest, FinishReason, GenerateOutput, GenerateRequest, StepOutputs, TensorPiece
from nbgen.pieces import Pieces, cut_output
from nbgen.tokenizer_messages import TokenizerAnswer

#: Seconds between two statuses, and the longest wait for a message while there is nothing to compute.
STATUS_SECONDS = 0.5

log = logging.getLogger(__name__)


class Constrained(NamedTuple):
    """A request's sequences, the grammar that they wait for, and the option that asks for it."""

    sequences: list[Sequence]
    grammar: Grammar
    option: str


class Ready(NamedTuple):
    """The same, once the grammar has been compiled or refused."""

    sequences: list[Sequence]
    compiled: Future[Compiled]
    option: str


Item = list[Sequence] | Constrained | Ready | AdapterChange | Command


class Loop:
    """Runs one assembled engine for the server at the other end of `channel`."""

    def __init__(self, channel: Channel, assembly: Assembly) -> None:
        self._channel = channel
        self._engine = assembly.engine
        self._admission = assembly.admission
        self._occupation = assembly.occupation
        self._idle_release = assembly.idle_release
        self._grammars = assembly.grammars
        self._adapters = AdapterChanges(assembly.adapters, assembly.engine, channel.send)
        self._pieces = Pieces()
        self._inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._pulse = Pulse(channel.send, assembly.occupation.device.type, assembly.run_seconds)
        self._admit_text = self._pulse.bounded(self._admit, ADMISSION_SECONDS)
        admit_media = self._pulse.bounded(self._admit, MEDIA_SECONDS)
        self._lanes = SlowLanes(admit_media, self._admit_text, self._admission.would_wait)
        self._status_due = 0.0
        self._counted = (time.monotonic(), 0)

    def run(self, messages: Iterable[ToEngine]) -> None:
        """Serve until the server closes its end."""
        threading.Thread(target=self._receive, args=(messages,), name="admission", daemon=True).start()
        with self._pulse:
            self._send_status()
            while self._take_in():
                self._turn()

    def _turn(self) -> None:
        """Run one step if there is something to compute, and do what is due between two steps."""
        self._send(self._engine.end_late())
        if self._engine.has_work:
            self._step()
            if not self._engine.has_work:
                self._status_due = 0.0  # idle again: say so at once
        self._let_go()
        self._idle_release.look()
        self._send_status()

    def _step(self) -> None:
        self._send(self._engine.step())

    def _receive(self, messages: Iterable[ToEngine]) -> None:
        try:
            for message in messages:
                self._hear(message)
        finally:  # also where a message cannot be read: an engine that hears nothing must not go on
            self._lanes.close()
            self._inbox.put(None)

    def _hear(self, message: ToEngine) -> None:
        if isinstance(message, TensorPiece):
            self._pieces.add(message)
        elif isinstance(message, Request):
            if isinstance(message, GenerateRequest):
                self._adapters.claim(message)
            if not self._lanes.take(message):
                self._admit_text(message)()
        elif isinstance(message, AdapterCommand):
            if (change := self._adapters.read(message)) is not None:
                self._inbox.put(change)
        elif isinstance(message, AbortRequest):
            self._abort(message)
        elif not isinstance(message, LoadModel):
            if isinstance(message, PauseGeneration) and message.mode == "abort":
                for rid in self._lanes.prompts():
                    self._abort(AbortRequest(rid=rid))
            self._inbox.put(message)  # type: ignore[arg-type]  # what is for tensors goes to another process

    def _abort(self, message: AbortRequest) -> None:
        """Have the engine end a request; one that is not admitted yet is ended here."""
        self._pieces.drop(message.rid)
        if (request := self._lanes.withdraw(message.rid)) is None:
            return self._inbox.put(message)
        self._adapters.unclaim(message.rid)
        samples = request.params.n if isinstance(request, GenerateRequest) else 0
        self._channel.send(ending(message.rid, ABORTED, samples))

    def _admit(self, request: Request) -> Callable[[], None]:
        """Prepare a request; the function returned hands it on to the engine, or refuses it."""
        try:
            if not isinstance(request, GenerateRequest):
                return partial(self._answer, self._admission.translate(request))
            request = self._pieces.complete(request)
            sequences = self._admission.sequences(request)
            if (grammar := sequences[0].params.grammar) is None:
                return partial(self._inbox.put, sequences)
            option = request.params.grammar[0] if request.params.grammar else "tools"
            if self._grammars is None:
                words = f"{option} needs a grammar back end, and this server has none (grammar_backend is 'none')"
                raise InvalidRequest(words, field=option)
            return partial(self._inbox.put, Constrained(sequences, Grammar(*grammar), option))
        except NbgenError as error:
            return partial(self._refuse, request, error)
        except Exception:  # whatever a tokenizer or a template raises is this request's alone
            log.exception("request %s could not be tokenized", request.rid)
            return partial(self._refuse, request, InvalidRequest("the prompt could not be tokenized"))

    def _answer(self, answer: TokenizerAnswer) -> None:
        """Send a tokenizer's answer; one that no message can hold fails its own request alone."""
        try:
            self._channel.send(answer)
        except Exception:  # as the texts of many ids may be
            log.exception("request %s: an answer that cannot be sent", answer.rid)
            self._channel.send(ending(answer.rid, UNSENDABLE))

    def _refuse(self, request: Request, error: NbgenError) -> None:
        self._adapters.unclaim(request.rid)
        self._channel.send(ending(request.rid, ended_by(error)))

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

    def _apply(self, item: Item) -> list[GenerateOutput]:
        if isinstance(item, list | Constrained):
            self._adapters.unclaim((item if isinstance(item, list) else item.sequences)[0].rid)
            self._prepare()
        match item:
            case AbortRequest():
                return self._engine.abort(item.rid)
            case PauseGeneration():
                self._status_due = 0.0
                return self._engine.pause(item.mode)
            case ContinueGeneration():
                self._status_due = 0.0
                self._engine.resume()
            case FlushCache():
                self._engine.flush_cache()
            case ReleaseMemory() | ResumeMemory():
                self._change_memory(item)
            case AdapterChange():
                self._adapters.apply(item)
            case Constrained():
                return self._compile(item)
            case Ready():
                return self._constrain(item)
            case _:
                return self._engine.add(item)
        return []

    def _prepare(self) -> None:
        """Make the engine ready for a request, which is added next."""
        self._idle_release.end()

    def _let_go(self) -> None:
        self._adapters.let_go()

    def _compile(self, item: Constrained) -> list[GenerateOutput]:
        """Have the grammar compiled while the loop goes on; the inbox gets a `Ready` when that is done."""
        sequences, grammar, option = item
        refusals = self._engine.add(sequences, prepared=False)
        if not refusals and self._grammars is not None:
            compiled = self._grammars.submit(grammar, wanted=lambda: sequences[0].finish_reason is None)
            compiled.add_done_callback(lambda done: self._inbox.put(Ready(sequences, done, option)))
        return refusals

    def _constrain(self, item: Ready) -> list[GenerateOutput]:
        """Give each sequence its matcher and let them run; refuse them if there is none to give."""
        try:
            compiled = item.compiled.result()
            for sequence in item.sequences:
                sequence.constrain(compiled.matcher(), knows_given=item.option in LABELS)
        except NbgenError as error:
            field = item.option if error.field in LABELS else error.field
            label = LABELS.get(item.option, item.option)
            words = error.message.replace(LABELS["structural_tag"], label, 1)  # the tag may have been built for `tools`
            return self._engine.refuse(item.sequences, FinishReason.failure(words, error.status, field))
        except Exception:  # whatever a back end raises is this grammar's alone
            log.exception("request %s: its grammar", item.sequences[0].rid)
            return self._engine.refuse(item.sequences, FinishReason.failure("the grammar cannot be used", 400))
        self._engine.begin(item.sequences)
        return []

    def _change_memory(self, item: ReleaseMemory | ResumeMemory) -> None:
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
        if error is not None:
            memory.give_back(self._occupation.device)  # only now: the exception held what had been resumed before
        self._status_due = 0.0
        self._send_status()
        released = sorted(self._occupation.released)
        self._channel.send(MemoryState(rid=item.rid, released=released, error=error, status=status))

    def _send(self, outputs: list[GenerateOutput]) -> None:
        plain = []
        for output in outputs:
            if not (output.tensors or output.prompt_logprobs):
                plain.append(output)
                continue
            for piece in cut_output(output):  # large ones go alone, before the output that may end their request
                self._deliver([piece])
        if plain:
            self._deliver(plain)

    def _deliver(self, outputs: list[GenerateOutput]) -> None:
        try:
            self._channel.send(StepOutputs(outputs=outputs))
        except Exception:  # an output that no message can hold fails its own request alone
            if len(outputs) > 1:
                for output in outputs:
                    self._deliver([output])
                return
            log.exception("request %s: an output that cannot be sent", outputs[0].rid)
            self._engine.abort(outputs[0].rid)
            self._channel.send(ending(outputs[0].rid, UNSENDABLE))

    def _send_status(self) -> None:
        now = time.monotonic()
        if now < self._status_due:
            return
        self._status_due = now + STATUS_SECONDS
        status = self._engine.status()
        (before, tokens), self._counted = self._counted, (now, status.generated_tokens)
        throughput = (status.generated_tokens - tokens) / max(now - before, 1e-3)
        held = memory.report(self._occupation.device)
        self._pulse.say(msgspec.structs.replace(status, throughput=throughput, **held))
