"""`/v1/score`: the probabilities of given tokens to come next after a query joined with each of several items.

Follows SGLang 0.5.23 for text models. Knows no vocabulary and no tokenizer.
"""

from __future__ import annotations

import math
import uuid
from typing import Any, NamedTuple

import msgspec

from nbgen.errors import InvalidRequest, Unavailable
from nbgen.messages import GenerateRequest, LogprobOptions
from nbgen.protocols.json_body import are_ids, check_text_size, convert, parse_object, refuse_unsupported
from nbgen.protocols.openai import Call
from nbgen.protocols.sample import Sample
from nbgen.protocols.sglang import MAX_PROMPTS
from nbgen.protocols.sglang_logprobs import MAX_TOKEN_IDS
from nbgen.sampling_params import SamplingParams

#: Most characters or token ids of all prompts of a call; each prompt repeats the query.
MAX_LENGTH = 2**24
#: The caller's names of the engine's options.
NAMES = {"input_ids": "items", "token_ids_logprob": "label_token_ids"}
#: For log-probabilities at temperature 1, without generating a token.
PARAMS = SamplingParams(max_new_tokens=0, temperature=1.0)

#: Known fields that are not supported yet, with the values that ask for nothing and are accepted.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "return_pooled_hidden_states": (None, False),
    "score_extraction_token": (None,),
    "query_embed_overrides": (None,),
    "item_embed_overrides": (None,),
}


class Body(msgspec.Struct, kw_only=True):
    """A body of `/v1/score`. Query and items are texts, or lists of token ids; `temperature` is of the softmax.

    `label_token_ids` are the same for all items, or a list for each.
    """

    query: str | list[int] | None = None
    items: str | list[str | list[int]]
    label_token_ids: list[int | list[int]]
    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False
    return_token_logprobs: bool = False
    model: str = ""


class Scoring(NamedTuple):
    """What one call asks for; with a temperature, that of a softmax, the scores of an item add up to 1.

    With `logprobs` the answer also has the tokens' log-probabilities.
    """

    call: Call
    temperature: float | None
    logprobs: bool


def parse_score(raw: bytes) -> Scoring:
    """The prompts to score. Raises InvalidRequest."""
    fields = parse_object(raw)
    refuse_unsupported(fields, UNSUPPORTED)
    body = convert(fields, Body)
    _check_temperature(body)
    items = [body.items] if isinstance(body.items, str) else body.items
    if len(items) > MAX_PROMPTS:
        raise InvalidRequest(f"items holds {len(items)} items; at most {MAX_PROMPTS}", field="items")
    query = body.query if body.query is not None else [] if items and isinstance(items[0], list) else ""
    if (length := len(items) * len(query) + sum(map(len, items))) > MAX_LENGTH:
        words = f"query and items make prompts of {length} characters or token ids in all; at most {MAX_LENGTH}"
        raise InvalidRequest(words, field="items")
    group = uuid.uuid4().hex
    requests = [
        GenerateRequest(
            rid=uuid.uuid4().hex,
            params=PARAMS,
            logprobs=LogprobOptions(token_ids=labels),
            group=group,
            **(_prompt(item, query) if body.item_first else _prompt(query, item)),
        )
        for item, labels in zip(items, _labels(body.label_token_ids, len(items)), strict=True)
    ]
    call = Call(requests, chat=False, model=body.model, names=NAMES)
    return Scoring(call, body.temperature if body.apply_softmax else None, body.return_token_logprobs)


def score_body(scoring: Scoring, samples: list[Sample], model: str) -> bytes:
    """The answer: for each item a score of each label, in the body's order. Raises Unavailable if one is missing."""
    if not all(sample.logprobs for sample in samples):
        raise Unavailable("the request was stopped")
    rows = [[value for value, *_ in sample.logprobs[0].chosen or ()] for sample in samples]
    tokens = sum(sample.prompt_tokens for sample in samples)
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    answer = {
        "object": "scoring",
        "scores": [chances(row, temperature=scoring.temperature) for row in rows],
        "token_logprobs": rows if scoring.logprobs else None,
        "pooled_hidden_states": None,
        "model": model,
        "usage": usage,
    }
    return msgspec.json.encode(answer)


def chances(logprobs: list[Any], *, temperature: float | None) -> list[float]:
    """The probability of each token; with a `temperature`, by a softmax over these tokens only."""
    if temperature is None:
        return [math.exp(value) for value in logprobs]
    most = max(logprobs)
    weights = [math.exp((value - most) / temperature) for value in logprobs]
    total = sum(weights)
    return [weight / total for weight in weights]


def _labels(given: list[Any], items: int) -> list[list[int]]:
    """The tokens to score for each item. Raises InvalidRequest."""
    if not any(isinstance(each, list) for each in given):
        _check_labels(given)
        return [given] * items
    if len(given) != items:
        words = f"label_token_ids holds {len(given)} lists for {items} items: give one list, or one for each item"
        raise InvalidRequest(words, field="label_token_ids")
    for labels in given:
        _check_labels(labels)
    return given


def _check_labels(labels: Any) -> None:
    if not are_ids(labels):
        words = "label_token_ids must be a list of token ids, or a list of such lists"
        raise InvalidRequest(words, field="label_token_ids")
    if not 0 < (count := len(labels)) <= MAX_TOKEN_IDS:
        raise InvalidRequest(f"label_token_ids holds {count} ids, not 1 to {MAX_TOKEN_IDS}", field="label_token_ids")


def _check_temperature(body: Body) -> None:
    if not 0 < body.temperature < math.inf:
        words = f"temperature must be a finite number above 0, got {body.temperature}"
        raise InvalidRequest(words, field="temperature")
    if body.temperature != 1 and not body.apply_softmax:
        words = f"temperature is {body.temperature}, which is of a softmax: set apply_softmax to true, or leave it out"
        raise InvalidRequest(words, field="temperature")


def _prompt(first: str | list[int], second: str | list[int]) -> dict[str, Any]:
    if isinstance(first, str) and isinstance(second, str):
        text = first + second
        check_text_size("query", len(text.encode()))
        return {"text": text}
    if isinstance(first, list) and isinstance(second, list) and are_ids(ids := first + second):
        return {"input_ids": ids}
    raise InvalidRequest("query and items must be texts, or all of them lists of token ids", field="items")
