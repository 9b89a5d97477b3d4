"""OpenAI's responses: renders what a sequence has produced as the response object, whole or as a stream of events.

Follows OpenAI's API reference of `/v1/responses`. Knows nothing of requests' bodies but the fields that a response
repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from nbgen import sse
from nbgen.errors import InvalidRequest, NbgenError
from nbgen.messages import FinishReason, GenerateOutput
from nbgen.protocols.responses_body import Body
from nbgen.protocols.responses_items import Item
from nbgen.protocols.responses_output import Event, Output
from nbgen.protocols.responses_query import Page
from nbgen.protocols.responses_tools import members, repeated
from nbgen.protocols.sample import Sample

#: The status of a response by its finish reason; a response with an error is "failed".
STATUSES = {"stop": "completed", "length": "incomplete", "abort": "cancelled"}


class Answer:
    """One response, rendered from the outputs of its run: the same outputs always give the same response."""

    def __init__(self, id: str, body: Body, model: str, created: float, *, after: int = -1) -> None:
        """A stream skips the events up to number `after`."""
        self._head = {"id": id, "object": "response", "created_at": int(created), "model": model, **_repeated(body)}
        spaced = members(body.tools or ())
        self._output = Output(id, logprobs=body.logprobs, summary=body.summary is not None, members=spaced)
        self._read = 0
        self._sequence = 0
        self._after = after

    def body(
        self, outputs: Sequence[GenerateOutput], sample: Sample, error: NbgenError | None, ended: float | None
    ) -> dict[str, Any]:
        """The response as it stands; `ended` is the time of its end in seconds since 1970, if it has ended."""
        self._news(outputs)
        status = _status(sample.finish_reason, error)
        if status in STATUSES.values() or error:
            self._output.end(_item_status(status))
        begun = bool(outputs) or ended is not None
        return self._response(status if begun else "queued", sample, error, ended)

    def chunk(self, outputs: Sequence[GenerateOutput]) -> bytes:
        """The events for what is new; `created` and `in_progress` come first."""
        return self._events(self._beginning() + self._news(outputs))

    def end(
        self, outputs: Sequence[GenerateOutput], sample: Sample, error: NbgenError | None, ended: float | None
    ) -> bytes:
        """The events that end the stream."""
        status = _status(sample.finish_reason, error)
        events = self._beginning() + self._news(outputs) + self._output.end(_item_status(status))
        kind = "incomplete" if status == "cancelled" else status  # there is no event for a cancellation
        last = {"type": f"response.{kind}", "response": self._response(status, sample, error, ended)}
        return self._events([*events, last])

    def _beginning(self) -> list[Event]:
        if self._sequence:
            return []
        response = self._response("in_progress", Sample(), None)
        return [{"type": f"response.{name}", "response": response} for name in ("created", "in_progress")]

    def _news(self, outputs: Sequence[GenerateOutput]) -> list[Event]:
        new, self._read = outputs[self._read :], len(outputs)
        return [event for output in new for event in self._output.add(output)]

    def _events(self, events: list[Event]) -> bytes:
        first, self._sequence = self._sequence, self._sequence + len(events)
        numbered = [event | {"sequence_number": first + place} for place, event in enumerate(events)]
        wanted = numbered[max(self._after + 1 - first, 0) :]
        return b"".join([sse.encode(msgspec.json.encode(event), event=event["type"]) for event in wanted])

    def _response(
        self, status: str, sample: Sample, error: NbgenError | None, ended: float | None = None
    ) -> dict[str, Any]:
        over = status not in ("queued", "in_progress")
        return self._head | {
            "status": status,
            "completed_at": int(ended) if ended is not None and status == "completed" else None,
            "error": {"code": _code(error), "message": error.message} if error else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._output.items(),
            "usage": usage(sample) if over else None,
        }


def usage(sample: Sample) -> dict[str, Any]:
    """Token counts of a response."""
    return {
        "input_tokens": sample.prompt_tokens,
        "input_tokens_details": {"cached_tokens": sample.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": sample.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": sample.reasoning_tokens},
        "total_tokens": sample.prompt_tokens + sample.completion_tokens,
    }


def item_page(items: Sequence[Item], page: Page) -> bytes:
    """A page of items as OpenAI's list object. Raises InvalidRequest if no item has the id `page.after`."""
    shown = list(items) if page.order == "asc" else list(items)[::-1]
    ids = [item["id"] for item in shown]
    if page.after and page.after not in ids:
        raise InvalidRequest(f"the list has no item {page.after[:80]!r} to begin after, or no more", field="after")
    begin = ids.index(page.after) + 1 if page.after else 0
    found = shown[begin : begin + page.limit]
    ends = {"first_id": found[0]["id"] if found else None, "last_id": found[-1]["id"] if found else None}
    more = begin + page.limit < len(shown)
    return msgspec.json.encode({"object": "list", "data": found, **ends, "has_more": more})


def _status(reason: FinishReason | None, error: NbgenError | None) -> str:
    return "failed" if error else STATUSES[reason.type] if reason else "in_progress"


def _code(error: NbgenError) -> str:
    """The error code for OpenAI's clients: it tells whether to change the request or to send it again."""
    return error.code or ("invalid_prompt" if error.status < 500 else "server_error")


def _item_status(status: str) -> str:
    return "completed" if status == "completed" else "incomplete"


def _repeated(body: Body) -> dict[str, Any]:
    """The fields of the call that a response repeats."""
    format = {"type": body.text.format.type}
    if body.text.format.schema is not None:
        format |= {name: getattr(body.text.format, name) for name in ("name", "schema", "strict")}
    return {
        "background": bool(body.background),
        "conversation": {"id": body.conversation_id} if body.conversation_id else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": body.summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.kept,
        "temperature": body.temperature,
        "text": {"format": format, "verbosity": body.text.verbosity},
        "tool_choice": body.tool_choice or "auto",
        "tools": [repeated(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation,
        "user": body.user,
    }
