"""The engine: schedule, run, sample, emit. One request's fault ends that request; the rest go on.

Knows nothing of sockets or processes. Options such as `min_new_tokens` are implemented by the parts that it calls.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from nbgen.commands import PauseMode
from nbgen.engine import device, memory
from nbgen.engine.adapter_folder import Adapter
from nbgen.engine.deadlines import Deadlines
from nbgen.engine.endings import FAILED, NO_MEMORY, OUTGROWN, queue_full
from nbgen.engine.grammar import GrammarError
from nbgen.engine.guess import Verified
from nbgen.engine.launcher import Launched, Launcher
from nbgen.engine.logprobs import Logprobs, Numbers
from nbgen.engine.media_queue import MediaQueue
from nbgen.engine.model_runner import PromptScores, RunOutput
from nbgen.engine.probe import Runner
from nbgen.engine.sampled_tokens import NO_TOKEN
from nbgen.engine.sampler import Sampler
from nbgen.engine.scheduler import Scheduler
from nbgen.engine.sequence import Sequence, SequenceStatus, Withdrawn
from nbgen.engine.tensor_outputs import Row, TensorOutputs
from nbgen.engine_state import EngineStatus
from nbgen.errors import InvalidRequest
from nbgen.messages import FinishReason, GenerateOutput

log = logging.getLogger(__name__)


class Engine:
    """All sequences of one loaded model."""

    def __init__(
        self,
        runner: Runner,
        sampler: Sampler,
        scheduler: Scheduler,
        logprobs: Logprobs,
        *,
        max_waiting: int,
        deadlines: Deadlines,
        lookahead: bool,
    ) -> None:
        self._max_waiting = max_waiting
        self._deadlines = deadlines
        self._paused_at: float | None = None
        self._runner = runner
        self._launcher = Launcher(sampler, runner.model.config.get_text_config().vocab_size, lookahead=lookahead)
        self._logprobs = logprobs
        self._tensors = TensorOutputs()
        self._scheduler = scheduler
        self.sequences: dict[str, list[Sequence]] = {}  # living ones, by request id
        #: Sequences whose grammar is not compiled or whose media are not encoded; the scheduler does not know them yet.
        self._preparing: set[Sequence] = set()
        #: Those of them whose media are not encoded yet.
        self._unseen = MediaQueue()
        self._adapters: list[Adapter] = []
        self._closed: FinishReason | None = None
        self.steps = 0
        self.generated_tokens = 0
        self._verified = Verified()

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something; never while paused."""
        return (self._scheduler.has_work or len(self._unseen) > 0) and self._paused_at is None

    def add(self, sequences: list[Sequence], *, prepared: bool = True) -> list[GenerateOutput]:
        """Accept one request's sequences, or return outputs that refuse them. Unprepared ones wait for `begin`."""
        if reason := self._refusal(sequences):
            return [msgspec.structs.replace(s.output("", []), finish_reason=reason) for s in sequences]
        self.sequences[sequences[0].rid] = list(sequences)
        self._preparing.update(sequences)
        for sequence in sequences:
            sequence.arrived = time.monotonic()
        if prepared:
            self.begin(sequences)
        return []

    def begin(self, sequences: list[Sequence]) -> None:
        """Queue those of the sequences that are still alive, first for the encoding of their media if they have any."""
        for sequence in sequences:
            if sequence not in self._preparing:
                continue
            if sequence.media is not None:
                self._unseen.append(sequence)
            else:
                self._preparing.remove(sequence)
                self._scheduler.add(sequence)

    def abort(self, rid: str) -> list[GenerateOutput]:
        """End a request's sequences now; returns their last outputs, none for an unknown rid."""
        return [self._abort(sequence) for sequence in list(self.sequences.get(rid, ()))]

    def refuse(self, sequences: list[Sequence], reason: FinishReason) -> list[GenerateOutput]:
        """End those of the sequences that are still alive, with `reason`; returns their last outputs."""
        return [self._end(sequence, reason) for sequence in sequences if sequence.finish_reason is None]

    def vacate(self, reason: FinishReason) -> list[GenerateOutput]:
        """End every sequence and refuse new ones until `attach`, with `reason`; returns the last outputs."""
        self._closed = reason
        return [self._end(sequence, reason, sequence.rest()) for sequence in self._living()]

    def attach(self, runner: Runner | None, scheduler: Scheduler) -> None:
        """Continue with this runner and scheduler, which hold no sequence; without a runner, remain closed."""
        if runner is not None:
            runner.lora.carry(self._adapters)
            self._closed = None
        scheduler.preemptions = self._scheduler.preemptions
        self._runner, self._scheduler = runner, scheduler  # type: ignore[assignment]  # None is never used while closed

    def install(self, adapter: Adapter) -> None:
        """Put the adapter into the model. If that raises, nothing has changed."""
        if self._runner is not None:
            self._runner.lora.carry([*self._adapters, adapter])
        self._adapters.append(adapter)

    def remove(self, adapter: Adapter) -> None:
        """Take the adapter out of the model. Even if this raises, no later sequence may use it."""
        self._adapters = [each for each in self._adapters if each is not adapter]
        if self._runner is not None:
            self._runner.lora.carry(self._adapters)

    def uses(self, adapter: Adapter) -> bool:
        """Whether any living sequence uses the adapter."""
        return any(sequence.adapter is adapter for sequence in self._living())

    def flush_cache(self) -> None:
        """Forget every cached prefix that no sequence uses."""
        self._scheduler.blocks.cache.flush()

    def recompute(self) -> None:
        """Discard all that was computed, also for running sequences: the weights have changed."""
        self._preempt_all()
        self.flush_cache()

    def close(self) -> None:
        """End the threads that steps have started."""
        self._launcher.close()

    def withdraw(self) -> Withdrawn:
        """Detach every sequence, to be passed to `readmit` later."""
        self._preempt_all()
        withdrawn = Withdrawn(self.sequences, self._preparing, self._scheduler.waiting)
        self.sequences, self._preparing, self._scheduler.waiting = {}, set(), []
        return withdrawn

    def readmit(self, withdrawn: Withdrawn) -> list[GenerateOutput]:
        """Requeue the withdrawn sequences, in the same order, from their start; last outputs of those too large now."""
        self.sequences, self._preparing, waiting = withdrawn
        for sequence in waiting:
            self._scheduler.add(sequence)
        if self._closed is not None:
            return []
        outgrown = [sequence for sequence in self._living() if not self._scheduler.fits(sequence)]
        return [self._end(sequence, OUTGROWN, sequence.rest()) for sequence in outgrown]

    def pause(self, mode: PauseMode) -> list[GenerateOutput]:
        """Compute nothing until `resume`; returns the last outputs of the sequences that `mode` ends."""
        outputs = [self._abort(sequence) for sequence in self._living()] if mode == "abort" else []
        if mode == "retract":
            self._preempt_all()
        if self._paused_at is None:
            self._paused_at = time.monotonic()
        return outputs

    def resume(self) -> None:
        """Compute again. The pause counts neither as waiting nor as running."""
        if self._paused_at is not None:
            self._deadlines.shift(self._living(), self._paused_at, time.monotonic())
            self._paused_at = None

    def end_late(self) -> list[GenerateOutput]:
        """End the sequences that have waited or run too long; returns their last outputs."""
        now = time.monotonic()
        if self._paused_at is not None or not self._deadlines.are_due(now):
            return []
        return [self._end(s, reason, s.rest()) for s, reason in list(self._deadlines.late(self._living(), now))]

    def step(self) -> list[GenerateOutput]:
        """Compute one batch; returns what each sequence gained."""
        refused = self._encode_next() if len(self._unseen) else []
        try:
            launched = self._launcher.launch(self._runner, self._scheduler)
        except Exception as error:  # a model may raise anything
            if not device.works(self._runner.device) or not self._scheduler.running:
                raise
            short = memory.ran_out(error)
            log.warning("A step failed: all that runs begins anew", exc_info=True)
        else:
            return refused + self._finish(launched) if launched else refused
        return refused + self._begin_anew(short=short)  # only now: the exception kept the step's tensors alive

    def status(self) -> EngineStatus:
        status = msgspec.structs.replace(
            self._scheduler.status(),
            waiting=self._num_waiting,
            waiting_tokens=self._scheduler.num_prefill + sum(len(sequence) for sequence in self._preparing),
            steps=self.steps,
            generated_tokens=self.generated_tokens,
            paused=self._paused_at is not None,
        )
        return self._verified.told(status)

    @property
    def _num_waiting(self) -> int:
        return len(self._scheduler.waiting) + len(self._preparing)

    def _preempt_all(self) -> None:
        for sequence in self._scheduler.running:
            self._runner.release(sequence)
        self._scheduler.preempt_all()
        self._launcher.forget()

    def _begin_anew(self, *, short: bool) -> list[GenerateOutput]:
        """Restart all sequences after a failed step; returns the last output of the one that must end, if any.

        `short`: the step ran out of memory. Cached prefixes are dropped: their contents are unknown after a failure.
        """
        last = self._scheduler.failed(short=short)
        self._scheduler.blocks.copied()
        self.recompute()
        memory.give_back(self._runner.device)
        return [] if last is None else [self._end(last, NO_MEMORY if short else FAILED, last.rest())]

    def _refusal(self, arriving: list[Sequence]) -> FinishReason | None:
        """Why one request's sequences cannot be accepted now; None if they can."""
        waiting, adapter = self._num_waiting, arriving[0].adapter
        if waiting + len(arriving) > self._max_waiting:
            return queue_full(waiting, len(arriving), self._max_waiting)
        if adapter is not None and adapter not in self._adapters:
            return FinishReason.failure(f"the adapter {adapter.name!r} is not loaded: try again", 503)
        if self._closed is None and not all(map(self._scheduler.fits, arriving)):
            return OUTGROWN
        return self._closed

    def _living(self) -> list[Sequence]:
        return [sequence for siblings in self.sequences.values() for sequence in siblings]

    def _encode_next(self) -> list[GenerateOutput]:
        """Encode media and queue the sequences that are ready; returns the last outputs of those that failed."""
        refused = []
        for sequence, fault in self._unseen.encoded(self._runner.encode, self._scheduler.waiting):  # type: ignore[union-attr]
            if fault is not None:
                refused.append(self._end(sequence, fault))
                continue
            self._preparing.remove(sequence)
            self._scheduler.add(sequence)
        return refused

    def _finish(self, launched: Launched) -> list[GenerateOutput]:
        """Give every sequence its token; returns what each gained."""
        self.steps += 1
        output, tokens = launched.output, launched.tokens.tolist()
        self._scheduler.succeeded(output.sampled)
        pieces = self._describe(output)
        rows = zip(output.sampled, launched.rows, tokens, launched.logprobs, strict=True)
        for row, *gained in rows:
            if (sequence := self._verified.sequence(row)) is not None:
                pieces += self._alone(sequence, self._gain, *gained)
        if true := self._verified.came_true():
            self._runner.accept(true)  # type: ignore[union-attr]  # only a runner that takes guesses has any
        return pieces

    def _describe(self, output: RunOutput) -> list[GenerateOutput]:
        pieces: list[GenerateOutput] = []
        for prompt in output.prompt:
            pieces += self._alone(prompt.sequence, self._describe_prompt, prompt)
        for sequence, experts in output.experts.items():
            pieces += self._alone(sequence, self._tensors.routed, *experts)
        return pieces

    def _describe_prompt(self, sequence: Sequence, prompt: PromptScores) -> list[GenerateOutput]:
        self._logprobs.prompt(sequence, prompt.position, prompt.scores)
        return self._tensors.prompt(prompt)

    def _alone(
        self, sequence: Sequence, make: Callable[..., Iterable[GenerateOutput]], *given: Any
    ) -> list[GenerateOutput]:
        """The result of `make` for a sequence that is alive. If it raises, this sequence alone ends."""
        if sequence.finish_reason is not None:
            return []
        try:
            return list(make(sequence, *given))
        except Exception:  # a tokenizer may raise anything, and memory may be full
            log.exception("request %s cannot go on", sequence.rid)
            return [self._fail(sequence, "the answer could not be completed; the server's log says why")]

    def _gain(self, sequence: Sequence, row: Row | None, token: int, numbers: Numbers | None) -> list[GenerateOutput]:
        return [*self._tensors.sampled(sequence, row, token), self._advance(sequence, token, numbers)]

    def _advance(self, sequence: Sequence, token: int, numbers: Numbers | None) -> GenerateOutput:
        """Add a token to its sequence; `numbers` are its log-probabilities."""
        if token == NO_TOKEN:
            sequence.spoiled = sequence.matcher is None  # a grammar forbids tokens of finite scores
            return self._fail(sequence, sequence.why_no_token)
        logprobs = self._logprobs.output(sequence, token, numbers)
        if sequence.budget == 0:
            output = self._end(sequence, FinishReason(type="length", length=0), sequence.rest())
            return msgspec.structs.replace(output, logprobs=logprobs)
        try:
            text = sequence.append(token)
        except (GrammarError, InvalidRequest) as error:
            return self._fail(sequence, str(error))
        output = sequence.output(text, [token])
        self.generated_tokens += 1
        if sequence.finish_reason:
            self._release(sequence)
        return msgspec.structs.replace(output, logprobs=logprobs) if logprobs else output

    def _abort(self, sequence: Sequence) -> GenerateOutput:
        where = "waiting queue" if sequence.status is SequenceStatus.WAITING else "running batch"
        return self._end(sequence, FinishReason(type="abort", message=f"Abort in {where}"), sequence.rest())

    def _fail(self, sequence: Sequence, message: str) -> GenerateOutput:
        return self._end(sequence, FinishReason.failure(message, 400))

    def _end(self, sequence: Sequence, reason: FinishReason, text: str = "") -> GenerateOutput:
        sequence.finish_reason = reason
        self._release(sequence)
        try:
            return sequence.output(text, [])
        except Exception:  # a parser of its answer may raise anything
            log.exception("request %s: the end of its answer", sequence.rid)
            return GenerateOutput(rid=sequence.rid, index=sequence.index, text=text, finish_reason=reason)

    def _release(self, sequence: Sequence) -> None:
        """Free everything that the sequence holds."""
        if sequence in self._preparing:
            self._preparing.remove(sequence)
            self._unseen.drop(sequence)
        else:
            self._scheduler.finish(sequence)
            if self._runner is not None:
                self._runner.release(sequence)
        siblings = self.sequences[sequence.rid]
        siblings.remove(sequence)
        if not siblings:
            del self.sequences[sequence.rid]
        if not self.sequences:
            self._launcher.forget()
