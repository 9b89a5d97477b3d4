"""Arguments of calls that a grammar holds to their form come as they are written, and nothing told is taken back."""

import json
from itertools import accumulate, cycle, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbgen.engine.answer_format import AnswerFormat
from nbgen.engine.call_grammar import answer_grammar, certain_begins
from nbgen.engine.certain_calls import NO_BEGINS, CallBegins
from nbgen.messages import AnswerPart, ToolOptions
from nbgen.sampling_params import SamplingParams
from tests.chat_templates import CALLS, CHANNELS, LOOSE, THOUGHT, TOLD, template
from tests.engine.test_answer_format import TOOLS, answer, learned
from tests.engine.test_call_grammar import Accepts, accepts  # noqa: F401  (a fixture)
from tests.soak import TIMES

#: Ways in which arguments are JSON, and what reads them.
WAYS = ["objects", "list", "named", "section", "bare", "text", "channels"]
FOUND = {way: learned(template(CALLS[way], THOUGHT)) for way in CALLS} | {
    "channels": learned(CHANNELS, ends=["<|return|>", "<|call|>"])
}
MUST = ToolOptions(tools=TOOLS, required=True)
MAY = ToolOptions(tools=TOOLS, strict=["get_weather"])
ONE = ToolOptions(tools=TOOLS, function="get_weather", parallel=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=6,
)
#: What arguments may speak of.
HOSTILE = st.sampled_from(["</tool_call>", '"}]', "[TOOL_CALLS]", "<|call|>", '{"name": "get_weather"', "\\", "é😀"])
ARGUMENTS = st.dictionaries(st.text(max_size=5), HOSTILE | VALUES, max_size=4)


def begins(way: str, tools: ToolOptions, params: SamplingParams | None = None) -> CallBegins:
    return certain_begins(FOUND[way], params or SamplingParams(), tools)


def parts_of(found: AnswerFormat, pieces: list[str], begins: CallBegins, **options: Any) -> list[AnswerPart]:
    cut, prompt = options.pop("cut", False), options.pop("prompt", "")
    parser = found.parser(prompt, TOOLS, thoughts=True, begins=begins, **options)
    return [p for i, piece in enumerate(pieces) for p in parser.feed(piece, last=i == len(pieces) - 1, cut=cut)]


def told(parts: list[AnswerPart]) -> tuple[str, list[tuple[str, str, bool]]]:
    """The text, and each call with its arguments, once its deltas are checked to be of it."""
    calls, begun = [], []
    for part in parts:
        if part.tool_call_delta:
            begun.append(part.tool_call_delta)
        elif part.tool_call:
            assert part.tool_call.arguments.startswith("".join(delta.arguments for delta in begun))
            assert {(delta.id, delta.name) for delta in begun} <= {(part.tool_call.id, part.tool_call.name)}
            calls.append((part.tool_call.name, part.tool_call.arguments, part.cut))
            begun = []
    assert not begun, "each call is told whole after its deltas"
    return "".join(part.content for part in parts), calls


def written(way: str, bodies: list[str]) -> str:
    """The calls as a model writes them, with these arguments to the letter."""
    if way == "channels":
        return f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{bodies[0]}"
    marks = [f"nbgen{i}mark" for i in range(len(bodies))]
    given = [json.dumps({mark: 1}) if way == "text" else {mark: 1} for mark in marks]
    calls = [{"id": "a", "function": {"name": "get_weather", "arguments": each}} for each in given]
    text = answer(template(CALLS[way], THOUGHT), {"content": "", "tool_calls": calls}).lstrip()
    for mark, body in zip(marks, bodies, strict=True):
        text = text.replace(f'{{"{mark}": 1}}', body)
    return text


@pytest.mark.parametrize("tools", [MUST, MAY, ONE])
@pytest.mark.parametrize("way", WAYS)
def test_arguments_come_as_they_are_written(way: str, tools: ToolOptions) -> None:
    body = '{"city":  "Rome",\n"days": 3}'
    text = written(way, [body])
    start = text.index(body)
    parser, so_far = FOUND[way].parser("", TOOLS, thoughts=True, begins=begins(way, tools)), ""
    for end, character in enumerate(text[: start + len(body) - 1], 1):
        (*parts,) = parser.feed(character, last=False)
        so_far += "".join(part.tool_call_delta.arguments for part in parts if part.tool_call_delta)
        assert so_far in (text[start:end], text[start:end].rstrip()), "but for white space all is there"
    (whole,) = [part.tool_call for part in parser.feed(text[start + len(body) - 1 :], last=True) if part.tool_call]
    assert whole.arguments == body, "to the letter"


@pytest.mark.parametrize("way", WAYS)
@given(
    bodies=st.lists(st.builds(json.dumps, ARGUMENTS, ensure_ascii=st.booleans(), indent=st.none() | st.just(1))),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=40 * TIMES)
def test_however_calls_are_split_and_cut_they_are_read_alike(
    way: str, bodies: list[str], sizes: list[int], data: st.DataObject
) -> None:
    bodies = bodies[: 1 if way in ("bare", "channels") else 3] or ["{}"]
    text = written(way, bodies)
    end = data.draw(st.integers(0, len(text)) | st.just(len(text)))
    found, certain, cut = FOUND[way], begins(way, MUST), end < len(text)
    whole = told(parts_of(found, [text[:end]], certain, cut=cut))
    places = accumulate(cycle(sizes), initial=0)
    ends = [next(places) for _ in range(end + 2)]
    for split in ([*text[:end], ""], [text[:end][a:b] for a, b in pairwise(ends)]):
        assert told(parts_of(found, split, certain, cut=cut)) == whole
    arguments = [body for _, body, _ in whole[1]]
    if not cut:
        assert (whole[0], arguments) == ("", bodies)
        plain = told(parts_of(found, [text], NO_BEGINS))
        assert [json.loads(body) for _, body, _ in plain[1]] == [json.loads(body) for body in bodies]
    assert all(body.startswith(part) for body, part in zip(bodies, arguments, strict=False))
    assert [was for *_, was in whole[1][:-1]] == [False] * (len(whole[1]) - 1)


@pytest.mark.parametrize("way", WAYS)
def test_each_of_several_calls_comes_as_it_is_written(way: str) -> None:
    bodies = ['{"city": "Rome"}', '{"city": "Oslo"}'][: 1 if way in ("bare", "channels") else 2]
    parts = parts_of(FOUND[way], [*written(way, bodies)], begins(way, MUST))
    assert len({part.tool_call_delta.id for part in parts if part.tool_call_delta}) == len(bodies)
    assert [arguments for _, arguments, _ in told(parts)[1]] == bodies


@pytest.mark.parametrize("between", ["\n", "; ", ""])
def test_calls_without_a_tag_or_a_list_are_told_once(between: str) -> None:
    each = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
    calls = "{% for call in m.tool_calls or [] %}{% set f = call.function %}" + each
    found = learned(template(calls + "{% if not loop.last %}" + between + "{% endif %}{% endfor %}"))
    certain = certain_begins(found, SamplingParams(), MUST)
    bodies = [json.dumps({"city": city}) for city in ("a" * 16, "b" * 60)]
    text = found.calls.written(("get_weather", json.loads(body)) for body in bodies)
    for size in (1, 64, 1000):
        parts = parts_of(found, [text[at : at + size] for at in range(0, len(text), size)], certain)
        assert told(parts) == ("", [("get_weather", body, False) for body in bodies])


def test_a_call_that_stops_where_no_grammar_lets_it_is_told_as_cut() -> None:
    """Where a stop string ends it; or where a library lets more through than JSON."""
    begun = written("objects", ['{"city": "Rome"}'])
    for text, arguments in ((begun[: begun.index('me"}')], '{"city": "Ro'), (begun.replace('"R', "$R"), '{"city": $')):
        for pieces in ([text], [*text]):
            content, calls = told(parts_of(FOUND["objects"], pieces, begins("objects", MUST)))
            assert calls == [("get_weather", arguments, True)]
            assert content == text.partition("$")[2]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "get_weather", "arguments": {bad}}</tool_call>',
        '<tool_call>\n{"name": "get_weather","arguments": {bad}}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "parameters": {bad}}\n</tool_call>',
        '<tool_call>\n{"name": "get_other", "arguments": {bad}}\n</tool_call>',
        '<tool_call><tool_call>\n{ "name": "get_weather", "arguments": {bad}}\n</tool_call>',
        '<tool_call> <tool_call\n{"name": "get_weather", "arguments": {bad}}\n</tool_call>',
        '{"a": "<tool_call>"}\n{"name": "get_weather", "arguments": {bad}}',
    ],
)
def test_what_is_written_in_another_way_is_not_certain(text: str) -> None:
    for pieces in ([text], [*text]):
        parts = parts_of(FOUND["objects"], pieces, begins("objects", MAY))
        assert not any(part.tool_call_delta for part in parts)
        assert told(parts) == (text, [])


def test_a_tag_that_opens_no_call_is_text_before_one() -> None:
    text = "<tool_call>" + written("objects", [body := '{"city": "Rome"}'])
    for pieces in ([text], [*text], [text[:30], text[30:]]):
        assert told(parts_of(FOUND["objects"], pieces, begins("objects", MAY))) == (
            "<tool_call>",
            [("get_weather", body, False)],
        )


def test_what_the_prompt_has_begun_or_a_thought_has_is_not_certain() -> None:
    text = written("objects", ['{"city": "Rome"}'])
    for prompt in (text[:5], text[:40], text[:70]):
        rest = [*text[len(prompt) :]]
        parts = parts_of(FOUND["objects"], rest, begins("objects", MAY), prompt=f"<|assistant|>{prompt}")
        assert not any(part.tool_call_delta for part in parts)
    assert told(parts_of(FOUND["objects"], [*f"<think>{text} So."], begins("objects", MAY))) == ("", [])


def test_of_calls_that_are_not_parallel_the_first_is_told() -> None:
    text = written("objects", ['{"city": "Rome"}'] * 2)
    parts = parts_of(FOUND["objects"], [*text], begins("objects", MAY), parallel=False)
    assert told(parts)[1] == [("get_weather", '{"city": "Rome"}', False)]
    assert len({part.tool_call_delta.id for part in parts if part.tool_call_delta}) == 1


@pytest.mark.parametrize("tools", [MUST, MAY, ONE, ToolOptions(tools=TOOLS, guided=True)])
@pytest.mark.parametrize("way", WAYS)
def test_what_begins_as_a_certain_call_must_go_on_as_one(accepts: Accepts, way: str, tools: ToolOptions) -> None:  # noqa: F811
    if (tag := answer_grammar(FOUND[way], SamplingParams(), tools, None)) is None:
        assert way == "bare"
        return
    call = written(way, [body := '{"city": "Rome", "days": 3}'])
    said = "Well. " if tools not in (MUST, ONE) else ""
    (begin,) = [each for each in begins(way, tools).opening if call.startswith(each)]
    assert accepts(tag, said + call)
    for other in ("3", ' {"city": "Rome"', "{bad}", '{"city": NaN}', body[:-1]):
        assert not accepts(tag, said + call.replace(begin + body, begin + other))


@pytest.mark.parametrize("way", ["tags", "python"])
def test_arguments_that_are_no_json_come_whole(way: str) -> None:
    assert begins(way, MUST) == NO_BEGINS


def test_where_an_answer_may_be_of_another_grammar_no_call_is_certain() -> None:
    other = SamplingParams(regex=".*")
    assert begins("objects", MAY, other) == NO_BEGINS
    assert begins("objects", MUST, other) == begins("objects", MUST)
    assert answer_grammar(FOUND["objects"], other, MAY, None), "calls may come"


def test_calls_that_may_have_more_after_them_than_is_read_come_whole() -> None:
    found = learned(template(LOOSE, THOUGHT, TOLD))
    text = '{"name": "get_weather", "parameters": {"city": "Rome", "days": 3}}'
    certain = certain_begins(found, SamplingParams(), MAY)
    assert not any(part.tool_call_delta for part in parts_of(found, [*text, " And more."], certain))
