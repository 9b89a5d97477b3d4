"""What must be called can be called, and nothing else: grammars made from templates, tried on what these write."""

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from transformers import AutoTokenizer

from nbgen.engine.call_arguments import worked_out
from nbgen.engine.call_grammar import answer_grammar
from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.engine.grammar_limits import check
from nbgen.engine.grammar_xgrammar import XGrammarBackend
from nbgen.errors import InvalidRequest
from nbgen.messages import ToolOptions
from nbgen.sampling_params import SamplingParams
from tests.chat_templates import BARE_PYTHON, CALLS, CHANNELS, THOUGHT, template
from tests.conftest import save_tokenizer
from tests.engine.test_answer_format import TOOLS, WANTED, answer, calls_of, learned

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = SamplingParams(json_schema=json.dumps(SCHEMA))
WAYS = [way for way in CALLS if way not in ("bare", "text")]
Accepts = Callable[[str | None, str], bool]


@pytest.fixture(scope="module")
def accepts(tmp_path_factory: pytest.TempPathFactory) -> Accepts:
    """Whether a text is all that a structural tag wants."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend = XGrammarBackend.from_tokenizer(tokenizer, len(tokenizer), {tokenizer.eos_token_id})

    def accepted(tag: str | None, text: str) -> bool:
        assert tag is not None
        check(grammar := worked_out(Grammar("structural_tag", tag)))
        matcher = backend.load(backend.compile(grammar)).matcher()
        try:
            for token in tokenizer.encode(text, split_special_tokens=True):
                matcher.accept(token)
        except GrammarError:
            return False
        return matcher.may_end

    return accepted


def grammar(
    way: str, tools: ToolOptions | None, params: SamplingParams | None = None, opened: str | None = None
) -> str | None:
    found = learned(template(CALLS[way], THOUGHT))
    assert found is not None
    return answer_grammar(found, params or SamplingParams(), tools, opened)


def refused(tag: str | None) -> GrammarError:
    """Why what functions take cannot be enforced."""
    assert tag is not None
    with pytest.raises(GrammarError) as error:
        worked_out(Grammar("structural_tag", tag))
    assert error.value.field == "tools"
    return error.value


def written(way: str, count: int) -> str:
    return answer(template(CALLS[way]), {"content": "", "tool_calls": calls_of(count)}).strip()


@pytest.mark.parametrize("way", WAYS)
def test_required_calls_are_as_the_template_writes_them(accepts: Accepts, way: str) -> None:
    tag = grammar(way, ToolOptions(tools=TOOLS, required=True))
    assert accepts(tag, written(way, 1))
    assert accepts(tag, written(way, 2))
    assert not accepts(tag, "")
    assert not accepts(tag, "Well. " + written(way, 1))
    assert not accepts(tag, written(way, 1).replace("get_weather", "get_other"))
    assert not accepts(tag, written(way, 1).replace("days", "dais"))
    single = grammar(way, ToolOptions(tools=TOOLS, required=True, parallel=False))
    assert accepts(single, written(way, 1))
    assert not accepts(single, written(way, 2))


def test_a_model_of_one_call_makes_one(accepts: Accepts) -> None:
    one = answer(template(CALLS["bare"]), {"content": "", "tool_calls": calls_of(1)})
    tag = grammar("bare", ToolOptions(tools=TOOLS, required=True))
    assert accepts(tag, one)
    assert not accepts(tag, one + one)


def test_a_named_function_is_the_only_one(accepts: Accepts) -> None:
    tag = grammar("objects", ToolOptions(tools=TOOLS, function="get-news.2", parallel=False))
    assert not accepts(tag, written("objects", 1))
    assert accepts(tag, written("objects", 1).replace("get_weather", "get-news.2"))


@pytest.mark.parametrize("way", ["objects", "section", "tags"])
def test_strict_tools_are_called_by_their_schemas_in_any_text(accepts: Accepts, way: str) -> None:
    tag = grammar(way, ToolOptions(tools=TOOLS, strict=STRICT))
    assert accepts(tag, "just text")
    assert accepts(tag, "Well. " + written(way, 1))
    assert not accepts(tag, written(way, 1).replace("days", "dais"))
    assert grammar(way, ToolOptions(tools=TOOLS)) is None


@pytest.mark.parametrize("way", ["objects", "section", "tags", "named"])
def test_guided_calls_are_of_functions_that_are_there(accepts: Accepts, way: str) -> None:
    tag = grammar(way, ToolOptions(tools=TOOLS, guided=True))
    assert accepts(tag, '{"name": "Anna"} and a [list]')
    assert accepts(tag, "Well. " + written(way, 1))
    assert not accepts(tag, written(way, 1).replace("get_weather", "get_other"))
    assert not accepts(tag, written(way, 1).replace("days", "dais"))


@pytest.mark.parametrize("way", ["objects", "section", "tags", "named", "list"])
def test_calls_that_may_not_be_parallel_end_with_the_first(accepts: Accepts, way: str) -> None:
    tag = grammar(way, ToolOptions(tools=TOOLS, parallel=False))
    assert accepts(tag, "just text")
    assert accepts(tag, "Well. " + written(way, 1))
    assert not accepts(tag, written(way, 2))
    assert not accepts(tag, f"{written(way, 1)} Well. {written(way, 1)}")
    for unguided in ("bare", "python", "marked"):
        assert grammar(unguided, ToolOptions(tools=TOOLS, parallel=False)) is None, "who reads the answer ends them"


def test_each_turn_with_the_same_tools_has_the_same_grammar() -> None:
    assert len({grammar("objects", ToolOptions(tools=TOOLS, guided=True)) for _ in range(3)}) == 1, "it is kept"


def test_what_cannot_be_enforced_is_guided_as_far_as_it_can_be(accepts: Accepts) -> None:
    odd = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": odd}}]
    tag = grammar("objects", ToolOptions(tools=tools, guided=True))
    assert accepts(tag, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    assert not accepts(tag, '<tool_call>\n{"name": "g", "arguments": {"a": 1}}\n</tool_call>')
    for way in ("bare", "python", "marked"):
        assert grammar(way, ToolOptions(tools=TOOLS, guided=True)) is None, "it begins like other text, or may be none"
    assert (
        answer_grammar(learned(template("", THOUGHT)), SamplingParams(), ToolOptions(tools=TOOLS, guided=True), None)
        is None
    )


#: What a parameter may be, what it may be called with then, and what it may not.
LOOSE: dict[str, tuple[Any, Any, Any]] = {
    "an address": ({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}, "http://a.b/", 1),
    "a set": ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ["x", "x"], [1]),
    "a multiple": ({"type": "integer", "multipleOf": 5}, 7, "x"),
    "draft 4": ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, 1, 0),
    "places": ({"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}, [1, "x"], ["x", 1]),
    "an unknown format": ({"type": "string", "format": "binary"}, "x", 1),
    "a pattern and a length": ({"type": "string", "pattern": "^x*$", "maxLength": 5}, "xx", "y"),
    "a lookahead": ({"type": "string", "pattern": "^(?!x)"}, "x", 1),
    "a condition": ({"type": "string", "if": {"minLength": 2}, "then": {"pattern": "a"}}, "bb", 1),
    "a negation": ({"type": "array", "not": {"maxItems": 0}}, [], 1),
    "contents": ({"type": "array", "contains": {"type": "integer"}}, ["x"], 1),
    "branches": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1.5, "x"),
    "a large count": ({"type": "string", "maxLength": 10**6}, "x", 1),
}


@pytest.mark.parametrize("name", LOOSE)
def test_a_function_that_is_not_strict_is_held_to_what_can_be_enforced(accepts: Accepts, name: str) -> None:
    schema, good, bad = LOOSE[name]
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    for way in ("objects", "tags", "named"):
        for options in ({"required": True}, {"function": "f"}, {"guided": True}):
            assert grammar(way, ToolOptions(tools=tools, **options)), (way, options)
    tag = grammar("objects", ToolOptions(tools=tools, required=True))

    def call(arguments: Any) -> str:
        return f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(arguments)}}}\n</tool_call>'

    assert accepts(tag, call({"a": good}))
    assert not accepts(tag, call({"a": bad}))
    assert not accepts(tag, call({"b": good}))


def test_what_is_no_matter_of_single_keywords_may_be_any_arguments(accepts: Accepts) -> None:
    odd = {"type": "object", "properties": {"a": {"allOf": [{"minimum": 1}, {"minimum": 2}]}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": odd}}]
    tag = grammar("objects", ToolOptions(tools=tools, required=True))
    assert accepts(tag, '<tool_call>\n{"name": "f", "arguments": {"b": 1}}\n</tool_call>')
    assert "Python's syntax" in str(refused(bare(ToolOptions(tools=tools, required=True))))


def test_a_strict_function_that_cannot_be_held_to_is_named(accepts: Accepts) -> None:
    sets = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    functions = [{"name": name, "parameters": sets} for name in ("loose", "tight")]
    tools = [{"type": "function", "function": function} for function in functions]
    for options in ({}, {"required": True}, {"function": "tight"}):
        words = str(refused(grammar("objects", ToolOptions(tools=tools, strict=["tight"], **options))))
        assert re.search("strict function 'tight' .* `uniqueItems`", words)
    tag = grammar("objects", ToolOptions(tools=tools, strict=["tight"], function="loose"))
    assert accepts(tag, '<tool_call>\n{"name": "loose", "arguments": {"a": [1, 1]}}\n</tool_call>')


def test_calls_or_what_the_answer_must_be(accepts: Accepts) -> None:
    tag = grammar("objects", ToolOptions(tools=TOOLS), JSON)
    assert accepts(tag, '{"a": 1}')
    assert accepts(tag, written("objects", 2))
    assert not accepts(tag, "text")
    for other in ({"regex": "[ab]+"}, {"ebnf": 'root ::= "b" | "a"'}):
        assert accepts(grammar("objects", ToolOptions(tools=TOOLS), SamplingParams(**other)), "b")
    must = grammar("objects", ToolOptions(tools=TOOLS, required=True), JSON)
    assert not accepts(must, '{"a": 1}')


def test_thoughts_come_first(accepts: Accepts) -> None:
    closed, opened = (grammar("objects", None, JSON, end) for end in ("<|assistant|>", "<|assistant|><think>\n"))
    assert accepts(closed, '{"a": 1}')
    assert accepts(closed, '<think>hm {"b"}</think>\n\n{"a": 1}')
    assert accepts(opened, 'hm\n</think>\n{"a": 1}')
    assert not accepts(opened, '{"a": 1}')
    assert not accepts(closed, 'hm{"a": 1}')
    calls = grammar("objects", ToolOptions(tools=TOOLS, required=True), opened="<think>")
    assert accepts(calls, "hm</think>\n" + written("objects", 1))
    assert grammar("objects", None, JSON) is None, "what is asked for alone needs no tag"


def test_what_is_not_known_is_not_enforced() -> None:
    found = learned(template("", THOUGHT))
    with pytest.raises(InvalidRequest, match="not known well enough"):
        answer_grammar(found, SamplingParams(), ToolOptions(tools=TOOLS, required=True), None)


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("structural_tag", '{"structures": [], "triggers": []}', "`structures` must be a list"),
        ("structural_tag", '{"structures": [{"begin": 5}], "triggers": ["<f"]}', "needs `begin` and `end`"),
        ("structural_tag", '{"type": "structural_tag"}', "with `format` or `structures`"),
        ("structural_tag", "{", "is not JSON"),
        ("json_schema", "{", "Failed to compile json grammar: the json text is not JSON"),
    ],
)
def test_what_is_no_grammar_is_refused_in_its_words(option: str, text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        grammar("objects", ToolOptions(tools=TOOLS), SamplingParams(**{option: text}))
    assert refused.value.field == option


def test_older_structural_tags_stand_beside_tools_and_thoughts(accepts: Accepts) -> None:
    structures = [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}]
    tag = {"type": "structural_tag", "structures": structures, "triggers": ["<f"]}
    params = SamplingParams(structural_tag=json.dumps(tag))
    for found in (grammar("objects", ToolOptions(tools=TOOLS), params), grammar("objects", None, params, "<think>")):
        thought = "hm</think>\n" if found and "</think>" in found else ""
        assert accepts(found, f"{thought}so <f>7</f>")
        assert not accepts(found, f"{thought}so <f>x</f>")


def taking(tools: ToolOptions, parameters: dict[str, Any]) -> ToolOptions:
    function = {"name": "f", "parameters": parameters}
    return msgspec.structs.replace(tools, tools=[{"type": "function", "function": function}])


def bare(tools: ToolOptions, parameters: dict[str, Any] | None = None) -> str | None:
    """For a model whose calls in Python's syntax are all of an answer."""
    tools = tools if parameters is None else taking(tools, parameters)
    return answer_grammar(learned(template(BARE_PYTHON)), SamplingParams(), tools, None)


STRICT = [tool["function"]["name"] for tool in TOOLS]
MUST = ToolOptions(tools=TOOLS, required=True)


@pytest.mark.parametrize(
    ("sizes", "good", "bad"),
    [
        ({}, ("", "x", "x,x,x"), ("1", "x,", "x x")),
        ({"minItems": 2, "maxItems": 3}, ("x,x", "x,x,x"), ("", "x", "x,x,x,x")),
        ({"minItems": None, "maxItems": 1}, ("", "x"), ("x,x",)),
        ({"maxItems": 0}, ("",), ("x",)),
    ],
)
def test_lists_may_stand_between_marks(
    accepts: Accepts, sizes: dict[str, int | None], good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    texts = {"type": "array", "items": {"type": "string"}, **sizes}
    options = msgspec.structs.replace(MUST, strict=["f"])
    tag = grammar("marked", taking(options, {"type": "object", "properties": {"a": texts}, "required": ["a"]}))
    for items in (*good, *bad):
        call = "<|tool_call>call:f{a:[" + items.replace("x", "<|'|>]<|'|>") + "]}<tool_call|>"
        assert accepts(tag, call) == (items in good), items


def test_a_length_in_tags_counts_any_characters(accepts: Accepts) -> None:
    text = {"type": "string", "maxLength": 9}
    tag = grammar("tags", taking(MUST, {"type": "object", "properties": {"a": text}, "required": ["a"]}))
    call = "<tool_call>\n<function=f>\n<parameter=a>%s</parameter>\n</function>\n</tool_call>"
    assert accepts(tag, call % '\n"x"\n<y\n')
    assert not accepts(tag, call % ("x" * 10))


@pytest.mark.parametrize("schema", [{"type": "object"}, {"type": "object", "additionalProperties": {}}, {}])
def test_an_object_of_any_properties_cannot_be_said_between_marks(accepts: Accepts, schema: dict[str, Any]) -> None:
    for properties in {"a": schema}, {"a b": {"type": "null"}}:
        tools = taking(MUST, {"type": "object", "properties": properties})
        assert "a syntax of its own" in str(refused(grammar("marked", tools)))
    empty = {"type": "object", "additionalProperties": False}
    for properties, call in ({}, "{}"), ({"a": empty}, "{a:{}}"):
        tag = grammar("marked", taking(MUST, {"type": "object", "properties": properties}))
        assert accepts(tag, f"<|tool_call>call:f{call}<tool_call|>")


def test_channels_are_opened(accepts: Accepts) -> None:
    found = learned(CHANNELS, ends=["<|return|>", "<|call|>"])
    thought = "<|channel|>analysis<|message|>hm {<|end|><|start|>assistant"
    final = '<|channel|>final<|message|>{"a": 1}'
    call = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + json.dumps(WANTED[0][1])
    form = answer_grammar(found, JSON, None, "<|start|>assistant")
    must = answer_grammar(found, SamplingParams(), MUST, "<|start|>assistant")
    either = answer_grammar(found, JSON, ToolOptions(tools=TOOLS), "<|start|>assistant")
    begun = answer_grammar(found, JSON, None, "<|start|>assistant<|channel|>analysis<|message|>")
    strict = answer_grammar(found, SamplingParams(), ToolOptions(tools=TOOLS, strict=STRICT), "<|start|>assistant")
    for text in (final, thought + final):
        assert accepts(form, text)
        assert accepts(either, text)
        assert not accepts(must, text)
        assert accepts(strict, text)
    for text in (call, thought + call):
        assert accepts(must, text)
        assert accepts(either, text)
        assert accepts(strict, text)
        assert not accepts(strict, text.replace("days", "dais"))
        assert not accepts(form, text)
        assert not accepts(must, text + call)
    assert accepts(begun, f"hm<|end|><|start|>assistant{final}")
    assert not accepts(form, '{"a": 1}')
