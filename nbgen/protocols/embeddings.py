"""Embeddings: OpenAI's `/v1/embeddings`, SGLang's `/encode` and `/v1/classify`: bodies to requests, outputs to answers.

With `pooling`, `/v1/embeddings` returns pooled hidden states of any language model, also with a LoRA adapter.

Knows nothing of a model's limits, which the engine checks.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from nbgen.engine_state import ModelInfo
from nbgen.errors import InvalidRequest
from nbgen.messages import EmbedOutput, EmbedRequest, GenerateRequest, TensorOptions
from nbgen.protocols.json_body import are_integers, is_integer, parse_object, refuse_unsupported
from nbgen.protocols.request_ids import request_ids
from nbgen.protocols.sample import WEIGHT_VERSION
from nbgen.protocols.sglang_unsupported import IN_EMBEDDINGS, IN_ENCODE, refuse
from nbgen.sampling_params import SamplingParams

MAX_TEXTS = 2048
MAX_DIMENSIONS = 2**16
#: Fields of vLLM's that are not supported. -1, as much as the context holds, changes no text that is taken here.
VLLMS: dict[str, tuple[Any, ...]] = {"truncate_prompt_tokens": (None, -1)}
#: How a text model's hidden states are pooled into a vector.
POOLS = ("mean", "last")


class Embedding(NamedTuple):
    """What one call asks for. A `single` text gets an object where the dialect does so; `dimensions` None keeps all."""

    requests: list[EmbedRequest] | list[GenerateRequest]
    single: bool
    as_base64: bool = False
    dimensions: int | None = None
    #: The caller's id of each request.
    ids: Sequence[str] = ()
    #: The name in the call.
    model: str = ""


def parse_openai(body: bytes) -> Embedding:
    """A body of `/v1/embeddings`. Raises InvalidRequest."""
    fields = parse_object(body)
    refuse_unsupported(fields, {**IN_EMBEDDINGS, **VLLMS})
    encoding = fields.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise InvalidRequest("`encoding_format` must be float or base64", field="encoding_format")
    dimensions = _dimensions(fields)
    requests, single = _requests(fields.get("input"), "input")
    ids, model = _ids(fields, len(requests), single), fields.get("model") or ""
    if not isinstance(model, str):
        raise InvalidRequest("`model` must be text", field="model")
    if (adapter := fields.get("lora_path") or "") and not isinstance(adapter, str):
        raise InvalidRequest("`lora_path` must be text", field="lora_path")
    if (pooling := fields.get("pooling")) is None:
        if adapter:
            raise InvalidRequest("`lora_path` goes with `pooling`: embedding models take none", field="lora_path")
        return Embedding(requests, single, encoding == "base64", dimensions, ids, model)
    if pooling not in POOLS:
        raise InvalidRequest(f"`pooling` must be {' or '.join(POOLS)}", field="pooling")
    if dimensions is not None:
        raise InvalidRequest("`dimensions` is for embedding models: pooled states come whole", field="dimensions")
    return Embedding(_pooled(requests, pooling, adapter), single, encoding == "base64", ids=ids, model=model)


def parse_encode(body: bytes) -> Embedding:
    """A body of `/encode`. Raises InvalidRequest."""
    fields = parse_object(body)
    refuse(fields, IN_ENCODE)
    if fields.get("text") is not None and fields.get("input_ids") is not None:
        raise InvalidRequest("text and input_ids cannot be provided at the same time: send one", field="input_ids")
    name = "input_ids" if fields.get("input_ids") is not None else "text"
    for other in ("image_data", "audio_data", "video_data"):
        if fields.get(other):
            raise InvalidRequest(f"`{other}` is not supported here: this route embeds text", field=other)
    requests, single = _requests(fields.get(name), name)
    return Embedding(requests, single, dimensions=_dimensions(fields), ids=_ids(fields, len(requests), single))


def parse_classify(body: bytes) -> Embedding:
    """A body of `/v1/classify`. Raises InvalidRequest."""
    fields = parse_object(body)
    requests, single = _requests(fields.get("input"), "input")
    return Embedding(requests, single, ids=_ids(fields, len(requests), single))


def openai_body(call: Embedding, outputs: list[EmbedOutput], model: str) -> bytes:
    """The answer of `/v1/embeddings`. Raises InvalidRequest for more dimensions than there are."""
    vectors = [_shortened(_vector(output), call.dimensions) for output in outputs]
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if call.as_base64 else vector.tolist()}
        for index, vector in enumerate(vectors)
    ]
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": _usage(outputs)})


def encode_body(call: Embedding, outputs: list[EmbedOutput], seconds: float) -> bytes:
    """The answer of `/encode`: an object, or a list for a list. Raises InvalidRequest as `openai_body` does."""
    items = [
        {
            "embedding": _shortened(_vector(output), call.dimensions).tolist(),
            "meta_info": {
                "id": rid,
                "finish_reason": {"type": "length", "length": 0},
                "prompt_tokens": output.prompt_tokens,
                "cached_tokens": 0,
                "weight_version": WEIGHT_VERSION,
                "num_retractions": 0,
                "e2e_latency": seconds,
            },
        }
        for rid, output in zip(call.ids, outputs, strict=True)
    ]
    return msgspec.json.encode(items[0] if call.single else items)


def check_classes(model: ModelInfo) -> None:
    """Raise InvalidRequest for an embedding model without classes. (A text model refuses the request itself.)"""
    if model.is_embedding and not model.labels:
        raise InvalidRequest(f"{model.name} tells no classes apart: ask /v1/embeddings, /classify or /v1/rerank")


def classify_body(outputs: list[EmbedOutput], model: ModelInfo) -> bytes:
    """The answer of `/v1/classify`: the probability of each class for each text, or each measure as it is."""
    bent = BENT.get(model.problem_type, _softmax)
    chances = [bent(_vector(output)) for output in outputs]
    data = [
        {"index": index, "label": model.labels[int(each.argmax())], "probs": each.tolist(), "num_classes": len(each)}
        for index, each in enumerate(chances)
    ]
    about = {"id": f"classify-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": model.name}
    return msgspec.json.encode({**about, "data": data, "usage": {**_usage(outputs), "completion_tokens": 0}})


def _requests(value: Any, field: str) -> tuple[list[EmbedRequest], bool]:
    """One text, texts, token ids or lists of token ids."""
    single = isinstance(value, str) or (are_integers(value) and bool(value))
    prompts = [value] if single else value
    if not isinstance(prompts, list) or not prompts:
        raise InvalidRequest(f"`{field}` must be text, token ids, or a list of either that is not empty", field=field)
    if len(prompts) > MAX_TEXTS:
        raise InvalidRequest(f"`{field}` holds {len(prompts)} texts; at most {MAX_TEXTS}", field=field)
    return [_request(prompt, field) for prompt in prompts], single


def _ids(fields: dict[str, Any], prompts: int, single: bool) -> list[str]:
    """The caller's id of each text."""
    rid = fields.get("rid")
    if not (rid is None or isinstance(rid, str) or (isinstance(rid, list) and all(isinstance(x, str) for x in rid))):
        raise InvalidRequest("`rid` must be text or a list of text", field="rid")
    return request_ids(rid, prompts, 1, single=single)


def _pooled(requests: list[EmbedRequest], pooling: Literal["mean", "last"], adapter: str) -> list[GenerateRequest]:
    """The same texts as requests to a text model, which generates no token."""
    params, tensors = SamplingParams(max_new_tokens=0), TensorOptions(pooled=pooling)
    return [
        GenerateRequest(
            rid=each.rid,
            text=each.text,
            input_ids=each.input_ids,
            params=params,
            tensors=tensors,
            adapter=adapter,
            group=requests[0].rid,
        )
        for each in requests
    ]


def _request(prompt: Any, field: str) -> EmbedRequest:
    rid = uuid.uuid4().hex
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidRequest(f"`{field}` holds an empty text", field=field)
        return EmbedRequest(rid=rid, text=prompt)
    if prompt and are_integers(prompt):
        return EmbedRequest(rid=rid, input_ids=prompt)
    raise InvalidRequest(f"`{field}` must hold texts or lists of token ids", field=field)


def _usage(outputs: list[EmbedOutput]) -> dict[str, int]:
    tokens = sum(output.prompt_tokens for output in outputs)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    chances: np.ndarray = powers / powers.sum()
    return chances


def _sigmoid(scores: np.ndarray) -> np.ndarray:
    chances: np.ndarray = np.exp(-np.logaddexp(0, -scores))
    return chances


#: How scores become what is told of each class, by the model's `problem_type`.
BENT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "multi_label_classification": _sigmoid,
    "regression": lambda scores: scores,
}


def _vector(output: EmbedOutput) -> np.ndarray:
    return np.frombuffer(output.data, "<f4")


def _dimensions(fields: dict[str, Any]) -> int | None:
    dimensions = fields.get("dimensions")
    if dimensions is None or is_integer(dimensions, 1, MAX_DIMENSIONS):
        return dimensions
    raise InvalidRequest(f"`dimensions` must be an integer from 1 to {MAX_DIMENSIONS}", field="dimensions")


def _shortened(vector: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first `dimensions` numbers, normalized to length 1 (matryoshka embeddings, Kusupati et al. 2022)."""
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise InvalidRequest(
            f"`dimensions` is {dimensions}; the embeddings of this model have {len(vector)}", field="dimensions"
        )
    part = vector[:dimensions]
    return part / max(float(np.linalg.norm(part)), 1e-12)


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
