"""Triton's options: from whatever type they come in to what the engine is asked, without a model."""

import json
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.protocols.triton_options import OPTIONS, Options, gather, specs
from nbgen.protocols.triton_sampling import adapter, priority, refuse_unsupported, sampling_params, word_lists
from nbgen.sampling_params import SamplingParams
from nbgen.word_lists import WordLists


def params(**options: Any) -> SamplingParams:
    return sampling_params(gather(options, {}))


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("max_tokens", "7", 7),
        ("max_tokens", 7.0, 7),
        ("temperature", "0.5", 0.5),
        ("temperature", 1, 1.0),
        ("stream", "True", True),
        ("stream", False, False),
        ("stop", "a", ["a"]),
        ("stop", ["a", "", "b"], ["a", "b"]),
        ("stop_token_ids", ["3", 4], [3, 4]),
        ("end_id", 2, 2),
        ("logit_bias", {"1": 2}, '{"1":2}'),
        ("lora_name", "a", "a"),
        ("seed", 2**64 - 1, 2**64 - 1),
    ],
)
def test_values_are_cast_to_their_options_types(name: str, given: Any, taken: Any) -> None:
    found = gather({name: given}, {})
    assert found == {name: taken}
    assert type(found[name]) is type(taken)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("max_tokens", 1.5, "an integer, got '1.5'"),
        ("max_tokens", True, "an integer, got 'True'"),
        ("max_tokens", "x", "an integer, got 'x'"),
        ("seed", [1], "an integer"),
        ("temperature", "nan", "a finite number, got 'nan'"),
        ("temperature", 10**400, "a finite number"),
        ("stream", 1, "true or false, got '1'"),
        ("stream", "yes", "true or false"),
        ("stop_token_ids", [1, 1.5], "an integer"),
        ("max_tokens", "1_0", "an integer, got '1_0'"),
        ("temperature", "1_0", "a finite number"),
        ("temperature", True, "a finite number, got 'True'"),
        ("stop", {"a": 1}, "text or a list of text"),
        ("bad_words", ["a", 5], "text or a list of text, got 5"),
    ],
)
def test_what_cannot_be_cast_is_refused_by_its_name(name: str, given: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^sampling_param_{name} must be {words}"):
        gather({f"sampling_param_{name}": given}, {})


@pytest.mark.parametrize(
    ("name", "value", "option", "taken"),
    [
        ("guided_decoding", {"regex": "[0-9]{3}"}, "regex", "[0-9]{3}"),
        ("guided_decoding", '{"regex": "[0-9]{3}"}', "regex", "[0-9]{3}"),
        ("guided_regex", "a|b", "regex", "a|b"),
        ("guided_choice", ["a", "b"], "regex", "a|b"),
        ("guided_grammar", 'root ::= "a"', "ebnf", 'root ::= "a"'),
        ("guided_json", {"type": "object"}, "json_schema", '{"type":"object"}'),
    ],
)
def test_structured_output_has_the_names_of_every_vllm(name: str, value: Any, option: str, taken: str) -> None:
    asked = params(sampling_parameters=json.dumps({name: value}))
    assert getattr(asked, option) == taken


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"guided_whitespace_pattern": " "}, "'whitespace_pattern' is not supported"),
        ({"guided_decoding_guide": "x"}, "needs guided_decoding_guide_type"),
        ({"structured_outputs": {"shape": 1}}, "of the kind 'shape' is not supported"),
        ({"structured_outputs": "["}, "structured_outputs must be a JSON object as text"),
        ({"structured_outputs": {"regex": 5}}, "regex"),
        ({"logit_bias": {"x": 1}}, "logit_bias keys must be token ids"),
        ({"guided_decoding": {"regex": "a", "json": {}}}, "Only one of"),
        (
            {"guided_regex": "a", "guided_decoding": {"regex": "b"}},
            r"Only one of guided_decoding\.regex and guided_regex can be set",
        ),
        (
            {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a", "guided_regex": "b"},
            "Only one of",
        ),
    ],
)
def test_structured_output_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        params(sampling_parameters=json.dumps(options))


@pytest.mark.parametrize("value", [-5, "1", True, 1.5])
def test_a_priority_is_a_whole_number(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="Unable to parse 'priority': expected unsigned integer"):
        priority(value)
    assert (priority(None), priority(0)) == (0, 0)
    assert priority(1) > priority(2) > 0


@pytest.mark.parametrize(("name", "value"), [("temperature", float("nan")), ("runtime_top_p", float("inf"))])
def test_a_tensors_number_is_finite(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name} must be a finite number, got '{value}'"):
        gather({}, {name: [value]})


def test_tensors_win_over_sampling_parameters_and_these_over_parameters() -> None:
    text = '{"max_tokens": 2, "top_k": 2}'
    found = gather({"max_tokens": 1, "top_k": 1, "seed": 1, "sampling_parameters": text}, {"max_new_tokens": [3]})
    assert found == {"max_tokens": 3, "top_k": 2, "seed": 1}
    assert found.written == {"max_tokens": "max_new_tokens", "top_k": "top_k", "seed": "seed"}
    assert "top_k" not in gather({"sampling_parameters": text}, {"sampling_parameters": ['{"seed": 4}']})
    assert gather({"top_k": None, "stop": [], "unknown": 1}, {"top_p": []}) == {}
    assert gather({}, {"stop_words": ["a", "b"], "top_k": [5]}) == {"stop": ["a", "b"], "top_k": 5}


def test_every_name_is_an_input_once_and_the_best_known_are_shown() -> None:
    shown, hidden = ([spec.name for spec in specs(shown=shown)] for shown in (True, False))
    assert sorted(shown + hidden) == sorted(name for option in OPTIONS for name in (option.name, *option.aliases))
    assert {"max_tokens", "request_output_len", "stream", "streaming"} <= set(shown)
    assert {"max_new_tokens", "lora_name"} <= set(hidden)
    assert next(spec.also for spec in specs(shown=True) if spec.name == "temperature") == ("FP64",)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"max_new_tokens": 16, "min_new_tokens": 0}),
        ({"max_tokens": 2**40}, {"max_new_tokens": 2**31}),
        ({"top_p": 0.0, "top_k": 0}, {"top_p": 1.0, "top_k": -1}),
        ({"top_p": 0.5, "top_k": 3}, {"top_p": 0.5, "top_k": 3}),
        ({"seed": 2**63}, {"sampling_seed": -(2**63)}),
        ({"seed": 2**64 - 1}, {"sampling_seed": -1}),
        ({"end_id": 2, "stop_token_ids": [5, -1]}, {"stop_token_ids": (5, 2)}),
        ({"end_id": -1}, {"stop_token_ids": ()}),
        ({"stop_words_list": [7, 8, 9, 1, 3, -1]}, {"stop_token_ids": (7,)}),
        ({"include_stop_str_in_output": True}, {"no_stop_trim": True}),
        ({"ignore_eos": True, "min_tokens": 3}, {"ignore_eos": True, "min_new_tokens": 3}),
    ],
)
def test_what_the_engine_is_asked(options: dict[str, Any], expected: dict[str, Any]) -> None:
    found = Options()
    found.update(options)
    asked = sampling_params(found)
    assert {name: getattr(asked, name) for name in expected} == expected


def test_without_new_tokens_the_prompt_alone_is_computed() -> None:
    asked = sampling_params(gather({"max_tokens": 5, "min_tokens": 3}, {}), new_tokens=False)
    assert (asked.max_new_tokens, asked.min_new_tokens) == (0, 0)


def test_words_of_several_tokens_are_told_from_single_ones() -> None:
    lists = word_lists({"stop_words_list": [7, 8, 9, 1, 3, -1], "bad_words_list": [4, 5, 1, 2], "bad_words": ["x", ""]})
    assert lists is not None
    assert (lists.stop_ids, lists.bad_ids, lists.bad) == ([[8, 9]], [[4], [5]], ["x"])
    assert word_lists({"stop_words_list": [7, 0, 1, -1], "bad_words": ""}) is None
    assert word_lists({"bad_words_list": [7, 8, -1, -1]}) is None
    assert word_lists({"bad_words_list": [7, 8, 1, 1]}) == WordLists(bad_ids=[[7]])


@pytest.mark.parametrize("words", [[1, 2, 3], [1, 2, 2, 1], [1, 2, 1, 3], [0] * 8194])
def test_lists_of_words_that_do_not_add_up_are_refused(words: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=r"bad_words_list must be \[2, n\]"):
        word_lists({"bad_words_list": words})


@pytest.mark.parametrize(
    ("name", "value"),
    [("runtime_top_p", 5), ("sampling_param_top_k", -5), ("num_return_sequences", 999), ("stop_sequences", ["a"] * 33),
     ("max_output_tokens", -1), ("min_length", -1)],
)  # fmt: skip
def test_what_the_engine_refuses_is_named_as_the_caller_wrote_it(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"^{name} must be") as refusal:
        sampling_params(gather({name: value}, {}))
    assert refusal.value.field == name


@pytest.mark.parametrize(
    ("options", "words"),
    [({"beam_width": 2}, "beam_width is 2"), ({"stop": [True]}, "cancel another"), ({"stop": ["a", True]}, "cancel")],
)
def test_what_would_have_to_be_ignored_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        refuse_unsupported(options)
    refuse_unsupported({"beam_width": 1, "best_of": 0, "n": 3, "stop": ["True"]})
    with pytest.raises(InvalidRequest, match="lora_name must be"):
        adapter({"lora_name": True})
