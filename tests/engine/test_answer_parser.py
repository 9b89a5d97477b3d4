"""Answers are read alike however they are split, no text is lost, and a good call is read whatever stands beside it."""

import json
import re
import time
from itertools import accumulate, cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from nbgen.engine.answer_format import AnswerFormat
from nbgen.engine.answer_reading import AnswerReading
from nbgen.engine.python_calls import PAIR
from nbgen.engine.tokenizer import Tokenizer
from nbgen.messages import AnswerPart, GenerateRequest, ToolOptions
from nbgen.sampling_params import SamplingParams
from tests.chat_templates import BARE_PYTHON, CALLS, CHANNELS, LOOSE, THOUGHT, TOLD, template
from tests.conftest import SPECIAL_TOKENS, save_tokenizer
from tests.engine.conftest import tokenizer_of
from tests.engine.test_answer_format import TOOLS, answer, learned
from tests.soak import TIMES

ARGUMENTS = {"city": "Rome", "days": 3}
BODY = json.dumps(ARGUMENTS)
#: A template that calls in each way, and the tokens and ends of its model.
SOURCES: dict[str, tuple[Any, ...]] = {
    **{way: (template(calls), ()) for way, calls in CALLS.items()},
    **{f"{way}, thinks": (template(calls, THOUGHT), ()) for way, calls in CALLS.items()},
    "all python": (template(BARE_PYTHON), ()),
    "told, thinks": (template(CALLS["objects"], THOUGHT, TOLD), ()),
    "loose, thinks": (template(LOOSE, THOUGHT, TOLD), ()),
    "tokens": (template(""), PAIR),
    "channels, thinks": (CHANNELS, (), ["<|return|>", "<|call|>"]),
}
FOUND = {
    way: learned(source, *tokens, **({"ends": ends[0]} if ends else {}))
    for way, (source, tokens, *ends) in SOURCES.items()
}
#: What is text, and what may be in calls or make none of them.
PIECES = [
    *("Hello ", "ok.", " ", "\n", "\n\n", "<", "[", "{", "}", "]", '"', "\\", '{"', '"name"', ": ", "(", "é😀", "<to"),
    *('{"a": 1}', '{"name": "Anna"}', '"see ', "<think>", "</think>", '{"name": "get_weather", "arguments": {bad}}'),
    *('{"name": "get_other", "arguments": {}}', '{"name": "get_weather", "arguments": {"days": NaN}}'),
    *(f'{{"name": "get_weather", "{key}": {BODY}}}' for key in ("arguments", "parameters")),
    *("<|python_start|>", "<|python_end|>", '[get_weather(city="Rome", days=3)]', *PAIR, BODY),
]
CHANNELED = [
    *("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|>", "<|start|>assistant", "<|message|>"),
    *("<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>", "<|call|>", "<|return|>"),
]


def call(way: str, arguments: dict[str, Any] = ARGUMENTS) -> str:
    """A call as the way's template writes it."""
    given = json.dumps(arguments) if way.startswith("text") else arguments
    turn = {"content": "", "tool_calls": [{"id": "a", "function": {"name": "get_weather", "arguments": given}}]}
    return answer(SOURCES[way][0], turn)


def tags(text: str) -> list[str]:
    """The tags of a text, and what is between them."""
    return re.findall(r"<[^<>]*>|\[[A-Z_]+\]|[^<\[]+|.", text)


def read(
    found: AnswerFormat, pieces: list[str], *, cut: bool = False, prompt: str = "", parallel: bool = True
) -> list[AnswerPart]:
    parser = found.parser(prompt, TOOLS, thoughts=True, parallel=parallel)
    return [p for i, piece in enumerate(pieces) for p in parser.feed(piece, last=i == len(pieces) - 1, cut=cut)]


def told(parts: list[AnswerPart]) -> tuple[str, str, list[tuple[str, str, bool]]]:
    calls = [(p.tool_call.name, p.tool_call.arguments, p.cut) for p in parts if p.tool_call]
    return "".join(p.content for p in parts), "".join(p.reasoning for p in parts), calls


#: How calls begin where the template does not show it.
OPENING = {"tokens": f"{PAIR[0]}[", "channels, thinks": CHANNELED[5]}
WEATHER = [("get_weather", BODY, False)]


@pytest.mark.parametrize("way", SOURCES)
@given(data=st.data(), sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5), cut=st.booleans())
@settings(max_examples=40 * TIMES)
def test_however_an_answer_is_split_it_is_read_alike_and_no_text_is_lost(
    way: str, data: st.DataObject, sizes: list[int], cut: bool
) -> None:
    own = CHANNELED if way.startswith("channels") else tags(call(way)) if "tool_calls" in SOURCES[way][0] else []
    pieces = data.draw(st.lists(st.sampled_from(own) | st.sampled_from(PIECES) if own else st.sampled_from(PIECES)))
    prompt = data.draw(st.sampled_from(["", "<|assistant|>", "<|assistant|><think>\n"]))
    text = "".join(pieces)
    places = accumulate(cycle(sizes), initial=0)
    ends = [next(places) for _ in range(len(text) + 2)]
    found = FOUND[way]
    whole = told(read(found, [text], cut=cut, prompt=prompt))
    for split in ([*text, ""], [*pieces, ""], [text[a:b] for a, b in pairwise(ends)]):
        assert told(read(found, split, cut=cut, prompt=prompt)) == whole, split
    unknown = "get_other" in text or whole[0].count('"arguments": {') > text.count('"arguments": {')
    if "thinks" not in way and not cut and not whole[2] and not unknown:  # those are told in other words
        assert whole[0] == text


@pytest.mark.parametrize("way", ["bare", "bare, thinks"])
def test_json_in_prose_is_told_as_it_comes(way: str) -> None:
    text = 'The file:\n\n```json\n{\n  "a": {"name": 1}\n}\n```\nSave it.'
    parser = FOUND[way].parser("", TOOLS, thoughts=True)
    so_far = ""
    for end, character in enumerate(text, 1):
        so_far += "".join(part.content for part in parser.feed(character, last=False))
        assert text[:end].startswith(so_far)
        assert len(text[:end].rstrip()) - len(so_far) < len('\n  {"name": '), "no more is kept back than begins a call"
    assert so_far == text


@pytest.mark.parametrize(
    ("way", "closing"),
    [
        *(
            ("objects", "</tool_call>"),
            ("text", "</tool_call>"),
            ("section", "</call></calls>"),
            ("tags", "</tool_call>"),
        ),
        *(("named", "[TOOL_CALLS]get_weather[ARGS]"), ("list", "[TOOL_CALLS] ["), ("bare", "}")),
    ],
)
def test_a_tag_in_a_string_closes_nothing(way: str, closing: str) -> None:
    arguments = {"city": f'"see {closing} there', "days": 3}
    text = call(way, arguments)
    for pieces in ([text], [*text]):
        assert told(read(FOUND[way], pieces)) == ("", "", [("get_weather", json.dumps(arguments), False)])
    (_, begun, cut), *others = told(read(FOUND[way], [text[: text.index(" there")]], cut=True))[2]
    assert (cut, others) == (True, [])
    assert way in ("tags", "text") or begun.endswith(closing)


def test_a_call_in_a_channel_may_speak_of_its_end() -> None:
    text = f"{CHANNELED[5]}{json.dumps({'city': '<|call|>'})}<|call|>"
    assert told(read(FOUND["channels, thinks"], [*text]))[2] == [("get_weather", '{"city": "<|call|>"}', False)]


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(
    ("way", "tag"),
    [
        *(("objects", "<tool_call>"), ("list", "[TOOL_CALLS]"), ("named", "[TOOL_CALLS]"), ("section", "</call>")),
        *(("named", "[TOOL_CALLS]f[ARGS]"), ("section", "<call>f<sep>"), ("tags", "<tool_call>\n<function=f>\n")),
        *(("section", "</calls>"), ("bare", '{"name": 1, "a": <}'), ("python", "<|tool_call_start|>,")),
        *(("marked", "call: Name["), ("marked", "call: name {"), ("marked", "recall:name{")),
    ],
)
def test_prose_may_speak_of_tags(way: str, tag: str, cut: bool) -> None:
    text = f"The tag {tag} is, it seems, how it begins. And much more. {tag}\n, then"
    parser, so_far = FOUND[way].parser("", TOOLS, thoughts=True), ""
    for end in range(0, len(text), 5):
        so_far += "".join(part.content for part in parser.feed(text[end : end + 5], last=False))
        assert len(text[:end]) - len(so_far) < len(tag) + 5, "it is told as it comes"
    assert told(read(FOUND[way], [*text], cut=cut)) == (text, "", [])


@pytest.mark.parametrize("way", [way for way in CALLS if way != "python"])
def test_text_may_follow_a_call_without_its_end(way: str) -> None:
    text = call(way) + "\nLet me look."
    assert told(read(FOUND[way], [*text])) == ("Let me look.", "", WEATHER)


@pytest.mark.parametrize(
    ("way", "bad"),
    [
        *(("objects", "<tool_call>{bad}</tool_call>"), ("objects", '<tool_call>{"a: 1}</tool_call>')),
        *(("named", "[TOOL_CALLS]get_weather[ARGS]{bad}"), ("named", '[TOOL_CALLS]get_weather[ARGS]{"a: 1}')),
        *(("section", "<calls><call>get_weather<sep>{bad}</call>"), ("list", "[TOOL_CALLS] [{]}")),
        *(("bare", '{"name": bad}'), ("python", "<|tool_call_start|>[bad]<|tool_call_end|>")),
    ],
)
def test_a_bad_call_takes_no_good_one_with_it(way: str, bad: str) -> None:
    for pieces in ([bad + call(way)], [*bad, *call(way)]):
        assert told(read(FOUND[way], pieces)) == (bad, "", WEATHER)


def test_a_bad_call_before_one_that_is_cut_is_told_once() -> None:
    begun = '[TOOL_CALLS]get_weather[ARGS]{"city": "Ro'
    for bad in ("[TOOL_CALLS]get_weather[ARGS]{bad}", "[TOOL_CALLS]get_weather[ARGS]"):
        for pieces in ([bad + begun], [*bad, *begun], [bad, begun]):
            parts = read(FOUND["named"], pieces, cut=True)
            assert told(parts) == (bad, "", [("get_weather", '{"city": "Ro', True)])


@pytest.mark.parametrize("way", SOURCES)
def test_a_run_of_white_space_is_read_in_time_that_grows_with_it(way: str) -> None:
    began = time.process_time()
    pieces = ["a", *["\n"] * 15_000, "b"]
    assert told(read(FOUND[way], pieces)) == ("".join(pieces), "", [])
    assert time.process_time() - began < 1


@pytest.mark.parametrize("way", SOURCES)
def test_what_begins_like_calls_again_and_again_is_read_in_time_that_grows_with_it(way: str) -> None:
    opening = OPENING[way] if way in OPENING else call(way).partition("Rome")[0]
    began = time.process_time()
    read(FOUND[way], [(opening + "\\") * 300, (opening + '\\"') * 300, ""])
    assert time.process_time() - began < 5


@pytest.mark.parametrize("way", CALLS)
def test_the_first_of_several_calls_may_be_the_only_one(way: str) -> None:
    text = f"One. {call(way)}\nTwo. {call(way)}\n"
    assert told(read(FOUND[way], [*text], parallel=False)) == ("One.Two.", "", WEATHER)


def test_numbers_that_json_does_not_know_stay_in_what_is_cut() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"days": NaN}'
    assert told(read(FOUND["objects"], [text], cut=True))[2] == [("get_weather", '{"days": NaN}', True)]


def test_an_answer_with_a_grammar_has_no_special_tokens_but_those_that_part_it(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    pretrained = AutoTokenizer.from_pretrained(tmp_path)
    pretrained.add_tokens(["<|tool_call_start|>", "<|other|>"], special_tokens=True)
    tokenizer = Tokenizer(pretrained, set(), 512)
    found = learned(template(CALLS["python"]), "<|tool_call_start|>", "<|tool_call_end|>")
    parting, *others = pretrained.convert_tokens_to_ids(["<|tool_call_start|>", "<|other|>", *SPECIAL_TOKENS])
    for tools, expected in ((ToolOptions(tools=TOOLS, required=True), others), (None, [parting, *others])):
        params = SamplingParams(regex="a" if tools is None else None)
        request = GenerateRequest(rid="1", text="a", parts=True, tools=tools, params=params)
        reading = AnswerReading.of(request, tokenizer.encode("a"), tokenizer, found if tools else None)
        assert reading.unsaid == set(expected)


def test_a_request_says_whether_calls_are_parallel(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    for parallel in (True, False):
        options = ToolOptions(tools=TOOLS, parallel=parallel)
        request = GenerateRequest(rid="1", text="a", parts=True, tools=options)
        reading = AnswerReading.of(request, tokenizer.encode("a"), tokenizer, FOUND["bare"])
        assert reading.parser is not None
        parts = reading.parser().feed(call("bare") * 2, last=True)
        assert told(parts)[2] == WEATHER * (2 if parallel else 1)
