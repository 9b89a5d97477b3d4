"""SGLang's `/generate`: from what the sequences produced, and from errors, to the bytes of its answers.

Follows SGLang 0.5.23 in the shapes of objects, chunks and errors. Knows nothing of requests' bodies (`sglang`).
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from nbgen import sse
from nbgen.engine_config import EngineConfig
from nbgen.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NbgenError,
    NotFound,
    Unauthorized,
)
from nbgen.messages import FinishReason, GenerateRequest, ModelInfo
from nbgen.protocols import sglang_logprobs
from nbgen.protocols.json_body import MalformedBody
from nbgen.protocols.sample import Sample
from nbgen.protocols.sglang import ContractError, SchemaError

DONE = sse.encode(b"[DONE]")


class Answer:
    """One sequence of a call: its id, its place in the list, and how much of it a stream has sent.

    `index` is None where the call answers a single object.
    """

    def __init__(self, request: GenerateRequest, index: int | None = None) -> None:
        self.id = request.rid if request.params.n == 1 else uuid.uuid4().hex
        self.index = index
        self._logprobs = request.logprobs
        self._sent_tokens = 0
        self._finished = False

    def result(self, sample: Sample, started: float) -> dict[str, Any]:
        """The whole object, as a call without `stream` answers it."""
        body = self._body(sample)
        body["meta_info"] |= _final(sample, started) | {"response_sent_to_client_ts": time.time()}
        return body

    def chunk(self, sample: Sample, started: float, interval: int = 1) -> bytes:
        """The next event of the stream, or nothing when too little is new. Cumulative, as SGLang's are."""
        new = len(sample.output_ids) - self._sent_tokens
        final = sample.finish_reason is not None
        due = new >= (interval if self._sent_tokens else 1)
        if self._finished or not (final or due):
            return b""
        body = self._body(sample)
        if self.index is not None:
            body["index"] = self.index
        if not self._sent_tokens:
            body["meta_info"]["response_sent_to_client_ts"] = time.time()
        if final:
            body["meta_info"] |= _final(sample, started)
        self._sent_tokens, self._finished = len(sample.output_ids), final
        return sse.encode(msgspec.json.encode(body))

    def _body(self, sample: Sample) -> dict[str, Any]:
        meta_info = {
            "id": self.id,
            "finish_reason": _finish_reason(sample.finish_reason),
            "prompt_tokens": sample.prompt_tokens,
            "completion_tokens": sample.completion_tokens,
            "cached_tokens": sample.cached_tokens,
            "cached_tokens_details": None,
            "reasoning_tokens": 0,
            "weight_version": "default",
            "num_retractions": 0,
            "dp_rank": None,
        }
        if self._logprobs is not None:
            meta_info |= sglang_logprobs.meta_info(self._logprobs, sample)
        return {"text": sample.text, "output_ids": sample.output_ids, "meta_info": meta_info}


def _final(sample: Sample, started: float) -> dict[str, Any]:
    versions = [{"version": "default", "start": 0, "end": sample.completion_tokens}]
    return {"weight_versions": versions, "e2e_latency": time.monotonic() - started}


def _finish_reason(reason: FinishReason | None) -> dict[str, Any] | None:
    match reason:
        case None:
            return None
        case FinishReason(type="stop"):
            return {"type": "stop", "matched": reason.matched}
        case FinishReason(type="length"):
            return {"type": "length", "length": reason.length}
        case _:
            message = reason.message or "Aborted"
            return {"type": "abort", "message": message, "status_code": reason.status, "err_type": None}


def result_body(results: list[dict[str, Any]], single: bool) -> bytes:
    """The answer of a call without `stream`: an object or a list."""
    return _encode(results[0] if single else results)


def error_body(error: NbgenError) -> bytes:
    """An error as SGLang words it: which of its shapes depends on where the fault lies."""
    match error:
        case SchemaError() | MalformedBody():
            return _encode(_openai(error.message, "Bad Request", 400))
        case ContractError():
            return _encode({"error": error.message})
        case InvalidRequest():
            return _encode({"error": {"message": error.message}})
        case Unauthorized():
            return _encode({"error": "Unauthorized", "message": error.message})
        case NotFound() | MethodNotAllowed():
            return _encode({"detail": error.message})
        case _:
            return _encode(_openai(error.message, str(error.status), error.status))


def error_event(error: NbgenError) -> bytes:
    """An error that comes after the stream began: its last event but `[DONE]`."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    fields = {"message": error.message, "type": kind, "code": error.status, "retryable": error.retryable}
    return sse.encode(_encode({"error": fields}))


def model_info(config: EngineConfig, model: ModelInfo | None) -> bytes:
    """`/model_info`: what is configured, and what is known once the model is loaded."""
    return _encode(
        {
            "model_path": config.model,
            "served_model_name": model.name if model else config.model,
            "tokenizer_path": config.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "load_format": "auto",
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": model.model_type if model else None,
            "architectures": model.architectures if model else None,
        }
    )


def _openai(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def _encode(body: Any) -> bytes:
    return msgspec.json.encode(body)
