"""Runs a few random tokens through a runner, in pieces as requests are cut into, and gives the scores after each piece.

Does not know what these are compared with.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from nbgen.engine.block_manager import BlockManager
from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.sequence import Sequence
from nbgen.engine_config import BLOCK_SIZE
from nbgen.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from nbgen.engine.model_runner import ModelRunner
    from nbgen.engine.opaque_runner import OpaqueRunner

#: For each step, how many tokens of each prompt are computed in it.
Steps = tuple[tuple[int, ...], ...]
#: For two prompts: a prefill chunk, a mixed batch, a batch of two decodes, a single decode.
STEPS: Steps = ((10, 0), (11, 9), (1, 1), (1, 0))
#: How many first tokens both prompts share: in a causal model, what follows does not change their scores.
COMMON = 4
#: Steps over the same tokens for a runner that never cuts a prompt.
UNCUT_STEPS: Steps = ((21, 0), (0, 9), (1, 1), (1, 0))
#: A single step: the beginning of the first prompt.
FIRST_STEPS: Steps = ((2, 0),)
#: The largest allowed difference between scores, as a share of the largest score.
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 8e-2, torch.float16: 2e-2}


def prompts(model: "PreTrainedModel") -> list[list[int]]:
    """Prompts of random token ids; all begin with the same `COMMON` tokens."""
    generator, vocab_size = torch.Generator().manual_seed(0), model.config.get_text_config().vocab_size
    lengths = [sum(counts) for counts in zip(*STEPS, strict=True)]
    drawn = [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]
    return [drawn[0][:COMMON] + prompt[COMMON:] for prompt in drawn]


def pieces(
    runner: "ModelRunner | OpaqueRunner", prompts: list[list[int]], steps: Steps | None = None
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Run the prompts in these steps, or in those that suit the runner. Yields for each piece the index of its prompt,
    its last position, and the scores there.
    """
    usual = STEPS if runner.chunks_prefill else UNCUT_STEPS
    sequences, blocks = [sequence(ids, slot) for slot, ids in enumerate(prompts)], BlockManager(8, BLOCK_SIZE)
    try:
        for counts in steps or usual:
            yield from _step(runner, sequences, counts, blocks)
    finally:
        for each in sequences:
            runner.release(each)


def _step(
    runner: "ModelRunner | OpaqueRunner", sequences: list[Sequence], counts: tuple[int, ...], blocks: BlockManager
) -> Iterator[tuple[int, int, torch.Tensor]]:
    parts = [(each, count) for each, count in zip(sequences, counts, strict=True) if count]
    output = runner.run([ScheduledSequence(grow(each, count, blocks), count) for each, count in parts])
    for each, count in parts:
        each.num_computed += count
    for each, row in zip(output.sampled, output.scores, strict=True):
        yield sequences.index(each), len(each) - 1, row


def ends(*runs: Steps) -> list[set[int]]:
    """For each prompt, the last positions of its pieces in any of these runs."""
    found = [[set(accumulate(filter(None, counts))) for counts in zip(*steps, strict=True)] for steps in runs]
    return [{end - 1 for each in of for end in each} for of in zip(*found, strict=True)]


def grow(grown: Sequence, count: int, blocks: BlockManager) -> Sequence:
    """The sequence as if only its next `count` tokens were known."""
    grown.token_ids = grown.prompt_ids[: grown.num_computed + count]
    blocks.allocate(grown, len(grown))
    return grown


def same(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether scores differ by no more than `TOLERANCE`, as correct ways of computing them may."""
    tolerance = TOLERANCE.get(dtype, TOLERANCE[torch.float32])
    return bool((got - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1e-3))


def sequence(ids: list[int], state_slot: int | None = None) -> Sequence:
    """A sequence with these prompt tokens, which belongs to no request."""
    detokenizer = Detokenizer(lambda _: "", lambda _: False, [])
    return Sequence("probe", 0, ids, SamplingParams(), 1, 0, detokenizer, StopStrings(()), state_slot=state_slot)
