"""What is guessed of texts that repeat themselves; and that no answer of a real engine is another for it."""

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from nbgen.engine.assembly import Assembly
from nbgen.engine.drafts import PAIR, Drafts
from nbgen.errors import ModelError
from nbgen.messages import GenerateOutput, GenerateRequest, LogprobOptions, TensorOptions
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.conftest import build, generate, greedy, ids, text
from tests.engine.native_families import COPIES
from tests.engine.test_grammar import constrained
from tests.engine.test_native_decoder import DTYPES, TAKEN
from tests.soak import seldom

#: Which a random model goes on with in circles.
REPEATED = [*range(10, 40), *range(10, 40), *range(10, 14)]
LOOSE = {"max_new_tokens": 120, "ignore_eos": True}
#: So that what is drawn repeats itself.
FEW = dict.fromkeys((33, 34), 40.0)
#: Ways to choose a token, in each of which a guess may come true.
WAYS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 3.0, "logit_bias": FEW, "sampling_seed": 3},
    "filtered": {"temperature": 3.0, "logit_bias": FEW, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "sampling_seed": 4},
    "penalties": {"temperature": 0.0, "frequency_penalty": 0.01, "presence_penalty": 0.05, "repetition_penalty": 1.01},
    "biased": {"temperature": 0.0, "logit_bias": {33: 4.0}},
    "not yet over": {"temperature": 0.0, "ignore_eos": False, "min_new_tokens": 100},
}


class TestDrafts:
    def test_what_followed_last_time_follows_again(self) -> None:
        assert Drafts().guess([1, 2, 3, 4, 5, 9, 1, 2, 3, 6, 7, 9, 1, 2, 3], 8) == [6, 7]

    def test_nothing_is_guessed_of_what_is_new(self) -> None:
        assert Drafts().guess([1, 2, 3, 4, 5, 3, 2], 8) == []
        for length in range(PAIR + 1):
            assert Drafts().guess([1] * length, 8) == []

    def test_the_place_that_is_most_alike_is_taken_and_the_last_of_equals(self) -> None:
        assert Drafts().guess([7, 1, 2, 3, 5, 1, 2, 4, 7, 1, 2], 8) == [3]
        assert Drafts().guess([7, 1, 2, 3, 7, 1, 2, 4, 9, 1, 2], 8) == [4]

    def test_more_is_guessed_where_more_is_alike(self) -> None:
        text = list(range(30))
        lengths = [len(Drafts().guess([*text, 99, *text[:again]], 8)) for again in range(1, 14)]
        assert lengths == [0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8]

    def test_a_circle_goes_on_beyond_its_end(self) -> None:
        assert Drafts().guess([1, 2, 3] * 5, 8) == [1, 2, 3, 1, 2, 3, 1, 2]

    @given(st.lists(st.integers(0, 3), max_size=80), st.integers(0, 9), st.integers(0, 80))
    def test_a_guess_is_what_stood_behind_tokens_that_are_alike(self, tokens: list[int], most: int, seen: int) -> None:
        drafts = Drafts()
        drafts.guess(tokens[:seen], most)
        found = drafts.guess(tokens, most)
        assert found == Drafts().guess(tokens, most), "what was guessed before changes it"
        assert len(found) <= most
        places = [end for end in range(PAIR, len(tokens)) if tokens[end - PAIR : end] == tokens[-PAIR:]]
        whole = [*tokens, *found]
        followed = [place for place in places if continues(whole, place, len(tokens))]
        assert bool(found) == bool(places and most)
        assert followed or not found


def continues(whole: list[int], place: int, end: int) -> bool:
    """Whether what stands from `end` on stood from `place` on, too."""
    return all(whole[i] == whole[i - end + place] for i in range(end, len(whole)))


#: Of which every answer repeats most.
REGEX = "((ab|cd) of some kind, ){9,12}"


def ask(way: dict[str, object], **changes: object) -> GenerateRequest:
    fields = {"rid": "r", "input_ids": REPEATED, "params": SamplingParams(**{**LOOSE, **way}), **changes}
    return GenerateRequest(**fields)


def repeating(folder: Path, family: str) -> Path:
    """A model that repeats itself, as its newest token counts for more than what it makes of all of them."""
    saved = save_model(folder, family.partition(" ")[0], noise=0.0, **TAKEN[family], tie_word_embeddings=True)
    weights = load_file(saved / "model.safetensors")
    weights |= {name: 1.5 * weight for name, weight in weights.items() if "embed_tokens" in name}
    save_file(weights, saved / "model.safetensors", {"format": "pt"})
    return saved


def counts(assembly: Assembly) -> tuple[int, int]:
    status = assembly.engine.status()
    return status.drafted_tokens, status.accepted_tokens


def bits(outputs: list[GenerateOutput]) -> list[object]:
    return [one.token[0] for output in outputs for one in output.logprobs]


#: The last ones remember: by a convolution, a rule of corrections, and a state space.
FAMILIES = ["llama", "lfm2", "qwen3_5_text", "bamba"]


@pytest.fixture(scope="module", params=itertools.product(FAMILIES, DTYPES), ids=lambda of: f"{of[0]}-{of[1]}")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Assembly, Assembly]:
    """One that guesses as it does by itself, and one that never does."""
    family, dtype = request.param
    folder = repeating(tmp_path_factory.mktemp("model"), family)
    name = str(dtype).removeprefix("torch.")
    return build(folder, dtype=name), build(folder, dtype=name, draft_tokens=0)


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_is_the_same_to_the_bit(way: str, pair: tuple[Assembly, Assembly]) -> None:
    guessing, plain = pair
    drafted, accepted = counts(guessing)
    steps = guessing.engine.steps
    request = ask(WAYS[way], logprobs=LogprobOptions(top=2))
    one, other = (generate(assembly, [request])["r"] for assembly in pair)
    assert (ids(one), text(one), bits(one)) == (ids(other), text(other), bits(other))
    assert [output.completion_tokens for output in one] == [output.completion_tokens for output in other]
    assert one[-1].finish_reason == other[-1].finish_reason
    gained = counts(guessing)[1] - accepted
    assert counts(guessing)[0] > drafted
    assert gained > 0, "no guess came true: nothing was tested"
    assert guessing.engine.steps - steps == len(ids(one)) - gained
    assert counts(plain) == (0, 0)


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_a_constrained_answer_is_the_same_and_what_is_the_grammars_alone_is_guessed(
    backend: str, tiny_model: Path
) -> None:
    way = {"temperature": 1.0, "sampling_seed": 8, "ignore_eos": False, "max_new_tokens": 300, "regex": REGEX}
    guessing, plain = (build(tiny_model, draft_tokens=drafts, grammar_backend=backend) for drafts in (None, 0))
    one, other = (constrained(assembly, ask(way))["r"] for assembly in (guessing, plain))
    assert (ids(one), text(one), one[-1].finish_reason) == (ids(other), text(other), other[-1].finish_reason)
    assert other[-1].finish_reason.type == "stop"
    assert counts(guessing)[1] > len(ids(one)) / 2
    for assembly in (guessing, plain):
        assembly.grammars.close()


#: A guess is computed as other tokens of a step are, whose bits are compared for each family elsewhere: these are like
#: one of the others in windows, heads, experts and states.
ALIKE = {
    *("qwen2", "qwen3", "olmo", "olmo2", "phi3", "granite", "mixtral", "olmoe", "qwen2_moe", "deepseek_v2", "phimoe"),
    *("minimax_m2", "nemotron", "starcoder2", "stablelm", "stablelm beside attention", "ministral3", "gptj", "codegen"),
    *("apertus", "nanochat", "cohere", "gemma2", "falcon_h1", "qwen3_next"),
}
#: Those that take longer before they go in circles.
LATE = {"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "bamba", "nemotron_h"}


@pytest.mark.parametrize("family", seldom(TAKEN, COPIES | ALIKE))
def test_greedy_is_transformers_own(family: str, tmp_path: Path) -> None:
    """Windows and heads of all kinds, in a context of several chunks; by itself and beside others."""
    folder = repeating(tmp_path, family)
    assembly = build(folder, draft_tokens=7)
    prompts = [REPEATED * 3, REPEATED[5:], REPEATED[:33]]
    tokens = 120 if family in LATE else 48
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True, temperature=0.0)
    requests = [GenerateRequest(rid=str(i), input_ids=prompt, params=params) for i, prompt in enumerate(prompts)]
    outputs = generate(assembly, requests)
    together = [ids(outputs[str(i)]) for i in range(3)]
    expected = greedy(folder, prompts, tokens, together)
    assert together == expected
    assert ids(generate(assembly, [requests[0]])["0"]) == expected[0]
    assert counts(assembly)[1] > 0, "no guess came true: nothing was tested"


def test_guesses_that_a_neighbour_keeps_from_being_computed_harm_nobody(tmp_path: Path) -> None:
    """Who asks for experts has the step computed by transformers' code, where states take no guesses."""
    assembly = build(repeating(tmp_path, "lfm2_moe"), draft_tokens=7)
    written = ask({"max_new_tokens": 300, "ignore_eos": False, "regex": REGEX})
    neighbour = ask({"max_new_tokens": 8}, rid="neighbour", tensors=TensorOptions(routed_experts=0))
    beside = constrained(assembly, written, neighbour)["r"]
    assert counts(assembly)[0] > 0
    assert re.fullmatch(REGEX, text(beside))
    assert assembly.engine.status().preemptions == 0, "no step failed"


def test_nothing_is_guessed_where_each_token_has_experts_of_its_own(tmp_path: Path) -> None:
    assembly = build(save_model(tmp_path, "mixtral", **TAKEN["mixtral"]))
    assert (assembly.model.layers_in, assembly.model.draft_tokens) == ("C++", 0)


def test_what_ends_an_answer_ends_it_within_a_guess(pair: tuple[Assembly, Assembly]) -> None:
    token = ids(generate(pair[1], [ask(WAYS["greedy"])])["r"])[40]
    letter = text(generate(pair[1], [ask(WAYS["greedy"])])["r"])[30:32]
    for way in ({"stop_token_ids": (token,), "ignore_eos": False}, {"stop": (letter,)}, {"max_new_tokens": 41}):
        one, other = (generate(assembly, [ask({**WAYS["greedy"], **way})])["r"] for assembly in pair)
        assert (ids(one), text(one), one[-1].finish_reason) == (ids(other), text(other), other[-1].finish_reason)
        status = pair[0].engine.status()
        assert status.blocks_free == status.blocks_total


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_cached_afterwards_is_the_same(family: str, tmp_path: Path) -> None:
    folder = repeating(tmp_path, family)
    cached, scores = [], []
    for drafts in (None, 0):
        assembly = build(folder, draft_tokens=drafts)
        answer = ids(generate(assembly, [ask(WAYS["greedy"])])["r"])
        assert (counts(assembly)[1] > 0) == (drafts is None)
        later = {"max_new_tokens": 3, "temperature": 0.0}
        more = ask(later, input_ids=[*REPEATED, *answer, 5, 6], logprobs=LogprobOptions(top=2))
        again = generate(assembly, [more])["r"]
        cached.append(again[0].cached_tokens)
        scores.append(bits(again))
    assert cached == [len(REPEATED) + LOOSE["max_new_tokens"] - 1] * 2
    assert scores[0] == scores[1]


@pytest.mark.parametrize(("family", "room"), [("llama", 160), ("lfm2", 160), ("qwen3_5_text", 320), ("bamba", 320)])
def test_who_gives_way_goes_on_alike(family: str, room: int, tmp_path: Path) -> None:
    folder = repeating(tmp_path, family)
    cramped = build(folder, kv_cache_bytes=room * 1024)
    requests = [ask(WAYS["greedy"], rid=str(i), input_ids=REPEATED[i:]) for i in range(4)]
    tight, roomy = generate(cramped, requests), generate(build(folder, draft_tokens=0), requests)
    assert {rid: ids(found) for rid, found in tight.items()} == {rid: ids(found) for rid, found in roomy.items()}
    assert cramped.engine.status().preemptions > 0
    assert counts(cramped)[1] > 0
    assert cramped.engine.status().blocks_free == cramped.engine.status().blocks_total


def test_an_answer_that_more_than_its_ids_decide_is_not_guessed(tiny_engine: Assembly) -> None:
    before = counts(tiny_engine)
    generate(tiny_engine, [ask(WAYS["greedy"], tensors=TensorOptions(hidden_states=True))])
    assert counts(tiny_engine) == before


def test_a_model_of_other_layers_is_asked_for_guesses_or_makes_none(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "jetmoe", "jetmoe")
    unasked, asked = build(folder), build(folder, draft_tokens=4)
    one, other = (generate(assembly, [ask(WAYS["greedy"])])["r"] for assembly in (unasked, asked))
    assert counts(unasked) == (0, 0)
    assert counts(asked)[1] > 0
    assert ids(one) == ids(other)
    with pytest.raises(ModelError, match="draft_tokens is 4"):
        build(save_model(tmp_path / "mamba", "mamba"), draft_tokens=4)
