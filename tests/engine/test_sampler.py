"""Sampled tokens follow the exact distribution, and only a request's own parameters touch it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbgen.engine import draws
from nbgen.engine.adjustments import adjust
from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.native_draws import NativeDraws
from nbgen.engine.sampler import NO_TOKEN, Sampler
from nbgen.engine.sequence import Sequence
from nbgen.sampling_params import SamplingParams
from tests.soak import soaking

SCORES = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, 1.5])
DRAWS = 4000
#: The 99.9% point of chi-squared with 1 to 7 degrees of freedom.
CHI_SQUARED = (None, 10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32)


def sequence(seed: int = 0, output: tuple[int, ...] = (), prompt: tuple[int, ...] = (0,), **params) -> Sequence:
    options = SamplingParams(**params).with_defaults({})
    s = Sequence(
        "r", 0, list(prompt), options, 99, seed, Detokenizer(lambda _: "", lambda _: False, []), StopStrings(())
    )
    s.token_ids += output
    return s


def ours() -> NativeDraws:
    found = NativeDraws.of(torch.float32)
    assert found is not None
    return found


def sample(sequences: list[Sequence], scores: torch.Tensor = SCORES, eos: frozenset[int] = frozenset()) -> list[int]:
    """By torch and by our own code, which choose the same."""
    samplers = Sampler(eos), Sampler(eos, native=ours())
    by_torch, by_ours = (each.sample(scores.repeat(len(sequences), 1), sequences).tolist() for each in samplers)
    assert by_torch == by_ours
    return by_torch


def expected(top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0, temperature: float = 1.0) -> torch.Tensor:
    """The joint filter written out token by token, in float64."""
    probabilities = torch.softmax(SCORES.double() / temperature, dim=-1).tolist()
    order = sorted(range(len(probabilities)), key=lambda t: -probabilities[t])
    kept, mass = torch.zeros(len(probabilities), dtype=torch.float64), 0.0
    for rank, token in enumerate(order):
        p = probabilities[token]
        if rank == 0 or ((top_k == -1 or rank < top_k) and mass <= top_p and p >= min_p * probabilities[order[0]]):
            kept[token] = p
        mass += p
    return kept / kept.sum()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.8, "min_p": 0.05, "temperature": 1.7},
    ],
)
def test_draws_follow_the_distribution(params) -> None:
    tokens = torch.tensor(sample([sequence(seed, **params) for seed in range(DRAWS)]))
    observed = torch.bincount(tokens, minlength=len(SCORES)).double()
    wanted = expected(**params) * DRAWS
    possible = wanted > 0
    assert observed[~possible].sum() == 0, "a filtered token was drawn"
    statistic = ((observed - wanted)[possible] ** 2 / wanted[possible]).sum()
    assert statistic < CHI_SQUARED[int(possible.sum()) - 1]


@pytest.mark.parametrize("params", [{"top_p": 0.99}, soaking({"top_k": 1000}), soaking({"min_p": 1e-4})])
def test_filters_that_keep_many_tokens_are_exact(params) -> None:
    """More than the candidates that are looked at first."""
    scores = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    probabilities = torch.softmax(scores.double(), dim=-1)
    ordered, ids = probabilities.sort(descending=True)
    kept = (torch.arange(2000) < params.get("top_k", 2000)) & (ordered >= params.get("min_p", 0) * ordered[0])
    kept &= ordered.cumsum(-1) - ordered <= params.get("top_p", 1)
    allowed = ids[kept]
    tokens = torch.tensor(sample([sequence(seed, **params) for seed in range(DRAWS)], scores))
    assert torch.isin(tokens, allowed).all()
    common, others = torch.isin(tokens, allowed[:256]).sum().item(), probabilities[allowed[256:]].sum()
    share = probabilities[allowed[:256]].sum() / (probabilities[allowed[:256]].sum() + others)
    assert others > 0.05, "or the test shows nothing"
    assert abs(common - share * DRAWS) < 4 * (DRAWS * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(
    ("race", "params"),
    [
        (draws._race_sorted, {"top_p": 0.99}),
        (draws._race_sorted, {"min_p": 1e-4}),
        (draws._race_sorted, {"top_k": 1000, "top_p": 0.9}),
        (draws._race_few, {"top_k": 256}),
        (draws._race_few, {"top_k": 40, "top_p": 0.8}),
    ],
)
def test_what_a_gpu_draws_without_looking_is_the_same(race: draws.Race, params) -> None:
    sequences = [sequence(seed, **params) for seed in range(500)]
    assert all(draws._race_of(s, may_look=False) is race for s in sequences)
    scores = torch.randn(500, 2000, generator=torch.Generator().manual_seed(0)) * 2
    probabilities = torch.softmax(scores, dim=-1)
    assert race(probabilities, sequences).tolist() == draws._race_likely(probabilities, sequences).tolist()


def test_positions_and_seeds_are_independent() -> None:
    by_position = sample([sequence(7, prompt=(0,) * n) for n in range(1, 400)])
    by_seed = sample([sequence(n) for n in range(1, 400)])
    assert len(set(by_position)) > 4
    assert by_position != by_seed


def test_a_row_is_the_same_whatever_is_beside_it() -> None:
    mixed = [sequence(3, temperature=1.0), sequence(4, temperature=0.0), sequence(5, top_k=2, frequency_penalty=2.0)]
    assert sample(mixed) == [sample([s])[0] for s in mixed]


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert sample([sequence(temperature=0.0)], torch.tensor([0.0, 3.0, 3.0])) == [1]
    assert sample([sequence(top_k=1, temperature=0.7)]) == [0]


def penalized(scores: list[float], output: tuple[int, ...], **params) -> list[float]:
    row = torch.tensor(scores)
    adjust(row[None], [sequence(output=output, **params)], frozenset())
    return row.tolist()


def test_penalties_count_output_tokens_only() -> None:
    row = penalized([1.0, 1.0, -1.0, 1.0], (1, 1, 2), frequency_penalty=0.5, presence_penalty=0.25)
    assert row == pytest.approx([1.0, 1.0 - 2 * 0.5 - 0.25, -1.0 - 0.5 - 0.25, 1.0])
    row = penalized([1.0, 1.0, -1.0, 1.0], (1, 1, 2), repetition_penalty=2.0)
    assert row == pytest.approx([1.0, 0.5, -2.0, 1.0])


class Watched(list):
    """A list that knows how much of it was read at once."""

    most = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.most = max(self.most, len(found) if isinstance(key, slice) else 1)
        return found


@given(st.lists(st.lists(st.integers(0, 7), max_size=5), max_size=8))
def test_penalties_count_a_growing_output_as_if_it_were_new(pieces: list[list[int]]) -> None:
    options = {"frequency_penalty": 0.3, "presence_penalty": 0.1, "repetition_penalty": 1.7}
    growing = sequence(**options)
    growing.bad_words = ((0, 0, 7),)
    growing.token_ids = Watched(growing.token_ids)
    for i, piece in enumerate(pieces):
        growing.token_ids.most = 0
        growing.token_ids += piece
        output = tuple(token for piece in pieces[: i + 1] for token in piece)
        fresh = sequence(output=output, **options)
        fresh.bad_words = growing.bad_words
        rows = SCORES.repeat(2, 1)
        adjust(rows[:1], [growing], frozenset())
        assert growing.token_ids.most <= max(len(piece), 3), "no more than what is new, and a word, is looked at"
        adjust(rows[1:], [fresh], frozenset())
        assert rows[0].tolist() == rows[1].tolist()
        ids, counts = np.unique(output, return_counts=True)
        assert [part.tolist() for part in growing.output_counts.arrays()] == [ids.tolist(), counts.tolist()]


def test_rows_are_adjusted_together_as_each_alone() -> None:
    asking = [
        sequence(output=(1, 1, 2), frequency_penalty=0.5, repetition_penalty=1.5),
        sequence(),
        sequence(output=(3,), presence_penalty=1.0, logit_bias={3: 2.0, 7: -1.0}),
        sequence(repetition_penalty=2.0, logit_bias={0: 5.0}, min_new_tokens=1),
        sequence(output=(5, 5), repetition_penalty=0.5),
    ]
    asking[4].bad_words = ((5, 6), (7,))
    together = SCORES.repeat(len(asking), 1)
    adjust(together, asking, frozenset({4}))
    for row, one in zip(together, asking, strict=True):
        alone = SCORES.clone()[None]
        adjust(alone, [one], frozenset({4}))
        assert row.tolist() == alone[0].tolist()
    assert together[1].tolist() == SCORES.tolist()
    assert [together[3, 4].item(), together[4, 6].item(), together[4, 7].item()] == [float("-inf")] * 3
    assert together[2, 3] == SCORES[3] - 1.0 + 2.0


def test_bias_forces_and_forbids() -> None:
    assert sample([sequence(temperature=0.0, logit_bias={6: 100.0})]) == [6]
    assert sample([sequence(temperature=0.0, logit_bias={0: -100.0})]) == [7]


def test_min_new_tokens_holds_the_end_back() -> None:
    eos = frozenset({0})
    assert sample([sequence(temperature=0.0, min_new_tokens=2)], eos=eos) == [7]
    assert sample([sequence(temperature=0.0, min_new_tokens=2, output=(1, 1))], eos=eos) == [0]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_finite_score_is_said_and_not_guessed(value: float, temperature: float) -> None:
    rows = torch.stack([torch.full_like(SCORES, value), SCORES])
    tokens = Sampler().sample(rows, [sequence(temperature=temperature), sequence(temperature=0.0)]).tolist()
    assert tokens == [NO_TOKEN, 0]


@pytest.mark.parametrize("temperature", [5e-324, 1e-5])
def test_the_coldest_take_the_likeliest(temperature: float) -> None:
    assert sample([sequence(temperature=temperature)] * 9) == [0] * 9


def test_the_hottest_take_any_token_that_is_not_forbidden() -> None:
    scores = torch.cat([SCORES, torch.full((2,), float("-inf"))])
    assert set(sample([sequence(seed, temperature=1e308) for seed in range(200)], scores)) == set(range(len(SCORES)))


@pytest.mark.parametrize("spread", [0.1, 2.0, 8.0])
@pytest.mark.parametrize(
    "params", [{}, {"top_p": 0.95}, {"top_k": 40, "top_p": 0.9}, {"min_p": 0.02}, {"top_k": 1000, "temperature": 0.5}]
)
def test_our_own_code_draws_what_torch_draws_from_a_large_vocabulary(spread: float, params) -> None:
    scores = torch.randn(24, 32_000, generator=torch.Generator().manual_seed(0)) * spread
    scores[:, ::5] = float("-inf")
    sequences = [sequence(seed, **params) for seed in range(24)]
    expected = draws.draw(scores, sequences)
    assert ours().draw(scores, list(range(24)), sequences).tolist() == expected.tolist()
    some = [3, 1, 20]
    assert ours().draw(scores, some, [sequences[row] for row in some]).tolist() == expected[some].tolist()


def test_of_equal_scores_as_many_are_kept_as_are_asked_for() -> None:
    scores = torch.zeros(1, 3000)
    found = {ours().draw(scores, [0], [sequence(seed, top_k=10)]).item() for seed in range(300)}
    assert found == set(range(10)), "the first of them"
