"""Bodies of `/tokenize` and `/detokenize`: what they become, and what is refused."""

import json
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage
from nbgen.protocols import sglang_tokens
from nbgen.protocols.sglang_tokens import parse_detokenize, parse_tokenize
from nbgen.tokenizer_messages import TokenizerAnswer


def tokenize(**body: Any):
    return parse_tokenize(json.dumps(body).encode())


def detokenize(**body: Any):
    return parse_detokenize(json.dumps(body).encode())


def test_one_text_several_and_a_chat() -> None:
    request, single = tokenize(prompt="a", model="ignored")
    assert (request.texts, request.add_special_tokens, single) == (["a"], True, True)
    request, single = tokenize(prompt=["a", ""], add_special_tokens=False)
    assert (request.texts, request.add_special_tokens, single) == (["a", ""], False, False)
    options = {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False}
    request, single = tokenize(messages=[{"role": "user", "content": "hi"}], **options)
    assert request.messages == [ChatMessage(role="user", content="hi")]
    assert (request.add_generation_prompt, request.template_options) == (False, {"enable_thinking": False})
    assert (request.continue_final, single) == (False, True)
    request, _ = tokenize(messages=[{"role": "assistant", "content": "hi"}], continue_final_message=True)
    assert (request.add_generation_prompt, request.continue_final) == (False, True)
    request, _ = tokenize(messages=[{"role": "user", "content": "hi"}], reasoning_effort="none")
    assert request.template_options == {"reasoning_effort": "none", "thinking": False, "enable_thinking": False}


def test_tools_may_be_hidden() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    assert tokenize(**chat)[0].tools == [tool]
    assert tokenize(**chat, tool_choice="none")[0].tools == []
    with pytest.raises(InvalidRequest, match=r"tools\[0\]"):
        tokenize(**{**chat, "tools": [{"type": "function"}]})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "a", "messages": []},
        {"prompt": 5},
        {"prompt": ["a", 5]},
        {"prompt": ["a"] * 1025},
        {"messages": []},
        {"messages": [{"role": "function", "content": "a"}]},
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"tools": []}},
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": [1]}},
        {"prompt": "a", "add_special_tokens": "no"},
    ],
)
def test_what_cannot_be_tokenized_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        tokenize(**body)


def test_ids_of_one_or_several() -> None:
    request, single = detokenize(tokens=[1, 2], skip_special_tokens=False)
    assert (request.token_ids, request.skip_special_tokens, single) == ([[1, 2]], False, True)
    request, single = detokenize(tokens=[[1], []])
    assert (request.token_ids, single) == ([[1], []], False)
    assert detokenize(tokens=[])[1]


@pytest.mark.parametrize("tokens", ["a", [1, -1, 2], [1.5], [True], [[1], 2], [[1], ["a"]], None, [2**31]])
def test_what_is_no_id_is_refused(tokens: Any) -> None:
    with pytest.raises(InvalidRequest, match="tokens"):
        detokenize(tokens=tokens)


def test_answers_have_the_form_of_the_question() -> None:
    answer = TokenizerAnswer(rid="r", token_ids=[[1, 2], []], texts=["a", ""])
    assert json.loads(sglang_tokens.tokenized(answer, True, 9)) == {"tokens": [1, 2], "count": 2, "max_model_len": 9}
    several = json.loads(sglang_tokens.tokenized(answer, False, 9))
    assert (several["tokens"], several["count"]) == ([[1, 2], []], [2, 0])
    assert json.loads(sglang_tokens.detokenized(answer, True)) == {"text": "a"}
    assert json.loads(sglang_tokens.detokenized(answer, False)) == {"text": ["a", ""]}
