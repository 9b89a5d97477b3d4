"""A few random tokens through a runner, in the pieces that requests come in: the scores after each.

Knows not what they are compared with.
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

#: For each step, tokens that each of the prompts computes in it.
Steps = tuple[tuple[int, ...], ...]
#: Of two prompts: a chunk, a mixed batch, decodes together, one alone.
STEPS: Steps = ((10, 0), (11, 9), (1, 1), (1, 0))
#: Tokens with which both prompts begin: in a causal model, what follows does not change their scores.
COMMON = 4
#: The same tokens for a runner that never cuts a prompt.
UNCUT_STEPS: Steps = ((21, 0), (0, 9), (1, 1), (1, 0))
#: The beginning of the first prompt alone.
FIRST_STEPS: Steps = ((2, 0),)
#: Largest difference of scores allowed, as a share of the largest score.
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 8e-2, torch.float16: 2e-2}


def prompts(model: "PreTrainedModel") -> list[list[int]]:
    """Random tokens of the model's; all prompts begin alike."""
    generator, vocab_size = torch.Generator().manual_seed(0), model.config.get_text_config().vocab_size
    lengths = [sum(counts) for counts in zip(*STEPS, strict=True)]
    drawn = [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]
    return [drawn[0][:COMMON] + prompt[COMMON:] for prompt in drawn]


def pieces(
    runner: "ModelRunner | OpaqueRunner", prompts: list[list[int]], steps: Steps | None = None
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Run the prompts, in these steps or in those that suit the runner; index of the prompt, position and scores at the
    end of each piece.
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
    """Of each prompt, the positions at the end of its pieces in any of these."""
    found = [[set(accumulate(filter(None, counts))) for counts in zip(*steps, strict=True)] for steps in runs]
    return [{end - 1 for each in of for end in each} for of in zip(*found, strict=True)]


def grow(grown: Sequence, count: int, blocks: BlockManager) -> Sequence:
    """The sequence as if only its next `count` tokens were known."""
    grown.token_ids = grown.prompt_ids[: grown.num_computed + count]
    blocks.allocate(grown, len(grown))
    return grown


def same(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether scores are as near to each other as ways of computing them may be."""
    tolerance = TOLERANCE.get(dtype, TOLERANCE[torch.float32])
    return bool((got - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1e-3))


def sequence(ids: list[int], state_slot: int | None = None) -> Sequence:
    """A prompt of these tokens, that nobody asked for."""
    detokenizer = Detokenizer(lambda _: "", lambda _: False, [])
    return Sequence("probe", 0, ids, SamplingParams(), 1, 0, detokenizer, StopStrings(()), state_slot=state_slot)
