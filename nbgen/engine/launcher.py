"""From a schedule to tokens on the device: a forward, masks, the sampler, and perhaps the next forward.

With lookahead a GPU never waits for the host: the next forward is launched as soon as a step's tokens are sampled, from
the tokens on the device. Only then does the host read them, emit them and end sequences, while the device computes. The
launched forward is sampled later, so masks, penalties and all else that depends on earlier tokens find them known.

The row of a sequence that has ended by then is wasted. The blocks and the state that it gave back are used only by
forwards that are launched, and so computed, later. Knows nothing of what becomes of tokens.
"""

import time
from typing import NamedTuple

import torch

from nbgen.engine.grammar_masks import GrammarMasks
from nbgen.engine.logprobs import Numbers, output_numbers
from nbgen.engine.model_runner import RunOutput
from nbgen.engine.probe import Runner
from nbgen.engine.sampled_tokens import SampledTokens
from nbgen.engine.sampler import Sampler, likeliest, takes_the_best
from nbgen.engine.scheduler import Scheduler
from nbgen.engine.tensor_outputs import Row, raw_rows


class Launched(NamedTuple):
    """A step whose tokens are on their way to the host, and what was asked for beside them.

    `rows` are from before sampling, `logprobs` from after it.
    """

    output: RunOutput
    rows: list[Row | None]
    logprobs: list[Numbers | None]
    tokens: SampledTokens


class Launcher:
    """Has steps computed, one after the other."""

    def __init__(self, sampler: Sampler, vocab_size: int, *, lookahead: bool) -> None:
        self.lookahead = lookahead
        #: The forward that is launched and not sampled yet.
        self.ahead: RunOutput | None = None
        self._sampler = sampler
        self._vocab_size = vocab_size
        self._masks = GrammarMasks()

    def launch(self, runner: Runner, scheduler: Scheduler) -> Launched | None:
        """The next step; None where there is nothing to compute."""
        output = self._launched_ahead(self.ahead) if self.ahead else self._run(runner, scheduler)
        if output is None:
            return None
        ids, rows, logprobs = self._sampled(output)
        tokens = SampledTokens(ids)
        self.ahead = self._look_ahead(runner, scheduler, output, tokens) if self.lookahead else None
        return Launched(output, rows, logprobs, tokens)

    def _sampled(self, output: RunOutput) -> tuple[torch.Tensor, list[Row | None], list[Numbers | None]]:
        """The tokens `[rows]` of a step, and the raw rows and log-probabilities that were asked for."""
        if output.sampled and all(map(takes_the_best, output.sampled)):
            best = likeliest(output.scores) if output.best is None else output.best
            if best is not None:
                return best, [None] * len(output.sampled), [None] * len(output.sampled)
        output = output.wide()
        rows = raw_rows(output)
        self._masks.apply(output.scores, output.sampled)
        ids = self._sampler.sample(output.scores, output.sampled)
        return ids, rows, output_numbers(output.sampled, output.scores, ids)

    def forget(self) -> None:
        """Let go of what was launched ahead: its sequences have ended, or are computed anew."""
        self.ahead = None
        self._masks.forget()

    def close(self) -> None:
        """End the threads that steps have started."""
        self._masks.close()
        self._sampler.close()

    def _run(self, runner: Runner, scheduler: Scheduler, newest: SampledTokens | None = None) -> RunOutput | None:
        """Have a batch computed, if there is one; `newest` are tokens of it that the host does not know yet."""
        now = time.monotonic()
        batch = scheduler.schedule(now)
        if not batch:
            return None
        for item in batch:
            item.sequence.start(now)
        if newest is None:
            self._masks.start([item.sequence for item in batch if item.samples])
        output = runner.run(batch, scheduler.blocks.take_copies(), newest).over(self._vocab_size)
        scheduler.computed(batch)
        return output

    def _look_ahead(
        self, runner: Runner, scheduler: Scheduler, output: RunOutput, tokens: SampledTokens
    ) -> RunOutput | None:
        """Launch the batch after this one, with those of its sequences that go on after `tokens`.

        None where scores of prompts, or experts, are asked for, since these would come only after it; nor where a
        sequence may have to be preempted.
        """
        going_on = [(row, s) for row, s in enumerate(output.sampled) if s.num_output + 1 < s.budget]
        asked = output.prompt or output.experts
        if not going_on or asked or not runner.looks_ahead or not scheduler.is_roomy:
            return None
        for row, sequence in going_on:
            sequence.awaited = row
        try:
            return self._run(runner, scheduler, tokens)
        finally:
            for _, sequence in going_on:
                sequence.awaited = None

    def _launched_ahead(self, output: RunOutput) -> RunOutput:
        """The part of `output` for sequences that have not ended; begins to fill their masks."""
        output = output.living()
        self._masks.start(output.sampled)
        return output
