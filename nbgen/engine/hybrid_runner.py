"""Tier B: models with recurrent or convolution layers. Their states lie in a pool of slots, beside the paged KV cache.

A state belongs to one position, so transformers' forward takes one prompt at a time, but all decodes together. Our own
C++ takes all together, guesses too, and changes states in place. The scheduler and its block manager decide which
sequence has which slot, and which snapshots of states are kept.
"""

from collections import Counter
from typing import TYPE_CHECKING

import torch

from nbgen.engine.block_manager import Copies, Copy, StateCopy
from nbgen.engine.guess import Guess
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.model_runner import ModelRunner, RunOutput
from nbgen.engine.sampled_tokens import SampledTokens
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.state_pool import StatePool

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HybridRunner(ModelRunner):
    """Runs a transformers causal LM over a paged KV cache and a pool of states."""

    tier = "B"

    def __init__(self, model: "PreTrainedModel", cache: KVCache, *, chunks_prefill: bool = True) -> None:
        """A model whose layers restart with every prompt chunk has `chunks_prefill` False, and no prefix cache."""
        super().__init__(model, cache)
        self.chunks_prefill = self.caches_prefixes = chunks_prefill
        self.pool = StatePool(model.config)

    @property
    def bytes_per_state(self) -> int:  # type: ignore[override]
        """Bytes of state that a sequence holds besides its blocks."""
        return self.pool.bytes_per_slot

    def run(
        self, batch: list[ScheduledSequence], copies: Copies = (), newest: SampledTokens | None = None
    ) -> RunOutput:
        """Compute the batch's tokens: all at once, or all decodes in one forward and each prompt in one of its own."""
        with torch.inference_mode():
            for copy in copies:
                self._copy(copy)
        if self._runs_in_place(batch):
            # Sorted by slot, so that guesses follow the sequence whose state slot they share.
            return super().run(sorted(batch, key=_slot), newest=newest)
        batch = [item for item in batch if not isinstance(item.sequence, Guess)]
        decodes = [item for item in batch if item.num_tokens == 1 and item.sequence.num_computed]
        prompts = [item for item in batch if item not in decodes]
        # In the order of their slots, so that their states can be adjacent.
        decodes.sort(key=_slot)
        groups = ([decodes] if decodes else []) + [[item] for item in prompts]
        return _joined([self._run_group(group, newest) for group in groups])

    @property
    def takes_guesses(self) -> bool:  # type: ignore[override]
        """Only with the C++, which can keep a state both from before the guesses and from after them."""
        return self.native_model is not None

    def accept(self, guesses: list[Guess]) -> None:
        """Advance the states past those guesses of the last step that have come true."""
        assert self.native_model is not None
        assert self.native_model.states is not None
        self.native_model.states.remember(
            Counter(guess.state_slot for guess in guesses if guess.state_slot is not None)
        )

    def vacate(self) -> None:
        """Give up the states as well."""
        super().vacate()
        self.pool.clear()
        self.stock.states = None

    def _copy(self, copy: Copy | StateCopy) -> None:
        if isinstance(copy, Copy):
            self.cache.copy(copy.source, copy.target, copy.num_tokens)
        elif copy.restores:
            self.pool.load(copy.state_slot, copy.snapshot)
        else:
            self.pool.save(copy.state_slot, copy.snapshot)

    def _runs_in_place(self, batch: list[ScheduledSequence]) -> bool:
        """Whether all of the batch is computed in C++, which changes states where they lie."""
        return self.native_model is not None and self.native_model.computes(self.cache, batch)

    def _run_group(self, group: list[ScheduledSequence], newest: SampledTokens | None) -> RunOutput:
        if self._runs_in_place(group):
            return super().run(group, newest=newest)
        slots = [_slot(item) for item in group]
        begins = group[0].sequence.num_computed == 0
        states = self.stock.states = self.pool.fresh() if begins else self.pool.read(slots)
        output = super().run(group, newest=newest)
        with torch.inference_mode():
            self.pool.write(slots, states)
        return output


def _slot(item: ScheduledSequence) -> int:
    assert item.sequence.state_slot is not None
    return item.sequence.state_slot


def _joined(outputs: list[RunOutput]) -> RunOutput:
    return RunOutput(
        [sequence for output in outputs for sequence in output.sampled],
        torch.cat([output.scores for output in outputs]),
        [scores for output in outputs for scores in output.prompt],
        {sequence: state for output in outputs for sequence, state in output.hidden.items()},
        {sequence: experts for output in outputs for sequence, experts in output.experts.items()},
    )
