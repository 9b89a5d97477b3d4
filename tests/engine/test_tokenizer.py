"""What single tokens are: the bytes of those that are part of a character, in each kind of vocabulary."""

import re
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from nbgen.engine.template_messages import adapted
from nbgen.engine.tokenizer import MAX_BESIDE_TEXT, Tokenizer
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, ContentPart, ToolCall
from tests.chat_templates import CALLS, CHANNELS, IDS, template
from tests.engine.conftest import tokenizer_of
from tests.engine.test_answer_format import TOOLS, joined, read

TEXT = "aé🙂 \ufffd"
NAMES = [tool["function"]["name"] for tool in TOOLS]


def test_a_byte_level_vocabulary_tells_every_tokens_bytes(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    found = [tokenizer.token_bytes(token) for token in tokenizer.encode(TEXT)]
    assert found == [bytes([byte]) for byte in TEXT.encode()]


def backend(kind: str) -> Backend:
    """A tokenizer that changes text first, leaves some of it out, and puts special tokens around it."""
    pieces = ["[UNK]", "[CLS]", "[SEP]", *"abehlnosw▁,", "##e", "##l", "hel", "▁hel"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    if kind == "words":
        made = Backend(models.WordPiece(vocab, unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    else:
        made = Backend(models.Unigram([(piece, -float(len(vocab) - i)) for i, piece in enumerate(pieces)], unk_id=0))
        made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    made.add_special_tokens(["[CLS]", "[SEP]"])
    around = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    return made


@pytest.mark.parametrize("kind", ["words", "pieces"])
@pytest.mark.parametrize("special", [True, False])
def test_a_text_has_the_ids_that_transformers_gives_it_without_what_takes_it_long(
    kind: str, special: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets, of which it lets nobody else run as it forgets them."""
    text = "Hello, ﬁｱ! [SEP] ab\u0301é 🙂\n hello " * 50
    pretrained = PreTrainedTokenizerFast(tokenizer_object=backend(kind))
    expected = pretrained.encode(text, add_special_tokens=special)
    monkeypatch.setattr(pretrained, "encode", None)
    assert Tokenizer(pretrained, set(), 512).encode(text, add_special_tokens=special) == expected


@pytest.mark.parametrize("change", ["cuts", "pads", "knows no special tokens"])
def test_a_text_is_neither_cut_nor_padded_where_others_use_its_tokenizer(change: str) -> None:
    pretrained = PreTrainedTokenizerFast(tokenizer_object=backend("words"))
    tokenizer, expected = Tokenizer(pretrained, set(), 512), pretrained.encode("hello [SEP] hello")
    if change == "cuts":
        pretrained.backend_tokenizer.enable_truncation(3)
    elif change == "pads":
        pretrained.backend_tokenizer.enable_padding(length=30)
    else:
        pretrained.backend_tokenizer.encode_special_tokens = True
    assert tokenizer.encode("hello [SEP] hello") == expected


@pytest.mark.parametrize("way", ["objects", "tags"])
def test_a_call_with_half_a_surrogate_pair_can_be_given_back(tmp_path: Path, way: str) -> None:
    tokenizer = tokenizer_of(tmp_path, template(CALLS[way]))
    call = ToolCall(id="a", name="f", arguments=r'{"a": "\ud83d"}')
    ids = tokenizer.encode_chat([ChatMessage(role="assistant", content="", tool_calls=[call])])
    assert r"\ud83d" in tokenizer.text(ids)


def test_arguments_that_are_nested_too_deeply_are_text(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, template(CALLS["objects"]))
    call = ToolCall(id="a", name="f", arguments="[" * 2000)
    ids = tokenizer.encode_chat([ChatMessage(role="assistant", content="", tool_calls=[call])])
    assert call.arguments in tokenizer.text(ids)


@pytest.mark.parametrize(
    "source",
    [
        "{{ xml_tools if xml_tools else '' }}",
        "{% for m in messages %}{{ m.role + m['tools'] if 'tools' in m else '' }}{{ m.content }}{% endfor %}",
    ],
)
def test_tools_reach_templates_that_look_for_them_elsewhere(tmp_path: Path, source: str) -> None:
    tokenizer = tokenizer_of(tmp_path, source)
    for turns in ([], [ChatMessage(role="system", content="Be brief.")]):
        messages = [*turns, ChatMessage(role="user", content="?")]
        text = tokenizer.text(tokenizer.encode_chat(messages, tools=TOOLS))
        assert ("get_weather" in text, text.count("system")) == (True, "system" in text)
        assert "get_weather" not in tokenizer.text(tokenizer.encode_chat([*messages, *messages]))


def test_a_result_has_the_name_of_the_function_that_was_called(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, "{% for m in messages %}{{ m.name }} {% endfor %}")
    calls = [ToolCall(id=name[0], name=name, arguments="{}") for name in ("one", "two")]
    results = [ChatMessage(role="tool", tool_call_id=each, content="?") for each in ("t", "o", "x")]
    named = ChatMessage(role="tool", tool_call_id="o", content="?", name="own")
    ids = tokenizer.encode_chat([ChatMessage(role="assistant", tool_calls=calls), *results, named])
    assert tokenizer.text(ids).split() == ["two", "one", "own"]


@pytest.mark.parametrize("source", [template(CALLS["bare"]), CHANNELS], ids=["refuses several", "leaves others out"])
def test_several_calls_become_turns_of_their_own_where_a_template_takes_one(tmp_path: Path, source: str) -> None:
    tokenizer = tokenizer_of(tmp_path, source, 4096)
    calls = [ToolCall(id=each, name=f"f{each}", arguments="{}") for each in "123"]
    results = [ChatMessage(role="tool", tool_call_id=each, content=f"result {each}") for each in "x231"]
    turns = [ChatMessage(role="assistant", content="Well.", tool_calls=calls), *results]
    question = ChatMessage(role="user", content="?")
    messages = [results[0], question, *turns, question, *turns]
    assert tokenizer.text(tokenizer.encode_chat(messages)).count("Well.") == 2
    told = [(each.content, *(call.name for call in each.tool_calls)) for each in adapted(messages, tokenizer.answers)]
    once = [("Well.", "f1"), ("result 1",), ("", "f2"), ("result 2",), ("", "f3"), ("result x",), ("result 3",)]
    assert told == [("result x",), ("?",), *once, ("?",), *once]
    same = [ToolCall(id=each, name="f", arguments="{}") for each in ("a", "a", "")]
    ids = ["", "a", "a", "a"]
    results = [ChatMessage(role="tool", tool_call_id=each, content=str(i)) for i, each in enumerate(ids)]
    messages = [ChatMessage(role="assistant", tool_calls=same), *results]
    told = [each.content for each in adapted(messages, tokenizer.answers)]
    assert told == ["", "1", "", "2", "", "0", "3"], "each result is there once"
    seen = [msgspec.structs.replace(each, content=[ContentPart(type="image")]) for each in results]
    told = adapted([ChatMessage(role="assistant", tool_calls=same), *seen], tokenizer.answers)
    assert [each.tool_call_id for each in told if each.role == "tool"] == ids, "media come in order"


def test_ids_of_other_models_become_such_as_a_template_takes(tmp_path: Path) -> None:
    checked = "{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ call.id }}"
    source = template(CALLS["named"].replace("[ARGS]", f"[ID]{checked}[ARGS]"))
    tokenizer = tokenizer_of(tmp_path, source.replace("<result>", "<result>{{ m.tool_call_id }} "), 4096)
    calls = [ToolCall(id=each, name="f", arguments="{}") for each in ("call_1", "call_2", "nineChars", "a-bcdefgh")]
    results = [ChatMessage(role="tool", tool_call_id=call.id, content="?") for call in calls]
    text = tokenizer.text(tokenizer.encode_chat([ChatMessage(role="assistant", tool_calls=calls), *results]))
    found, told = re.findall(r"\[ID\](\w{9})\[", text), re.findall(r"<result>(\w{9}) ", text)
    assert (found, len(set(found)), found[2]) == (told, 4, "nineChars")
    alone = re.findall(r"<result>(.*?) ", tokenizer.text(tokenizer.encode_chat(results)))
    assert alone == told, "a result whose call was left out is one as well"


def test_ids_tell_what_is_called_where_a_template_writes_nothing_else_of_it(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, template(IDS).replace("<result>", "<result>{{ m.tool_call_id }} "), 4096)
    calls = [ToolCall(id=each, name=name, arguments='{"days": 1}') for each, name in zip("ab", NAMES, strict=True)]
    results = [ChatMessage(role="tool", tool_call_id=call.id, content="?") for call in calls]
    text = tokenizer.text(tokenizer.encode_chat([ChatMessage(role="assistant", tool_calls=calls), *results]))
    told = [f"functions.{name}:{place}" for place, name in enumerate(NAMES)]
    assert re.findall("<call>(.*?)<", text) == re.findall("<result>(.*?) ", text) == told
    parts = read(tokenizer.answers, re.findall("<calls>.*</calls>", text)[0])
    assert joined(parts) == ("", "", [(name, {"days": 1}) for name in NAMES])


def test_thoughts_and_arguments_are_counted_before_a_template_works_on_them(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, template(CALLS["objects"]))
    half = "a" * (MAX_BESIDE_TEXT // 2)
    call = ToolCall(id="a", name="f", arguments=half + "a")
    thinking = ChatMessage(role="assistant", reasoning=half, tool_calls=[call])
    with pytest.raises(InvalidRequest, match=f"have {MAX_BESIDE_TEXT + 1} characters; at most {MAX_BESIDE_TEXT}"):
        tokenizer.encode_chat([thinking])


def test_an_id_that_the_tokenizer_does_not_know_has_no_text() -> None:
    tokenizer = Tokenizer(ByT5Tokenizer(), {1, 500}, 512)
    assert [tokenizer.token_text(token) for token in (ord("a") + 3, 500)] == ["a", ""]
    assert tokenizer.answers is None
    assert tokenizer.ends == ["</s>"]


def test_byte_fallback_tells_those_of_its_bytes_and_not_those_of_what_is_lost() -> None:
    vocab = {"<unk>": 0, "a": 1, "\u2581": 2, "\ufffd": 3, "<0xZZ>": 4} | {f"<0x{b:02X}>": 5 + b for b in range(256)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), {0}, 512)
    assert [tokenizer.token_bytes(5 + byte) for byte in (0x0A, 0xC3, 0xFF)] == [b"\n", b"\xc3", b"\xff"]
    assert tokenizer.token_bytes(vocab["\ufffd"]) is None
    assert not tokenizer.is_byte(vocab["<0xZZ>"])
