"""Random tokens by one kernel are those that torch finds, in Triton's interpreter."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from nbgen.engine import draws
from tests.conftest import PATIENCE
from tests.engine.kernel_build import NEEDS_TRITON, Usage, compiled
from tests.engine.test_sampler import sequence
from tests.soak import soaking

pytestmark = NEEDS_TRITON

PARAMS = {
    "all": {},
    "hot": {"temperature": 1e308},
    "cold": {"temperature": 1e-5},
    "top-p": {"top_p": 0.95},
    "a narrow top-p": {"top_p": 0.3, "temperature": 1.5},
    "top-k": {"top_k": 20, "temperature": 0.6},
    "a wide top-k": {"top_k": 1000, "top_p": 0.9, "min_p": 1e-4},
    "min-p": {"min_p": 0.05},
    "the likeliest": {"temperature": 0.0},
}


def random_scores(spread: float, rows: int = 6, vocab: int = 20_000) -> torch.Tensor:
    """Rows of more than one block, each of which forbids some tokens."""
    scores = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * spread
    scores[:, ::5] = float("-inf")
    return scores


def odd_scores() -> torch.Tensor:
    """Nothing finite, twice; NaN and infinities beside finite scores, of which one token can be drawn."""
    scores = torch.full((4, 9000), float("-inf"))
    scores[1] = float("nan")
    scores[2, ::2], scores[2, 77] = float("nan"), 1.0
    scores[3, 5], scores[3, 8999] = 1.0, float("inf")
    return scores


def by_torch(scores: torch.Tensor, params) -> list[int]:
    sequences = [sequence(seed, **params) for seed in range(len(scores))]
    return (scores.argmax(-1) if sequences[0].params.greedy else draws.draw(scores, sequences)).tolist()


def by_kernel(scores: torch.Tensor, params) -> list[int]:
    from nbgen.engine.draw_kernel import draw_rows

    return draw_rows(scores, [sequence(seed, **params) for seed in range(len(scores))], -1).tolist()


@pytest.mark.parametrize("spread", [0.3, soaking(4.0)])
@pytest.mark.parametrize("name", PARAMS)
def test_the_kernel_draws_what_torch_draws(name: str, spread: float, interpreter: ProcessPoolExecutor) -> None:
    scores = random_scores(spread)
    assert interpreter.submit(by_kernel, scores, PARAMS[name]).result() == by_torch(scores, PARAMS[name])


@pytest.mark.parametrize("name", ["all", "top-p", "the likeliest"])
def test_only_finite_scores_are_chosen_from(name: str, interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(by_kernel, odd_scores(), PARAMS[name]).result() == [-1, -1, 77, 8999]


#: By which token 77 after three others of a prompt gets one of the 2**28 smallest of 2**53 numbers: 1 less it is 1.
SMALLEST = 70_961_753


def slowest_token(top_p: float) -> list[int]:
    """What is drawn where one token may be, with the slowest of times."""
    from nbgen.engine.draw_kernel import draw_rows

    scores = torch.full((1, 9000), float("-inf"))
    scores[0, 77] = 1.0
    return draw_rows(scores, [sequence(SMALLEST, prompt=(0, 0, 0), top_p=top_p)], -1).tolist()


@pytest.mark.parametrize("top_p", [1.0, 0.95])
def test_the_only_token_wins_however_slow_it_is(top_p: float, interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(slowest_token, top_p).result(timeout=PATIENCE) == [77]


def compiled_draw(folder: Path) -> Usage:
    from nbgen.engine import draw_kernel

    kinds = {"scores": "*fp32", "draws": "*i64", "tokens": "*i64", "size": "i32", "stride": "i32", "none": "i32"}
    constants = {"FIELDS": 7, "BLOCK": draw_kernel.BLOCK}
    types = kinds | dict.fromkeys(constants, "constexpr")
    return compiled(draw_kernel.draw_row, types, constants, folder, num_warps=draw_kernel.WARPS)


def test_its_registers_do_not_spill(compiler: ProcessPoolExecutor, tmp_path: Path) -> None:
    found = compiler.submit(compiled_draw, tmp_path).result()
    assert (found.stack, found.local) == (0, 0)
