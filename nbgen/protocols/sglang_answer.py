"""SGLang's `/generate`: renders what the sequences have produced, and errors, as bytes.

Follows SGLang 0.5.23 in the shapes of objects, chunks and errors. Knows nothing of requests' bodies (`sglang`).
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from nbgen import sse
from nbgen.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NbgenError,
    NotFound,
    Unauthorized,
)
from nbgen.messages import FinishReason, GenerateRequest
from nbgen.protocols import sglang_logprobs
from nbgen.protocols.json_body import MalformedBody
from nbgen.protocols.sample import WEIGHT_VERSION, Sample
from nbgen.protocols.sglang import ContractError, SchemaError
from nbgen.protocols.sglang_tensors import InnerNumbers


class Answer:
    """One sequence of a call: its id, its place in the list, and how much of it a stream has sent.

    `index` is None if the call answers a single object. Chunks of a stream are cumulative unless `incremental`,
    and come every `interval` tokens.
    """

    def __init__(
        self, request: GenerateRequest, index: int | None = None, *, incremental: bool = False, interval: int = 1
    ) -> None:
        self.id = request.rid if request.params.n == 1 else uuid.uuid4().hex
        self.index = index
        self._logprobs = request.logprobs
        self._prompt_ids = request.prompt_ids
        self._written = sglang_logprobs.Written()
        self._inner = InnerNumbers(request.tensors)
        self._incremental = incremental
        self._interval = interval
        self._sent_text = 0
        self._sent_tokens = 0
        self._finished = False

    def result(self, sample: Sample, started: float) -> dict[str, Any]:
        """The whole object, as a call without `stream` answers it."""
        body = self._body(sample, self._written)
        body["meta_info"] |= _final(sample, started) | {"response_sent_to_client_ts": time.time()}
        return body

    def chunk(self, sample: Sample, started: float) -> bytes:
        """The next event of the stream; empty if too little is new."""
        new = len(sample.output_ids) - self._sent_tokens
        final = sample.finish_reason is not None
        due = new >= (self._interval if self._sent_tokens else 1)
        if self._finished or not (final or due):
            return b""
        body = self._body(sample, sglang_logprobs.plain if self._incremental else self._written)
        if self.index is not None:
            body["index"] = self.index
        if not self._sent_tokens:
            body["meta_info"]["response_sent_to_client_ts"] = time.time()
        if final:
            body["meta_info"] |= _final(sample, started)
        if self._incremental:
            self._drop_sent(body)
        self._sent_text = len(sample.text)
        self._sent_tokens, self._finished = len(sample.output_ids), final
        return sse.encode(msgspec.json.encode(body))

    def _drop_sent(self, body: dict[str, Any]) -> None:
        body["text"] = body["text"][self._sent_text :]
        body["output_ids"] = body["output_ids"][self._sent_tokens :]
        for name in (sglang_logprobs.OUTPUT_LISTS | {"hidden_states"}) & body["meta_info"].keys():
            body["meta_info"][name] = body["meta_info"][name][self._sent_tokens :]

    def _body(self, sample: Sample, listed: sglang_logprobs.Listed) -> dict[str, Any]:
        meta_info = {
            "id": self.id,
            "finish_reason": _finish_reason(sample.finish_reason),
            "prompt_tokens": sample.prompt_tokens,
            "completion_tokens": sample.completion_tokens,
            "cached_tokens": sample.cached_tokens,
            "cached_tokens_details": None,
            "reasoning_tokens": sample.reasoning_tokens,
            "weight_version": WEIGHT_VERSION,
            "num_retractions": 0,
            "dp_rank": None,
        }
        meta_info |= {f"{kind}_tokens": count for kind, count in sample.media_tokens.items()}
        if self._logprobs is not None:
            meta_info |= sglang_logprobs.meta_info(self._logprobs, sample, listed)
        meta_info |= self._inner.meta_info(sample)
        body = {"text": sample.text, "output_ids": sample.output_ids, "meta_info": meta_info}
        return body | ({"prompt_token_ids": sample.prompt_ids} if self._prompt_ids else {})


def _final(sample: Sample, started: float) -> dict[str, Any]:
    versions = [{"version": WEIGHT_VERSION, "start": 0, "end": sample.completion_tokens}]
    fields = {"weight_versions": versions, "e2e_latency": time.monotonic() - started}
    cut = sample.finish_reason is not None and sample.finish_reason.incomplete
    return fields | ({"incomplete": True} if cut else {})


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
    return msgspec.json.encode(results[0] if single else results)


def error_body(error: NbgenError) -> bytes:
    """An error in SGLang's shape for errors of this kind."""
    match error:
        case SchemaError() | MalformedBody():
            return msgspec.json.encode(_openai(error.message, "Bad Request", 400))
        case ContractError():
            return msgspec.json.encode({"error": error.message})
        case InvalidRequest():
            return msgspec.json.encode({"error": {"message": error.message}})
        case Unauthorized():
            return msgspec.json.encode({"error": "Unauthorized", "message": error.message})
        case NotFound():
            return msgspec.json.encode({"detail": error.message})
        case MethodNotAllowed():
            return msgspec.json.encode({"detail": "Method Not Allowed"})
        case _:
            return msgspec.json.encode(_openai(error.message, str(error.status), error.status))


def error_event(error: NbgenError) -> bytes:
    """An error after the stream began: the last event before `[DONE]`."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    fields = {"message": error.message, "type": kind, "code": error.status, "retryable": error.retryable}
    return sse.encode(msgspec.json.encode({"error": fields}))


def done(message: str) -> bytes:
    """The answer of a command that was carried out."""
    return msgspec.json.encode({"status": "ok", "message": message})


def _openai(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}
