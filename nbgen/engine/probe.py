"""Which way of running a model is right for it: found by trying, never by a flag of the model.

A few random tokens go once through the model as transformers ships it and once through each candidate, in pieces; the
first candidate with the same scores wins.
"""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from nbgen.engine import fused_norms, linear, native_linear, shared_linear
from nbgen.engine.attention import ReferenceAttention
from nbgen.engine.block_manager import BlockManager
from nbgen.engine.compiled import CompiledDecoder
from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.hybrid_runner import HybridRunner
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.model_runner import ModelRunner
from nbgen.engine.native_decoder import NativeDecoder
from nbgen.engine.native_model import NativeModel
from nbgen.engine.opaque_runner import OpaqueRunner
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.sequence import Sequence
from nbgen.engine.state_pool import has_state
from nbgen.engine.stateful_blocks import StatefulBlocks
from nbgen.engine_config import BLOCK_SIZE
from nbgen.errors import ModelError
from nbgen.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Tokens that each of two prompts computes in each step: a chunk, a mixed batch, decodes together, one alone.
STEPS = ((10, 0), (11, 9), (1, 1), (1, 0))
#: Tokens with which both prompts begin: in a causal model, what follows does not change their scores.
COMMON = 4
#: The same tokens for a runner that never cuts a prompt.
UNCUT_STEPS = ((21, 0), (0, 9), (1, 1), (1, 0))
#: Largest difference of scores allowed, as a share of the largest score.
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 8e-2, torch.float16: 2e-2}

log = logging.getLogger(__name__)

Runner = ModelRunner | OpaqueRunner


def choose_runner(model: "PreTrainedModel", *, copies_weights: bool = True) -> Runner:
    """The fastest runner whose scores are those of `model` itself, which gets faster layers where they agree too.

    Faster layers hold copies of weights: without `copies_weights` there are none. Raises ModelError for a model that
    does not write one token after the other, or leaves no memory to compute in.
    """
    try:
        return _chosen(model, copies_weights)
    except torch.OutOfMemoryError as error:
        name = type(model).__name__
        log.exception("trying %s", name)
        raise ModelError(
            f"{name} leaves no room in the GPU's memory to compute in: free some, or use a smaller model"
        ) from error


def _chosen(model: "PreTrainedModel", copies_weights: bool) -> Runner:
    prompts = _prompts(model.config.get_text_config().vocab_size)
    expected = _expected_scores(model, prompts)
    swaps = _faster(model, prompts[1]) if copies_weights else []
    runner = _first_that_agrees(model, prompts, expected)
    if runner is None and swaps:
        linear.restore(swaps)
        runner = _first_that_agrees(model, prompts, expected)
    if not isinstance(runner, ModelRunner):
        runner = runner or OpaqueRunner(model, cached=False)
        runner.weigh(_sequence(prompts[1]), _sequence(prompts[0]))
        return runner
    if isinstance(runner, HybridRunner) and runner.caches_prefixes:
        runner.caches_prefixes = _goes_on(runner, prompts[0], expected[0])
    if type(runner) is ModelRunner and copies_weights:
        give = _fuse if runner.device.type == "cuda" else _give_native_layers
        give(runner, prompts, expected)
    return runner


def _faster(model: "PreTrainedModel", ids: list[int]) -> list[linear.Swap]:
    """Give the model the fastest linear layers that this machine has for it."""
    return native_linear.replace(model) + shared_linear.share(model, ids) + linear.prepack(model)


def _give_native_layers(runner: ModelRunner, prompts: list[list[int]], expected: list[torch.Tensor]) -> None:
    """The layers and what is around them, both or the layers alone, where the scores remain.

    They are tried together: what is around them is only made where the code in its place is known.
    """
    stock = runner.stock
    try:
        stock.layers = NativeDecoder(runner.model, runner.lora)
        runner.native_model = NativeModel(runner.model, stock.layers, runner.cache, runner.attention)
    except (ValueError, AttributeError) as error:
        place = "around the layers" if stock.layers else "layers and all"
        log.info("transformers' own code runs in place of ours (%s): %s", place, error)
    while stock.layers is not None and not _agrees(runner, prompts, expected):
        place = "around the layers" if runner.native_model else "layers and all"
        log.warning("transformers' own code runs in place of ours, which gives other scores (%s)", place)
        if runner.native_model:
            runner.native_model = None
        else:
            stock.layers = None


def _fuse(runner: ModelRunner, prompts: list[list[int]], expected: list[torch.Tensor]) -> None:
    """Kernels of our own from ids to scores, where the model's code is known; else norms of one kernel.

    Both where the scores remain.
    """
    try:
        from nbgen.engine.fused_model import FusedModel  # only here: other machines have no triton

        runner.fused = FusedModel(runner.model)
    except (ImportError, ValueError, AttributeError, torch.OutOfMemoryError) as error:
        log.info("transformers' own code runs in place of our kernels: %s", error)
        swaps = fused_norms.replace(runner.model)
        if swaps and not _agrees(runner, prompts, expected):
            linear.restore(swaps)
        return
    if not _agrees(runner, prompts, expected):
        log.warning("transformers' own code runs in place of our kernels, which do not run here or give other scores")
        runner.fused = None


def compile(runner: Runner) -> bool:
    """Have the runner's decoder compiled, where it can be and the scores remain; whether it is. Raises ModelError."""
    if type(runner) is not ModelRunner or runner.long_after is not None:
        return False
    if runner.layers_in != "transformers":
        log.info("Not compiled: the model's layers run in code of our own, which is faster")
        return False
    prompts = _prompts(runner.model.config.get_text_config().vocab_size)
    expected = [row for _, _, row in _pieces(runner, prompts)]
    decoder = runner.stock.compiled = CompiledDecoder(runner.model)
    try:
        got = [row for _, _, row in _pieces(runner, prompts)]
    except Exception:  # what a compiler says of code that it does not understand
        log.warning("This model cannot be compiled; it runs as it is", exc_info=True)
        got = []
    if got and all(_same(a, b, runner.model.dtype) for a, b in zip(got, expected, strict=True)):
        decoder.settle()
        return True
    decoder.remove()
    runner.stock.compiled = None
    return False


def _first_that_agrees(
    model: "PreTrainedModel", prompts: list[list[int]], expected: list[torch.Tensor]
) -> Runner | None:
    config = model.config.get_text_config()
    stock = config._attn_implementation
    for runner in _candidates(model):
        if _agrees(runner, prompts, expected, observed=runner.tier != "C") and _keeps_states(runner, prompts[0]):
            return runner
        config._attn_implementation = stock
    return None


def _candidates(model: "PreTrainedModel") -> Iterator[Runner]:
    """Runners from the fastest on; each is made only when those before it were tried."""
    if has_state(model.config):
        yield HybridRunner(model, KVCache(8, BLOCK_SIZE))
        yield HybridRunner(model, KVCache(8, BLOCK_SIZE), chunks_prefill=False)
    else:
        runner = ModelRunner(model, KVCache(8, BLOCK_SIZE))
        yield runner
        if runner.attention.graphs:  # a kernel of a GPU's may want more memory of its processors than an old one has
            plain = ModelRunner(model, KVCache(8, BLOCK_SIZE))
            plain.attention = ReferenceAttention()
            yield plain
    yield OpaqueRunner(model)


def _prompts(vocab_size: int) -> list[list[int]]:
    """Random tokens; all prompts begin alike."""
    generator = torch.Generator().manual_seed(0)
    lengths = [sum(counts) for counts in zip(*STEPS, strict=True)]
    prompts = [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]
    return [prompts[0][:COMMON] + prompt[COMMON:] for prompt in prompts]


def _expected_scores(model: "PreTrainedModel", prompts: list[list[int]]) -> list[torch.Tensor]:
    """`[tokens, vocab]` of each prompt, of the model as transformers ships it. Raises ModelError."""
    name = type(model).__name__
    try:
        scores = _stock_scores(model, prompts)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model may raise anything
        log.exception("trying %s", name)
        raise ModelError(f"{name} fails in transformers itself, on {len(prompts[0])} random tokens") from error
    if not all(torch.isfinite(each).all() for each in scores):
        raise ModelError(f"{name} gives scores that are no numbers{_not_finite(model)}: download its weights again")
    if not _same(scores[0][:COMMON], scores[1][:COMMON], model.dtype):
        raise ModelError(
            f"{name} reads text in both directions (a token's scores change with those after it), so it cannot "
            "continue a text: use a causal language model"
        )
    return scores


def _not_finite(model: "PreTrainedModel") -> str:
    """Which of its weights are none either, in words."""
    named = (name for name, each in model.named_parameters() if each.is_floating_point() and not each.isfinite().all())
    return f" ({name} is not finite)" if (name := next(named, None)) else ""


@torch.inference_mode()
def _stock_scores(model: "PreTrainedModel", prompts: list[list[int]]) -> list[torch.Tensor]:
    """Of one batch: prompts that end before the first go on like it, which changes no score before."""
    device = next(model.parameters()).device
    ids = [prompt + prompts[0][len(prompt) :] for prompt in prompts]
    scores = model(input_ids=torch.tensor(ids, device=device), use_cache=False).logits.float()
    return [row[: len(prompt)] for row, prompt in zip(scores, prompts, strict=True)]


def _agrees(
    runner: Runner,
    prompts: list[list[int]],
    expected: list[torch.Tensor],
    *,
    observed: bool = False,
) -> bool:
    """Whether the runner's scores are the expected ones; `observed`: adapters look at how it gets them."""
    try:
        with runner.lora.observed() if observed else nullcontext():
            return all(
                _same(got, expected[index][row], runner.model.dtype) for index, row, got in _pieces(runner, prompts)
            )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model may raise anything where a way of running does not suit it
        log.info("tier %s does not suit this model: %s", runner.tier, error)
        return False


@torch.inference_mode()
def _keeps_states(runner: Runner, prompt: list[int]) -> bool:
    """Whether every kind of state that a piece of a prompt leaves makes a difference to the next piece.

    One that is begun anew with each piece may change scores by less than `TOLERANCE`, and of long prompts by more.
    """
    if not isinstance(runner, HybridRunner) or not runner.chunks_prefill:
        return True
    sequence, blocks, first = _sequence(prompt, slot=0), BlockManager(8, BLOCK_SIZE), STEPS[0][0]
    runner.run([ScheduledSequence(_grow(sequence, first, blocks), first)])
    sequence.num_computed = first
    piece = ScheduledSequence(_grow(sequence, 2, blocks), 2)  # few tokens: convolutions forget those before

    def scores(changed: str | None) -> torch.Tensor:
        for kind in runner.pool.kinds:
            runner.pool.fill(0, kind, -10.0 if kind == changed else 1.0)
        return runner.run([piece]).scores

    usual = scores(None)
    return not any(torch.equal(scores(kind), usual) for kind in runner.pool.kinds)


def _goes_on(runner: HybridRunner, prompt: list[int], expected: torch.Tensor) -> bool:
    """Whether a prompt continues from a snapshot as it does from its beginning."""
    blocks = StatefulBlocks(8, BLOCK_SIZE, num_slots=2, num_snapshots=1)
    runner.reserve(1)
    first, second = _sequence(prompt), _sequence(prompt)
    blocks.admit(first, ())
    runner.run([ScheduledSequence(_grow(first, STEPS[0][0], blocks), STEPS[0][0])])
    first.num_computed = STEPS[0][0]
    blocks.free(first)
    blocks.admit(_sequence(prompt), ())  # in the slot of the first, so that the second gets another
    blocks.reuse(second)
    blocks.admit(second, ())
    blocks.allocate(second, len(second))
    output = runner.run([ScheduledSequence(second, second.num_uncomputed)], blocks.take_copies())
    agrees = second.num_computed > 0 and _same(output.scores[0], expected[-1], runner.model.dtype)
    if not agrees:
        log.warning("No prefix is reused: this model goes on differently from a copy of its state")
    return agrees


def _pieces(runner: Runner, prompts: list[list[int]]) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Run the prompts in steps; index of the prompt, position and scores at the end of each piece."""
    sequences, blocks = [_sequence(ids, slot) for slot, ids in enumerate(prompts)], BlockManager(8, BLOCK_SIZE)
    try:
        yield from _steps(runner, sequences, blocks)
    finally:
        for sequence in sequences:
            runner.release(sequence)


def _steps(runner: Runner, sequences: list[Sequence], blocks: BlockManager) -> Iterator[tuple[int, int, torch.Tensor]]:
    for counts in STEPS if runner.chunks_prefill else UNCUT_STEPS:
        batch = [
            ScheduledSequence(_grow(sequence, count, blocks), count)
            for sequence, count in zip(sequences, counts, strict=True)
            if count
        ]
        output = runner.run(batch)
        for sequence, count in batch:
            sequence.num_computed += count
        for sequence, row in zip(output.sampled, output.scores, strict=True):
            yield sequences.index(sequence), len(sequence) - 1, row


def _grow(sequence: Sequence, count: int, blocks: BlockManager) -> Sequence:
    """The sequence as if only its next `count` tokens were known."""
    sequence.token_ids = sequence.prompt_ids[: sequence.num_computed + count]
    blocks.allocate(sequence, len(sequence))
    return sequence


def _same(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    tolerance = TOLERANCE.get(dtype, TOLERANCE[torch.float32])
    return bool((got - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1e-3))


def _sequence(ids: list[int], slot: int | None = None) -> Sequence:
    detokenizer = Detokenizer(lambda _: "", lambda _: False, [])
    return Sequence("probe", 0, ids, SamplingParams(), 1, 0, detokenizer, StopStrings(()), slot=slot)
