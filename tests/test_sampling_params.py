"""Options are checked once, in words that name the field, what came and what is allowed."""

import math

import pytest

from nbgen.errors import InvalidRequest
from nbgen.sampling_params import DEFAULT_NEW_TOKENS, MODEL_DEFAULTS, SamplingParams


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"temperature": -0.1}, "temperature", "at least 0"),
        ({"temperature": math.nan}, "temperature", "finite"),
        ({"temperature": math.inf}, "temperature", "finite"),
        ({"max_new_tokens": 10**400}, "max_new_tokens", "at most 2147483648"),
        ({"temperature": "hot"}, "temperature", "float"),
        ({"top_p": 0}, "top_p", "above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p", "at most 1"),
        ({"top_k": 0}, "top_k", "-1 or at least 1"),
        ({"top_k": -2}, "top_k", "-1 or at least 1"),
        ({"top_k": 2.0}, "top_k", "integer"),
        ({"min_p": 1.5}, "min_p", "at most 1"),
        ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
        ({"frequency_penalty": 2.1}, "frequency_penalty", "at most 2"),
        ({"presence_penalty": -2.1}, "presence_penalty", "at least -2"),
        ({"max_new_tokens": -1}, "max_new_tokens", "at least 0"),
        ({"max_new_tokens": 8.0}, "max_new_tokens", "integer"),
        ({"max_new_tokens": True}, "max_new_tokens", "integer"),
        ({"min_new_tokens": 200}, "min_new_tokens", "at most max_new_tokens (128)"),
        ({"stop": ["x"] * 33}, "stop", "at most 32"),
        ({"stop": "x" * 1025}, "stop", "1024 bytes"),
        ({"stop": [1]}, "stop", "str"),
        ({"stop_token_ids": 5}, "stop_token_ids", "array"),
        ({"stop_token_ids": list(range(257))}, "stop_token_ids", "at most 256"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "integers, got 'a'"),
        ({"logit_bias": {"7": "x"}}, "logit_bias", "logit_bias[7] must be a number, got 'x'"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias", "integers, got '1_0'"),
        ({"logit_bias": {" 5": 1}}, "logit_bias", "integers, got ' 5'"),
        ({"logit_bias": {str(2**64): 1}}, "logit_bias", "integers"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "at most 100"),
        ({"ignore_eos": 1}, "ignore_eos", "bool"),
        ({"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias", "at most 1024"),
        ({"n": 129}, "n", "at most 128"),
        ({"n": 2.0}, "n", "integer"),
        ({"min_new_tokens": True}, "min_new_tokens", "integer"),
        ({"sampling_seed": 7.0}, "sampling_seed", "integer"),
        ({"sampling_seed": 2**63}, "sampling_seed", ""),
    ],
)
def test_a_value_outside_its_range_is_refused(options, field: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParams.parse(options)
    assert refusal.value.field == field
    assert field in refusal.value.message
    assert words in refusal.value.message


@pytest.mark.parametrize(
    ("name", "meant"),
    [("temprature", "temperature"), ("max_tokens", "max_new_tokens"), ("seed", "sampling_seed"), ("xyz", "there are")],
)
def test_an_unknown_option_is_refused_and_the_right_one_named(name: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"no option '{name}'.*{meant}"):
        SamplingParams.parse({name: 1})


def test_an_unknown_option_is_repeated_up_to_a_length() -> None:
    with pytest.raises(InvalidRequest, match=r"no option 'a{80}'; there are") as refused:
        SamplingParams.parse({"a" * 10**6: 1})
    assert len(refused.value.message) < 1000


def test_a_top_k_beyond_every_vocabulary_is_the_whole_of_it() -> None:
    assert {SamplingParams.parse({"top_k": value}).top_k for value in (2**31 - 1, 2**31, 2**63)} == {2**31 - 1}


def test_an_empty_stop_string_asks_for_nothing_unless_it_may() -> None:
    assert SamplingParams.parse({"stop": ["", "a"]}).stop == ("a",)
    assert SamplingParams.parse({"stop": ["", "a"]}, empty_stops=True).stop == ("", "a")


def test_null_is_the_default_and_bounds_are_inside() -> None:
    everything = dict.fromkeys(SamplingParams.__struct_fields__)
    everything.pop("max_new_tokens")
    assert SamplingParams.parse(everything) == SamplingParams()
    edges = {"temperature": 0, "top_p": 1, "top_k": 1, "min_p": 1, "repetition_penalty": 2, "frequency_penalty": -2}
    assert SamplingParams.parse(edges).top_p == 1.0


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("stop", ["x"] * 32, ("x",) * 32),
        ("stop", "x" * 1024, ("x" * 1024,)),
        ("stop_regex", ["a"] * 32, ("a",) * 32),
        ("stop_regex", "a" * 256, ("a" * 256,)),
        ("stop_token_ids", list(range(256)), tuple(range(256))),
        ("logit_bias", dict.fromkeys(range(1024), -100), dict.fromkeys(range(1024), -100)),
        ("min_new_tokens", DEFAULT_NEW_TOKENS, DEFAULT_NEW_TOKENS),
        ("sampling_seed", 2**63 - 1, 2**63 - 1),
        ("sampling_seed", -(2**63), -(2**63)),
        ("n", 128, 128),
        ("ebnf", "a" * 65_536, "a" * 65_536),
    ],
)
def test_what_reaches_a_limit_is_taken(name: str, given: object, taken: object) -> None:
    assert getattr(SamplingParams.parse({name: given}), name) == taken


@pytest.mark.parametrize(
    ("options", "greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 9e-7}, True),
        ({"temperature": 1e-6}, False),
        ({"top_k": 1}, True),
        ({"top_k": 2}, False),
        ({}, False),
    ],
)
def test_what_is_greedy(options, greedy: bool) -> None:
    assert SamplingParams.parse(options).greedy is greedy


def test_the_token_limit_left_out_null_and_given() -> None:
    assert SamplingParams.parse({}).token_limit == DEFAULT_NEW_TOKENS
    assert SamplingParams.parse({"max_new_tokens": None}).token_limit is None
    assert SamplingParams.parse({"max_new_tokens": 0}).token_limit == 0


def test_defaults_are_the_requests_then_the_models_then_constants() -> None:
    params = SamplingParams.parse({"temperature": 0.5}).with_defaults({"temperature": 0.9, "top_k": 7})
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 7, MODEL_DEFAULTS["top_p"])
    nothing = SamplingParams().with_defaults({})
    assert (nothing.temperature, nothing.top_p, nothing.top_k) == (1, 1, -1)
    assert (nothing.min_p, nothing.repetition_penalty) == (0, 1)


def test_one_stop_string_and_equal_bias_keys() -> None:
    params = SamplingParams.parse({"stop": "END", "logit_bias": {"1": 1, "01": 2}})
    assert params.stop == ("END",)
    assert params.logit_bias == {1: 2.0}


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_a_grammar_is_text_and_empty_text_is_none(name: str) -> None:
    assert SamplingParams.parse({name: "{}"}).grammar == (name, "{}")
    assert SamplingParams.parse({name: ""}).grammar is None
    with pytest.raises(InvalidRequest, match=name):
        SamplingParams.parse({name: {"type": "object"}})
    with pytest.raises(InvalidRequest, match="NUL"):
        SamplingParams.parse({name: "a\0"})
    with pytest.raises(InvalidRequest, match="65536 bytes"):
        SamplingParams.parse({name: "a" * 70_000})


def test_only_one_grammar_at_a_time() -> None:
    with pytest.raises(InvalidRequest, match="Only one of"):
        SamplingParams.parse({"regex": "a", "ebnf": 'root ::= "a"'})


@pytest.mark.parametrize("name", ["stop", "stop_regex"])
def test_empty_stops_ask_for_nothing(name: str) -> None:
    for nothing in ("", [], [""], [""] * 33):
        assert SamplingParams.parse({name: nothing}) == SamplingParams()
    assert SamplingParams.parse({name: ["", "x"]}) == SamplingParams.parse({name: "x"})


def test_stop_regexes_are_bounded() -> None:
    assert SamplingParams.parse({"stop_regex": "a|b"}).stop_regex == ("a|b",)
    for value in (["a"] * 33, "a" * 257):
        with pytest.raises(InvalidRequest, match="stop_regex"):
            SamplingParams.parse({"stop_regex": value})
