"""Anthropic's messages: renders what a sequence has produced, and errors, as bytes.

Follows Anthropic's API reference, "Messages", "Streaming messages" and "Errors". Knows nothing of requests' bodies.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nbgen import sse
from nbgen.errors import NbgenError
from nbgen.messages import GenerateRequest
from nbgen.protocols.anthropic_blocks import Blocks, Event, content
from nbgen.protocols.sample import Sample

#: Error types by status; any other status is an invalid_request_error below 500 and an api_error from there on.
ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
#: Says that the answer goes on while there is nothing to send, as during a tool call that is sent only as a whole.
PING = sse.encode(b'{"type":"ping"}', event="ping")


class Answer:
    """One message, whole or as a stream of events. Its id is that of its request."""

    def __init__(self, request: GenerateRequest, model: str, *, thoughts: bool) -> None:
        self._head = {"id": request.rid, "type": "message", "role": "assistant", "model": model}
        self._limit = request.params.token_limit
        self._thoughts = thoughts
        self._blocks = Blocks(request.rid, thoughts=thoughts)
        self._begun = False

    def whole(self, sample: Sample) -> bytes:
        """The body of a call without `stream`."""
        blocks = content(sample, self._head["id"], thoughts=self._thoughts)
        return msgspec.json.encode(self._message(blocks, self._ended(sample), usage(sample)))

    def chunk(self, sample: Sample) -> bytes:
        """The events for what is new; the first of all is `message_start`."""
        events = self._blocks.news(sample)
        if not self._begun:
            self._begun = True
            message = self._message([], {"stop_reason": None, "stop_sequence": None}, usage(sample))
            events = [{"type": "message_start", "message": message}, *events]
        return _written(events)

    def end(self, sample: Sample) -> bytes:
        """The events that end the stream."""
        delta = {"type": "message_delta", "delta": self._ended(sample), "usage": usage(sample)}
        return _written([*self._blocks.close(), delta, {"type": "message_stop"}])

    def _message(self, blocks: list[Event], ended: dict[str, str | None], tokens: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "content": blocks, **ended, "usage": tokens}

    def _ended(self, sample: Sample) -> dict[str, str | None]:
        """The stop reason. Anthropic's API has none for aborts and time limits: they are told as `max_tokens`."""
        reason = sample.finish_reason
        if reason is None or reason.type != "stop":
            short = reason and reason.length is not None and self._limit is not None and reason.length < self._limit
            return {"stop_reason": "model_context_window_exceeded" if short else "max_tokens", "stop_sequence": None}
        if isinstance(reason.matched, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": reason.matched}
        return {"stop_reason": "tool_use" if sample.tool_calls else "end_turn", "stop_sequence": None}


def usage(sample: Sample) -> dict[str, Any]:
    """Token counts of a message. Input tokens exclude cached ones; tokens written to the cache are reported as 0."""
    return {
        "input_tokens": sample.prompt_tokens - sample.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": sample.cached_tokens,
        "output_tokens": sample.completion_tokens,
        "output_tokens_details": {"thinking_tokens": sample.reasoning_tokens},
    }


def error_body(error: NbgenError, request_id: str) -> bytes:
    """An error as the body of an answer."""
    default = "invalid_request_error" if error.status < 500 else "api_error"
    told: dict[str, Any] = {"type": ERRORS.get(error.status, default), "message": error.message}
    told |= {"details": {"error_code": error.code}} if error.code else {}
    return msgspec.json.encode({"type": "error", "error": told, "request_id": request_id})


def error_event(error: NbgenError, request_id: str) -> bytes:
    """An error after the stream began. Nothing follows it."""
    return sse.encode(error_body(error, request_id), event="error")


def _written(events: list[Event]) -> bytes:
    return b"".join([sse.encode(msgspec.json.encode(event), event=event["type"]) for event in events])
