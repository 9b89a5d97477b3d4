"""`/v1/rerank` as SGLang has it, and `/rerank` and `/v2/rerank` in the shape that Jina's and Cohere's clients read.

A cross-encoder scores a query with a document. A generative reranker's score is the probability of yes against no.
Only text is ranked. Knows no template and no tokenizer.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import msgspec
import numpy as np

from nbgen.engine_state import ModelInfo
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, EmbedOutput, EmbedRequest, GenerateOutput, GenerateRequest, LogprobOptions
from nbgen.protocols.embeddings import MAX_TEXTS
from nbgen.protocols.json_body import check_text_size, convert, parse_object
from nbgen.protocols.scores import MAX_LENGTH, PARAMS, chances

#: The caller's names of the engine's fields.
NAMES = {"input": "documents", "messages": "documents", "template_options": "instruct"}

#: The engine's answers from which scores are taken.
Scored = EmbedOutput | GenerateOutput


class Body(msgspec.Struct, kw_only=True):
    """A body of any of the routes. Texts may be lists of text parts, a document an object with a text."""

    query: str | list[dict[str, Any]]
    documents: list[str | dict[str, Any] | list[dict[str, Any]]]
    instruct: str | None = None
    #: vLLM's name of `instruct`.
    instruction: str | None = None
    top_n: int | None = None
    return_documents: bool = True


class Ranking(NamedTuple):
    """What one call asks for, with a chat of the query and each document."""

    body: Body
    chats: list[list[ChatMessage]]


def parse_rerank(raw: bytes) -> Ranking:
    """The documents to rank. Raises InvalidRequest."""
    body = convert(parse_object(raw), Body)
    body.instruct = body.instruct or body.instruction
    if body.top_n is not None and body.top_n < 0:
        raise InvalidRequest(f"top_n must be at least 1, got {body.top_n}", field="top_n")
    if not 0 < (count := len(body.documents)) <= MAX_TEXTS:
        raise InvalidRequest(f"documents holds {count} documents, not 1 to {MAX_TEXTS}", field="documents")
    query, documents = _text(body.query, "query"), [_text(each, "documents") for each in body.documents]
    if (length := count * len(query) + sum(map(len, documents))) > MAX_LENGTH:
        words = f"query and documents make prompts of {length} characters in all; at most {MAX_LENGTH}"
        raise InvalidRequest(words, field="documents")
    wish = [ChatMessage(role="system", content=body.instruct)] if body.instruct else []
    first = ChatMessage(role="query", content=query)
    return Ranking(body, [[first, ChatMessage(role="document", content=each), *wish] for each in documents])


def requests(ranking: Ranking, model: ModelInfo) -> list[EmbedRequest] | list[GenerateRequest]:
    """The requests to the model, one for each document. Raises InvalidRequest if the model is no reranker."""
    if model.is_embedding:
        return [EmbedRequest(rid=uuid.uuid4().hex, messages=chat) for chat in ranking.chats]
    if not model.verdicts:
        raise InvalidRequest(
            f"{model.name} does not appear to be a reranker: served are models that classify with one label, and those "
            'whose chat template has them answer "yes" or "no", or words that 1_LogitScore/config.json names'
        )
    group, wanted = uuid.uuid4().hex, LogprobOptions(token_ids=model.verdicts)
    options: dict[str, Any] = {"instruct": ranking.body.instruct} if ranking.body.instruct else {}
    return [
        GenerateRequest(
            rid=uuid.uuid4().hex, messages=chat, template_options=options, params=PARAMS, logprobs=wanted, group=group
        )
        for chat in ranking.chats
    ]


def sglang_body(ranking: Ranking, outputs: list[Scored]) -> bytes:
    """SGLang's answer: a list, best first."""
    shown = ranking.body.return_documents
    items = [
        {
            "score": score,
            **({"document": ranking.body.documents[index]} if shown else {}),
            "index": index,
            "meta_info": {"id": outputs[index].rid, "prompt_tokens": outputs[index].prompt_tokens},
        }
        for index, score in _ranked(ranking, outputs)
    ]
    return msgspec.json.encode(items)


def jina_body(ranking: Ranking, outputs: list[Scored], model: str) -> bytes:
    """The answer in Jina's and Cohere's shape, best first."""
    chats = ranking.chats if ranking.body.return_documents else ()
    results = [
        {
            "index": index,
            "relevance_score": score,
            **({"document": {"text": chats[index][1].text}} if chats else {}),
        }
        for index, score in _ranked(ranking, outputs)
    ]
    tokens = sum(output.prompt_tokens for output in outputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = {"id": f"rerank-{uuid.uuid4().hex}", "model": model, "results": results, "usage": usage}
    return msgspec.json.encode(answer)


def _ranked(ranking: Ranking, outputs: list[Scored]) -> list[tuple[int, float]]:
    scores = sorted(enumerate(map(_score, outputs)), key=lambda item: -item[1])
    top = ranking.body.top_n
    return scores[:top] if top else scores


def _score(output: Scored) -> float:
    """A document's score. Raises InvalidRequest if the model has several."""
    if isinstance(output, GenerateOutput):
        return chances([value for value, *_ in output.logprobs[0].chosen or ()], temperature=1.0)[0]
    scores: list[float] = np.frombuffer(output.data, "<f4").tolist()
    if len(scores) != 1:
        raise InvalidRequest(f"this model tells {len(scores)} classes apart, and does not rank: a reranker has one")
    return scores[0]


def _text(value: Any, field: str) -> str:
    """The text of a string, or of its parts. Raises InvalidRequest."""
    parts = [{"text": value}] if isinstance(value, str) else [value] if isinstance(value, dict) else value
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        raise InvalidRequest(f"{field} must be text: nothing else is ranked", field=field)
    text = " ".join(texts)
    if not text.strip():
        raise InvalidRequest(f"{field} must not be empty", field=field)
    check_text_size(field, len(text.encode()))
    return text
