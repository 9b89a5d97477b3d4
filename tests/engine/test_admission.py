"""What many samples of a request have in common is worked out once: others wait to be admitted meanwhile."""

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from nbgen.engine.adapter_folder import Adapter
from nbgen.engine.assembly import Assembly
from nbgen.engine.grammar import Grammar
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, GenerateRequest
from nbgen.sampling_params import MAX_N, MAX_STOP_REGEXES, SamplingParams
from nbgen.word_lists import MAX_WORD_BYTES, MAX_WORDS, WordLists
from tests.chat_templates import CHANNELS
from tests.conftest import save_model
from tests.engine.conftest import build

WORDS = WordLists(bad=[chr(97 + i % 26) * (MAX_WORD_BYTES - i) for i in range(MAX_WORDS)])
REGEXES = tuple("(" * 120 + ")" * 120 + f"a{i}" for i in range(MAX_STOP_REGEXES))


MANY = SamplingParams(n=MAX_N)
TOLD = SamplingParams(n=MAX_N, custom_params={"token_ids": [1], "more": [[i] for i in range(20_000)]})


@pytest.mark.parametrize(
    "request_",
    [
        {"params": MANY, "words": WORDS},
        {"params": SamplingParams(n=MAX_N, stop_regex=REGEXES)},
        {"params": TOLD},
        {"params": TOLD, "logit_processor": '{"name": "allowed_tokens"}'},
    ],
    ids=["words", "regexes", "params", "processor"],
)
def test_many_samples_are_admitted_for_the_price_of_one(tiny_engine: Assembly, request_: dict[str, Any]) -> None:
    request = GenerateRequest(rid="r", input_ids=[1, 2, 3], **request_)
    started = time.thread_time()
    sequences = tiny_engine.admission.sequences(request)
    assert time.thread_time() - started < 0.5
    assert len(sequences) == MAX_N
    assert len({len(sequence.bad_words) for sequence in sequences}) == 1
    if request.logit_processor:
        sequences[0].custom_params["__req__"] = None
        assert "__req__" not in sequences[1].custom_params


def test_what_an_answer_begins_with_is_read_once_for_all_samples(tmp_path: Path) -> None:
    admission = build(save_model(tmp_path, max_position_embeddings=8192)).admission
    started = time.thread_time()
    first, *others = admission.sequences(GenerateRequest(rid="r", input_ids=[1], prefix_ids=[97] * 4000, params=MANY))
    assert time.thread_time() - started < 0.5
    said = [first.append(98), first.append(99)]
    assert all([other.append(98), other.append(99)] == said for other in others)


def test_all_samples_go_through_one_version_of_an_adapter(
    tiny_engine: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be loaded anew at any moment: media are decoded beside that."""
    monkeypatch.setattr(tiny_engine.admission._adapters, "find", lambda name, rid: Adapter(name, {}, 1))
    request = GenerateRequest(rid="r", input_ids=[1], adapter="a", params=SamplingParams(n=3))
    assert len({(each.adapter, each.namespace) for each in tiny_engine.admission.sequences(request)}) == 1


@pytest.mark.parametrize(
    ("capacity", "words"),
    [(4, "exceeds the maximum allowed length"), (512, "is longer than the model's context length")],
)
def test_a_prompt_that_nothing_holds_is_refused_in_the_words_that_clients_look_for(
    tiny_engine: Assembly, capacity: int, words: str
) -> None:
    admission = copy.copy(tiny_engine.admission)
    admission.resize(capacity)
    length = min(capacity, tiny_engine.model.context_length)
    assert admission.sequences(GenerateRequest(rid="r", input_ids=[1] * (length - 1)))
    with pytest.raises(InvalidRequest, match=f"has {length} tokens, which {words}"):
        admission.sequences(GenerateRequest(rid="r", input_ids=[1] * length))


def save_with_turn_ends(folder: Path, source: str) -> PreTrainedTokenizerBase:
    """A model whose settings do not name what its template ends turns with."""
    tokenizer = AutoTokenizer.from_pretrained(save_model(folder, vocab_size=300))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<|end|>"]})
    tokenizer.chat_template = source
    tokenizer.save_pretrained(folder)
    return tokenizer


TURN_END = "{% for m in messages %}{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize(
    ("source", "ends"),
    [
        (TURN_END, {"<|im_end|>"}),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", set()),
        (CHANNELS.replace("<|return|>", "<|end|>"), set()),
    ],
    ids=["a token", "none", "one within answers"],
)
def test_a_chat_ends_where_its_template_ends_turns(tmp_path: Path, source: str, ends: set[str]) -> None:
    tokenizer = save_with_turn_ends(tmp_path, source)
    admission = build(tmp_path).admission
    chat = [ChatMessage(role="user", content="hi")]
    for request, expected in ({"messages": chat, "parts": True}, ends), ({"text": "hi"}, set()):
        (sequence,) = admission.sequences(GenerateRequest(rid="r", params=SamplingParams(), **request))
        own = {tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(expected))}
        assert sequence.stop_token_ids == own


def test_a_turn_ends_where_its_grammar_may(tmp_path: Path) -> None:
    tokenizer = save_with_turn_ends(tmp_path, TURN_END)
    assembly = build(tmp_path)
    (end,) = tokenizer.convert_tokens_to_ids(["<|im_end|>"])
    form = {"text": "hi", "params": SamplingParams(json_schema='{"type": "string"}')}
    (sequence,) = assembly.admission.sequences(GenerateRequest(rid="r", **form))
    assert end in sequence.stop_token_ids
    try:
        matcher = assembly.grammars.submit(Grammar(*sequence.params.grammar)).result().matcher()
    finally:
        assembly.grammars.close()
    mask = torch.zeros(1, matcher.num_words, dtype=torch.int32)
    for token in tokenizer.encode('"a"', add_special_tokens=False):
        matcher.fill(mask, 0)
        assert not (mask[0, end // 32] >> end % 32) & 1
        matcher.accept(token)
    assert matcher.may_end
    assert matcher.accept(end)
