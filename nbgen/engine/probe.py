"""Chooses how a model is run, by trying candidates, never by a flag of the model.

A few random tokens go once through the model as transformers ships it and once through each candidate, in pieces. The
first candidate with the same scores wins. If our own C++ won at an earlier start, only it is tried again.
"""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from nbgen.engine import (
    fused_norms,
    linear,
    memory,
    native_delta,
    native_experts,
    native_linear,
    native_scan,
    shared_linear,
    trial,
)
from nbgen.engine.attention import ReferenceAttention
from nbgen.engine.block_manager import BlockManager
from nbgen.engine.compiled import CompiledDecoder
from nbgen.engine.hybrid_runner import HybridRunner
from nbgen.engine.known_scores import KnownScores, Scores
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.model_runner import ModelRunner
from nbgen.engine.native_decoder import NativeDecoder
from nbgen.engine.native_model import NativeModel
from nbgen.engine.opaque_runner import OpaqueRunner
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.state_pool import has_state
from nbgen.engine.stateful_blocks import StatefulBlocks
from nbgen.engine_config import BLOCK_SIZE
from nbgen.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: For each prompt, scores `[vocab]` by position.
Expected = list[torch.Tensor] | Scores

log = logging.getLogger(__name__)

Runner = ModelRunner | OpaqueRunner


def choose_runner(model: "PreTrainedModel", *, copies_weights: bool = True, known: KnownScores | None = None) -> Runner:
    """The fastest runner whose scores are those of `model` itself. It may replace layers of `model` by faster ones.

    Faster layers hold copies of weights: without `copies_weights` there are none. `known` may have the scores of an
    earlier start. Raises ModelError for a model that is not causal, or leaves no memory to compute in.
    """
    try:
        scores = known.recall() if known is not None else None
        return (scores and _as_before(model, scores)) or _chosen(model, copies_weights, known)
    except (RuntimeError, MemoryError, OSError) as error:
        if not memory.ran_out(error):
            raise
        name = type(model).__name__
        log.exception("trying %s", name)
        raise ModelError(f"{name} leaves no memory to compute in: free some, or use a smaller model") from error


def _as_before(model: "PreTrainedModel", scores: Scores) -> Runner | None:
    """A runner whose C++ computes all from ids to scores, if it gives the known `scores`; else restores the model."""
    config, prompts = model.config.get_text_config(), trial.prompts(model)
    attention, swaps = config._attn_implementation, _faster(model, prompts[1])
    runner = (HybridRunner if has_state(model.config) else ModelRunner)(model, KVCache(8, BLOCK_SIZE))
    # First through transformers' own code: this shows which layers adapters suit, and the shapes of states.
    if _agrees(runner, prompts, scores, trial.FIRST_STEPS, observed=True):
        _give_native_layers(runner, prompts, scores)
    if runner.native_model is not None:
        _find_snapshots(runner, prompts[0], scores)
        return runner
    linear.restore(swaps)
    config._attn_implementation = attention
    return None


def _chosen(model: "PreTrainedModel", copies_weights: bool, known: KnownScores | None) -> Runner:
    prompts = trial.prompts(model)
    expected = _expected_scores(model, prompts)
    swaps = _faster(model, prompts[1]) if copies_weights else []
    runner = _first_that_agrees(model, prompts, expected)
    if runner is None and swaps:
        linear.restore(swaps)
        runner = _first_that_agrees(model, prompts, expected)
    if not isinstance(runner, ModelRunner):
        runner = runner or OpaqueRunner(model, cached=False)
        runner.weigh(trial.sequence(prompts[1]), trial.sequence(prompts[0]))
        return runner
    if copies_weights and runner.device.type == "cpu":
        _give_native_layers(runner, prompts, expected)
    elif copies_weights and type(runner) is ModelRunner:
        _fuse(runner, prompts, expected)
    _find_snapshots(runner, prompts[0], expected)
    if known is not None and runner.native_model is not None and runner.chunks_prefill:
        ends = trial.ends(trial.STEPS, trial.FIRST_STEPS)
        known.keep([{end: rows[end] for end in of} for rows, of in zip(expected, ends, strict=True)], model.dtype)
    return runner


def _faster(model: "PreTrainedModel", ids: list[int]) -> list[linear.Swap]:
    """Replace the model's linear layers, experts and linear attention by the fastest that this machine can run."""
    others = native_experts.replace(model) + native_delta.replace(model) + native_scan.replace(model)
    return others + native_linear.replace(model) + shared_linear.share(model, ids) + linear.prepack(model)


def _give_native_layers(runner: ModelRunner, prompts: list[list[int]], expected: Expected) -> None:
    """Use our C++ for all from ids to scores, or for the decoder layers alone, or not at all, as the scores allow.

    All is tried first: it is only made where all code that it replaces is known. The layers alone are not tried
    where some have recurrent state, or where the decoder does not hand them all that they need (`stands_in`).
    """
    stock, pool = runner.stock, runner.pool if isinstance(runner, HybridRunner) else None
    try:
        layers = NativeDecoder(runner.model, runner.lora, pool)
        stock.layers = layers if pool is None and layers.stands_in else None
        runner.native_model = NativeModel(runner.model, layers, runner.cache, runner.attention)
    except Exception as error:  # parts of a model may be anything
        if memory.ran_out(error):
            raise
        place = "around the layers" if stock.layers else "layers and all"
        log.info("transformers' own code runs in place of ours (%s): %s", place, error)
    while (stock.layers or runner.native_model) is not None and not _agrees(runner, prompts, expected):
        place = "around the layers" if runner.native_model else "layers and all"
        log.warning("transformers' own code runs in place of ours, which gives other scores (%s)", place)
        if runner.native_model:
            runner.native_model = None
        else:
            stock.layers = None


def _fuse(runner: ModelRunner, prompts: list[list[int]], expected: Expected) -> None:
    """Run our own kernels from ids to scores, where the model's code is known; else replace norms by fused ones.

    Either is undone if it changes the scores.
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
    """Compile the runner's decoder if that works and keeps the scores; whether it is compiled. Raises ModelError."""
    if type(runner) is not ModelRunner or runner.long_after is not None:
        return False
    if runner.layers_in != "transformers":
        log.info("Not compiled: the model's layers run in code of our own, which is faster")
        return False
    prompts = trial.prompts(runner.model)
    expected = [row for _, _, row in trial.pieces(runner, prompts)]
    decoder = runner.stock.compiled = CompiledDecoder(runner.model)
    try:
        got = [row for _, _, row in trial.pieces(runner, prompts)]
    except Exception:  # a compiler may raise anything about code that it does not understand
        log.warning("This model cannot be compiled; it runs as it is", exc_info=True)
        got = []
    if got and all(trial.same(a, b, runner.model.dtype) for a, b in zip(got, expected, strict=True)):
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
    """Runners, the fastest first. Each is made only after those before it have failed."""
    if has_state(model.config):
        yield HybridRunner(model, KVCache(8, BLOCK_SIZE))
        yield HybridRunner(model, KVCache(8, BLOCK_SIZE), chunks_prefill=False)
    else:
        runner = ModelRunner(model, KVCache(8, BLOCK_SIZE))
        yield runner
        if runner.attention.graphs:  # our kernel may need more shared memory than an old GPU has
            plain = ModelRunner(model, KVCache(8, BLOCK_SIZE))
            plain.attention = ReferenceAttention()
            yield plain
    yield OpaqueRunner(model)


def _expected_scores(model: "PreTrainedModel", prompts: list[list[int]]) -> list[torch.Tensor]:
    """Scores `[tokens, vocab]` of each prompt, from the model as transformers ships it. Raises ModelError."""
    name = type(model).__name__
    try:
        scores = _stock_scores(model, prompts)
    except Exception as error:  # a model may raise anything
        if memory.ran_out(error):
            raise
        log.exception("trying %s", name)
        raise ModelError(f"{name} fails in transformers itself, on {len(prompts[0])} random tokens") from error
    if not all(torch.isfinite(each).all() for each in scores):
        raise ModelError(f"{name} gives scores that are no numbers{_not_finite(model)}: download its weights again")
    if not trial.same(scores[0][: trial.COMMON], scores[1][: trial.COMMON], model.dtype):
        raise ModelError(
            f"{name} reads text in both directions (a token's scores change with those after it), so it cannot "
            "continue a text: use a causal language model"
        )
    return scores


def _not_finite(model: "PreTrainedModel") -> str:
    """The name of a weight that is not finite either, as words to put into an error message."""
    named = (name for name, each in model.named_parameters() if each.is_floating_point() and not each.isfinite().all())
    return f" ({name} is not finite)" if (name := next(named, None)) else ""


@torch.inference_mode()
def _stock_scores(model: "PreTrainedModel", prompts: list[list[int]]) -> list[torch.Tensor]:
    """Compute all prompts in one batch. Shorter ones are filled up from the first: later tokens change no score."""
    device = next(model.parameters()).device
    ids = [prompt + prompts[0][len(prompt) :] for prompt in prompts]
    scores = model(input_ids=torch.tensor(ids, device=device), use_cache=False).logits.float()
    return [row[: len(prompt)] for row, prompt in zip(scores, prompts, strict=True)]


def _agrees(
    runner: Runner,
    prompts: list[list[int]],
    expected: Expected,
    steps: trial.Steps | None = None,
    *,
    observed: bool = False,
) -> bool:
    """Whether the runner's scores are the expected ones. `observed`: see meanwhile which layers can take adapters."""
    try:
        with runner.lora.observed() if observed else nullcontext():
            agrees = all(
                trial.same(got, expected[index][row], runner.model.dtype)
                for index, row, got in trial.pieces(runner, prompts, steps)
            )
        if not agrees:
            log.info("tier %s gives other scores than the model itself", runner.tier)
        return agrees
    except Exception as error:  # a model may raise anything if this runner does not suit it
        if memory.ran_out(error):
            raise
        log.info("tier %s does not suit this model: %s", runner.tier, error)
        return False


@torch.inference_mode()
def _keeps_states(runner: Runner, prompt: list[int]) -> bool:
    """Whether every kind of state that one prompt chunk leaves changes the scores of the next chunk.

    A model that resets a state with each chunk may differ by less than `TOLERANCE` here, and by more in long prompts.
    """
    if not isinstance(runner, HybridRunner) or not runner.chunks_prefill:
        return True
    sequence, blocks, first = trial.sequence(prompt, state_slot=0), BlockManager(8, BLOCK_SIZE), trial.STEPS[0][0]
    runner.run([ScheduledSequence(trial.grow(sequence, first, blocks), first)])
    sequence.num_computed = first
    piece = ScheduledSequence(trial.grow(sequence, 2, blocks), 2)  # with more, a convolution sees no earlier tokens

    def scores(changed: str | None) -> torch.Tensor:
        for kind in runner.pool.kinds:
            runner.pool.fill(0, kind, -10.0 if kind == changed else 1.0)
        return runner.run([piece]).scores

    usual = scores(None)
    return not any(torch.equal(scores(kind), usual) for kind in runner.pool.kinds)


def _find_snapshots(runner: ModelRunner, prompt: list[int], expected: Expected) -> None:
    """Let a model with recurrent state reuse prefixes only if it can go on from snapshots of that state."""
    if isinstance(runner, HybridRunner) and runner.caches_prefixes:
        runner.caches_prefixes = _goes_on(runner, prompt, expected[0][len(prompt) - 1])


def _goes_on(runner: HybridRunner, prompt: list[int], expected: torch.Tensor) -> bool:
    """Whether a prompt that continues from a snapshot gets the `expected` last scores, those of an uncut run."""
    blocks = StatefulBlocks(8, BLOCK_SIZE, num_slots=2, num_snapshots=1)
    runner.pool.reserve(1)
    first, second = trial.sequence(prompt), trial.sequence(prompt)
    blocks.admit(first, ())
    runner.run([ScheduledSequence(trial.grow(first, trial.STEPS[0][0], blocks), trial.STEPS[0][0])])
    first.num_computed = trial.STEPS[0][0]
    blocks.free(first)
    blocks.admit(trial.sequence(prompt), ())  # takes the first one's slot, so that the second gets another
    blocks.reuse(second)
    blocks.admit(second, ())
    blocks.allocate(second, len(second))
    output = runner.run([ScheduledSequence(second, second.num_uncomputed)], blocks.take_copies())
    agrees = second.num_computed > 0 and trial.same(output.scores[0], expected, runner.model.dtype)
    if not agrees:
        log.warning("No prefix is reused: this model goes on differently from a copy of its state")
    return agrees
