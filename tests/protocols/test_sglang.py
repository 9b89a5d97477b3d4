"""SGLang's request body: grouping, ids, types, and what is refused in which shape."""

import json
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.protocols.json_body import MAX_TEXT_BYTES, MalformedBody
from nbgen.protocols.sglang import (
    MAX_PROMPTS,
    ContractError,
    Generation,
    SchemaError,
    parse_abort,
    parse_generate,
    parse_pause,
    parse_timeout,
)
from nbgen.protocols.sglang_unsupported import IN_GENERATE, IN_SAMPLING


def parse(**fields: Any) -> Generation:
    return parse_generate(json.dumps(fields).encode())


def test_text_alone_is_a_single_request_with_the_documented_defaults() -> None:
    generation = parse(text="hi", model="ignored")
    assert generation.single
    assert not generation.stream
    (request,) = generation.requests
    assert (request.text, len(request.rid)) == ("hi", 32)


def test_reasoning_may_be_required() -> None:
    assert [parse(text=["a", "b"], require_reasoning=wish).requests[1].thoughts for wish in (True, False, None)] == [
        True,
        False,
        False,
    ]
    with pytest.raises(ContractError, match="require_reasoning"):
        parse(text="a", require_reasoning="yes")


def test_the_engine_knows_which_requests_are_streamed() -> None:
    assert [parse(text="hi", stream=stream).requests[0].streamed for stream in (True, False)] == [True, False]


@pytest.mark.parametrize(
    "prompts", [{"text": ["a"]}, {"input_ids": [[1, 2]]}, {"text": "a", "sampling_params": {"n": 2}}]
)
def test_a_list_or_several_samples_answer_a_list(prompts: dict[str, Any]) -> None:
    assert not parse(**prompts).single


def test_an_empty_list_of_prompts_is_an_empty_batch() -> None:
    assert parse(text=[]).requests == []


def test_ids_win_over_text() -> None:
    (request,) = parse(text="hi", input_ids=[3, 4]).requests
    assert request.input_ids == [3, 4]
    assert request.text is None


def test_text_decides_the_shape_where_ids_come_beside_it() -> None:
    assert parse(text="hi", input_ids=[[3, 4]]).single
    assert not parse(text=["hi"], input_ids=[3, 4]).single
    with pytest.raises(InvalidRequest, match="different numbers of prompts"):
        parse(text=["a", "b"], input_ids=[[3, 4]])


def test_adapters_and_processors_are_broadcast_or_taken_by_prompt() -> None:
    same = parse(text=["a", "b"], lora_path="x", custom_logit_processor="p").requests
    assert [(r.adapter, r.logit_processor) for r in same] == [("x", "p")] * 2
    each = parse(text=["a", "b"], lora_path=["x", None], custom_logit_processor=[None, "p"]).requests
    assert [(r.adapter, r.logit_processor) for r in each] == [("x", None), ("", "p")]
    for name in ("lora_path", "custom_logit_processor"):
        with pytest.raises(InvalidRequest, match=name):
            parse(text=["a", "b"], **{name: ["x"]})


def test_who_shares_the_cache_and_who_comes_first() -> None:
    assert (parse(text="a").requests[0].namespace, parse(text="a").requests[0].priority) == ((), 0)
    assert parse(text="a", extra_key="k", priority=-3).requests[0].namespace == ("k", "")
    assert parse(text="a", cache_salt="s", priority=-3).requests[0].namespace == ("", "s")
    assert parse(text="a", cache_salt="s", priority=-3).requests[0].priority == -3
    each = parse(text=["a", "b", "c"], extra_key=["k", None, "k"], cache_salt=["s", "s", None]).requests
    assert [request.namespace for request in each] == [("k", "s"), ("", "s"), ("k", "")]
    same = parse(text=["a", "b"], extra_key="k", sampling_params={"n": 2}).requests
    assert [request.namespace for request in same] == [("k", "")] * 2
    for wrong in (["k"], ["k", 5]):
        with pytest.raises(InvalidRequest, match="extra_key"):
            parse(text=["a", "b"], extra_key=wrong)


def test_requests_of_one_call_are_of_one_group() -> None:
    assert len({r.group for r in parse(text=["a", "b"]).requests}) == 1
    assert parse(text="a").requests[0].group != parse(text="a").requests[0].group


def test_each_prompt_has_the_interval_of_its_own_parameters() -> None:
    assert parse(text="a").intervals == [None]
    batch = [{"stream_interval": None}, {"stream_interval": 1}, {"stream_interval": 9}]
    assert parse(text=["a", "b", "c"], sampling_params=batch).intervals == [None, 1, 9]
    assert parse(text=["a", "b"], sampling_params={"stream_interval": 2}).intervals == [2, 2]
    with pytest.raises(InvalidRequest, match="at least 1, got 0"):
        parse(text="a", sampling_params={"stream_interval": 0})


def test_as_much_as_may_be_is_taken() -> None:
    assert len(parse(text=["a"] * (MAX_PROMPTS // 2), sampling_params={"n": 2}).requests) == MAX_PROMPTS // 2
    longest = "é" * (MAX_TEXT_BYTES // 2)
    assert parse_generate(f'{{"text": "{longest}"}}'.encode()).single
    with pytest.raises(InvalidRequest, match=f"longer than {MAX_TEXT_BYTES} bytes"):
        parse_generate(f'{{"text": "{longest}a"}}'.encode())
    assert parse(input_ids=[0, 2**31 - 1]).requests[0].input_ids == [0, 2**31 - 1]


def test_sampling_params_are_broadcast_or_taken_by_prompt() -> None:
    same = parse(text=["a", "b"], sampling_params={"max_new_tokens": 3})
    assert [r.params.max_new_tokens for r in same.requests] == [3, 3]
    each = parse(text=["a", "b"], sampling_params=[{"max_new_tokens": 3}, {"max_new_tokens": 4}])
    assert [r.params.max_new_tokens for r in each.requests] == [3, 4]


@pytest.mark.parametrize(
    "fields",
    [
        {"rid": ["x"]},
        {"lora_path": [None]},
        {"return_hidden_states": [True]},
        {"extra_key": ["k"]},
        {"sampling_params": [{"n": 2, "max_new_tokens": 1}]},
    ],
)
def test_a_prompt_of_several_samples_is_a_batch_of_one(fields: dict[str, Any]) -> None:
    fields = {"sampling_params": {"n": 2, "max_new_tokens": 1}, **fields}
    generation = parse(text="a", **fields)
    assert not generation.single
    assert [request.params.n for request in generation.requests] == [2]


def test_a_list_that_goes_with_samples_is_refused_in_true_words() -> None:
    with pytest.raises(InvalidRequest, match=r"one for each prompt of a batch$"):
        parse(text=["a", "b"], lora_path=["x"], sampling_params={"n": 2})


def test_a_list_of_custom_params_has_one_for_each_prompt() -> None:
    sampling = {"custom_params": [{"a": 1}, None], "max_new_tokens": 3}
    params = [request.params for request in parse(text=["a", "b"], sampling_params=sampling).requests]
    assert [(each.custom_params, each.max_new_tokens) for each in params] == [({"a": 1}, 3), (None, 3)]
    (single,) = parse(text="a", sampling_params={"custom_params": [{"a": 1}]}).requests
    assert single.params.custom_params == {"a": 1}


def test_an_empty_stop_string_counts_here() -> None:
    assert [parse(text="a", sampling_params={"stop": given}).requests[0].params.stop for given in ("", ["", "x"])] == [
        ("",),
        ("", "x"),
    ]


def test_rids() -> None:
    assert [r.rid for r in parse(text="a", rid="x").requests] == ["x"]
    assert [r.rid for r in parse(text=["a", "b"], rid="x").requests] == ["x_0", "x_1"]
    assert [r.rid for r in parse(text=["a", "b"], rid=["x", "y"]).requests] == ["x", "y"]
    assert parse(text="a", rid="x", sampling_params={"n": 2}).requests[0].rid != "x"


def test_n_of_zero_or_null_is_one() -> None:
    assert parse(text="a", sampling_params={"n": 0}).single
    assert parse(text="a", sampling_params={"n": None}).single
    with pytest.raises(ContractError, match="n"):
        parse(text="a", sampling_params={"n": False})


@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"{", b'{"text": NaN}', b'{"text":"a","text":"b"}'])
def test_a_body_that_is_no_object_is_a_schema_error(body: bytes) -> None:
    with pytest.raises((SchemaError, MalformedBody)):
        parse_generate(body)


def named(fields: dict[str, Any]) -> str:
    """The last field, or the sampling parameter in it."""
    name, value = [*fields.items()][-1]
    return next(iter(value)) if name == "sampling_params" and isinstance(value, dict) else name


@pytest.mark.parametrize(
    "fields",
    [
        {"text": 5},
        {"text": ["a", None]},
        {"input_ids": "abc"},
        {"input_ids": [1, "a"]},
        {"input_ids": [1.5]},
        {"input_ids": [True]},
        *({"input_embeds": rows} for rows in ("abc", [0.5], [["0"]], [[None]])),
        {"text": "a", "sampling_params": "x"},
        *({"text": "a", name: 5} for name in ("rid", "lora_path", "image_data", "custom_logit_processor")),
        {"text": "a", "priority": "high"},
        {"text": "a", "stream": None},
    ],
)
def test_wrong_types_are_schema_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match=named(fields)):
        parse(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "true"},
        {"stream": 1},
        {"return_hidden_states": "last"},
        {"return_routed_experts": 1},
        *({"sampling_params": {"stop": stop}} for stop in (5, ["a", None])),
        *({"sampling_params": {"stop_token_ids": ids}} for ids in (5, [None])),
        *({"sampling_params": {"max_new_tokens": most}} for most in (8.0, True)),
        *({"sampling_params": {"logit_bias": bias}} for bias in ([1], {"1": "x"})),
        *({"sampling_params": {name: "x"}} for name in ("temperature", "top_k", "sampling_seed", "stream_interval")),
        {"sampling_params": {"no_such": 1}},
        {"sampling_params": {"ignore_eos": 1}},
    ],
)
def test_strict_types_and_unknown_sampling_names_are_contract_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match=named(fields)):
        parse(text="a", **fields)


def test_a_value_of_a_wrong_type_is_shown_in_short() -> None:
    for fields, words in (
        ({"input_ids": [*range(100), None, 5]}, "got a list with None in it"),
        ({"return_logprob": [1.5, False]}, "got a list with 1.5 in it"),
        ({"text": 5}, "`text` must be text or a list of text, got 5"),
        ({"text": "a", "return_logprob": "yes"}, "got 'yes'"),
        ({"text": "a", "sampling_params": {"stop": 5}}, "stop must be text or a list of text, got 5"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            parse(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Either text, input_ids or input_embeds"),
        ({"text": "a", "input_ids": [5], "input_embeds": [[0.0]]}, "Either text, input_ids or input_embeds"),
        ({"input_ids": []}, "input_ids cannot be empty"),
        ({"input_ids": [[1], []]}, "input_ids cannot be empty"),
        ({"input_ids": [1, -7]}, "out-of-vocabulary token id, -7"),
        ({"input_ids": [1, 2**31]}, "out-of-vocabulary token id, 2147483648"),
        ({"input_embeds": []}, "rows of numbers"),
        ({"input_embeds": [[]]}, "rows of numbers"),
        ({"input_embeds": [[0.0, 0.0], [0.0]]}, "rows of different lengths"),
        ({"input_embeds": [[1e300]]}, "beyond float32"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": {"top_k": 0}}, "top_k"),
        ({"text": "a", "sampling_params": {"n": 129}}, "n must be"),
        ({"text": "a", "sampling_params": {"stop": ["x"] * 33}}, "stop"),
        ({"text": "a", "sampling_params": {"logit_bias": {"a": 1}}}, "logit_bias"),
        ({"text": "a", "sampling_params": {"min_new_tokens": 200}}, "min_new_tokens"),
        ({"text": "a", "sampling_params": [{}]}, "for a single prompt, which takes one object"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": []}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "same `n`"),
        ({"text": ["a"] * 1025}, "at most 1024"),
        ({"text": ["a"] * 100, "sampling_params": {"n": 100}}, "at most 1024"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "Duplicate request ID"),
        ({"text": ["a", "b"], "rid": ["x"]}, "mismatch"),
        ({"text": "a", "rid": ["x"]}, "a single prompt takes one id"),
        ({"text": "a", "rid": "x y"}, "rid.*got 'x y'"),
        ({"text": "a", "rid": "x" * 129}, "rid"),
        ({"text": "a", "sampling_params": {"custom_params": []}}, "a list of 0 objects for 1 prompts"),
        ({"text": ["a", "b"], "sampling_params": {"custom_params": [{}]}}, "a list of 1 objects for 2 prompts"),
    ],
)
def test_what_cannot_be_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        parse(**fields)
    assert type(refused.value) is InvalidRequest
    assert "\n" not in refused.value.message


ASKED = {"stop_regex": "a+", "beam_width": 4, "lora_path": "x", "custom_logit_processor": "x"}


@pytest.mark.parametrize("name", sorted(IN_GENERATE))
def test_fields_not_served_yet_are_refused_unless_unset(name: str) -> None:
    for unset in IN_GENERATE[name]:
        parse(text="a", **{name: unset})
        parse(text=["a", "b"], **{name: [unset, unset]})
    with pytest.raises(InvalidRequest, match=f"`{name}` is not supported"):
        parse(text="a", **{name: ASKED.get(name, {"x": 1})})


@pytest.mark.parametrize("name", ["beam_width", "watermark", "choice"])
def test_sampling_parameters_not_served_yet_are_refused_unless_unset(name: str) -> None:
    for unset in IN_SAMPLING[name]:
        parse(text="a", sampling_params={name: unset})
    with pytest.raises(InvalidRequest, match=f"`{name}` is not supported"):
        parse(text="a", sampling_params={name: ASKED.get(name, "x")})


def test_a_pause_has_a_mode() -> None:
    assert parse_pause(b"") == "abort"
    assert [parse_pause(json.dumps({"mode": mode}).encode()) for mode in ("abort", "retract", "in_place")]
    with pytest.raises(SchemaError, match="must be one of abort") as refusal:
        parse_pause(b'{"mode": "stop"}')
    assert refusal.value.field == "mode"
    for mode in (5, None):
        with pytest.raises(SchemaError):
            parse_pause(json.dumps({"mode": mode}).encode())


def test_a_timeout_is_seconds_within_its_bounds() -> None:
    assert [parse_timeout(digits) for digits in ("0", "1.5", "600")] == [0, 1.5, 600]
    for digits in ("-0.1", "600.1", "nan", "inf", "soon", ""):
        with pytest.raises(InvalidRequest, match="0 to 600 seconds"):
            parse_timeout(digits)


def test_abort_names_one_or_all() -> None:
    assert parse_abort(b"") == ("", False)
    assert parse_abort(b'{"rid": "x"}') == ("x", False)
    assert parse_abort(b'{"abort_all": true, "rid": null}') == ("", True)
    with pytest.raises(SchemaError):
        parse_abort(b'{"rid": 5}')
    with pytest.raises(SchemaError):
        parse_abort(b'{"abort_all": 1}')


def test_the_owners_parameters_hold_where_a_request_says_nothing() -> None:
    body = json.dumps({"text": ["a", "b"], "sampling_params": [{"top_k": 5}, {"temperature": 0.7}]}).encode()
    first, second = parse_generate(body, preferred={"temperature": 0.2}, truncate=True).requests
    assert (first.params.temperature, first.params.top_k, first.truncate) == (0.2, 5, True)
    assert second.params.temperature == 0.7
