"""nbgen's own API: the bodies that the panel and the helpers send, and the events and snapshots that they read.

Pure: knows neither where a run lives nor how its events travel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

import msgspec

from nbgen import sse
from nbgen.engine_state import LoadProgress
from nbgen.errors import InvalidRequest, NbgenError
from nbgen.identifiers import check_identifier
from nbgen.media_types import MAX_MEDIA
from nbgen.messages import AnswerPart, FinishReason, GenerateRequest, LogprobOptions, TokenLogprobs, ToolCall
from nbgen.protocols.chat_messages import Part, Turn, check_count, conversation, part_item, template_options
from nbgen.protocols.json_body import check_range, check_text_size, convert, parse_object
from nbgen.protocols.media import Item, check_media
from nbgen.protocols.openai_tools import Tool, ToolChoice, tool_options
from nbgen.sampling_params import SamplingParams

#: Values that `model/load` accepts.
QUANTIZATIONS = ("int8", "int4", "none")
MAX_FRAME_MS = 1000
MAX_FOLLOWED = 512
MAX_LOGPROBS = 20


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of this API: unknown fields are refused by name."""


class Message(Turn, kw_only=True):
    """A turn, as this API accepts and returns it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part]

    @property
    def text(self) -> str:
        """Its text, without media."""
        return self.content if isinstance(self.content, str) else "".join(part.words or "" for part in self.content)

    @property
    def size(self) -> int:
        """Bytes of its text, reasoning and call arguments."""
        written = (self.text, self.reasoning_content or "", *(call.arguments for call in self.tool_calls or ()))
        return sum(len(each.encode()) for each in written)


class RunBody(Body):
    """The body that starts a run.

    `logprobs` asks for the log-probability of each token, and of that many likeliest tokens beside it. The answer
    begins with the tokens of `prefix_ids`, as if the model had sampled them. `logit_processor` is SGLang's
    `custom_logit_processor`. `adapter` names a LoRA adapter. Messages are OpenAI's, with images and sounds as parts; a
    prompt has its own as `media`, parts of the same kind. `tools` and `tool_choice` are OpenAI's, too: an answer to
    messages comes with reasoning and calls apart from its text. `template_options` are the template's own variables.
    `changes`, the number that `hello` gave, makes the run fail if the model was replaced or unloaded since then.
    """

    messages: list[Message] | None = None
    prompt: str | None = None
    media: list[Part] = []
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    template_options: dict[str, Any] = {}
    params: dict[str, Any] = {}
    prefix_ids: list[int] = []
    logprobs: int | None = None
    logit_processor: str | None = None
    adapter: str = ""
    changes: int | None = None
    id: str | None = None
    chat: str | None = None
    stream: bool = True
    attached: bool = True
    frame_ms: int = 0

    def check(self) -> None:
        """Raise InvalidRequest for errors that types cannot express."""
        if (self.messages is None) == (self.prompt is None):
            raise InvalidRequest("give exactly one of `messages` and `prompt`", field="messages")
        of_chats = {"tools": self.tools, "template_options": self.template_options}
        if self.messages is None and (given := [name for name in of_chats if of_chats[name]]):
            raise InvalidRequest(f"`{given[0]}` go with `messages`, which a chat template writes", field=given[0])
        if self.media and self.prompt is None:
            raise InvalidRequest("`media` go with a `prompt`; messages have theirs as parts", field="media")
        if len(self.media) > MAX_MEDIA:
            raise InvalidRequest(f"`media` has {len(self.media)} parts; at most {MAX_MEDIA}", field="media")
        if self.messages is not None:
            check_count(self.messages)
        size = len((self.prompt or "").encode()) + sum(message.size for message in self.messages or ())
        check_text_size("prompt", size)
        for name, value in (("id", self.id), ("chat", self.chat)):
            if value is not None:
                check_identifier(value, name)
        check_range("frame_ms", self.frame_ms, 0, MAX_FRAME_MS)
        check_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    def request(self, rid: str) -> tuple[GenerateRequest, list[Item]]:
        """The request that this body asks for, and its media. Raises InvalidRequest."""
        messages, media = (None, [part_item(part) for part in self.media])
        if self.messages is not None:
            messages, media = conversation(self.messages)
        check_media(media, "media")
        request = GenerateRequest(
            rid=rid,
            text=self.prompt,
            messages=messages,
            tools=tool_options(self.tools, self.tool_choice, guided=True),
            parts=messages is not None,
            thoughts=messages is not None,
            template_options=template_options(self.template_options, "template_options"),
            prefix_ids=self.prefix_ids,
            logit_processor=self.logit_processor or None,
            adapter=self.adapter,
            params=SamplingParams.parse(self.params),
            logprobs=None if self.logprobs is None else LogprobOptions(top=self.logprobs, text=True),
            streamed=self.stream,
        )
        return request, media


class SubscribeBody(Body):
    """The body that opens one stream for many runs."""

    start: RunBody | None = None
    follow: dict[str, int] = {}
    frame_ms: int = 0


class LoadBody(Body):
    """Which model to load; None means the configured one.

    `quantization` is one of QUANTIZATIONS; None means the server's option or, without a `model`, the present one.
    """

    model: str | None = None
    quantization: str | None = None

    def check(self) -> None:
        """Raise InvalidRequest for an unknown quantization."""
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            words = f"quantization is one of {', '.join(QUANTIZATIONS)}, got {self.quantization!r:.80}"
            raise InvalidRequest(words, field="quantization")


class Snapshot(msgspec.Struct, kw_only=True):
    """A run as it stands."""

    run: str
    chat: str | None
    state: str
    messages: Sequence[Message] | None
    prompt: str | None
    prefix_ids: list[int]
    text: str
    texts: list[str]
    reasoning: str
    tool_calls: list[ToolCall]
    seq: int
    finish_reason: FinishReason | None
    error: dict[str, Any] | None
    usage: dict[str, int]
    ttft_s: float | None
    tokens_per_s: float | None
    model: str
    identity: str
    params: SamplingParams
    created: float


def parse_run(body: bytes) -> RunBody:
    """The body of `POST runs`."""
    run = convert(parse_object(body), RunBody)
    run.check()
    return run


def parse_subscribe(body: bytes) -> SubscribeBody:
    """The body of `POST subscribe`."""
    fields = convert(parse_object(body), SubscribeBody)
    if fields.start is not None:
        fields.start.check()
    elif not fields.follow:
        raise InvalidRequest("give `start` or at least one run in `follow`", field="follow")
    if len(fields.follow) > MAX_FOLLOWED or any(offset < 0 for offset in fields.follow.values()):
        raise InvalidRequest(
            f"`follow` takes at most {MAX_FOLLOWED} runs, each from an offset of 0 or more", field="follow"
        )
    for id in fields.follow:  # it is sent back in the ids of events
        check_identifier(id, "follow")
    check_range("frame_ms", fields.frame_ms, 0, MAX_FRAME_MS)
    return fields


def parse_load(body: bytes) -> LoadBody:
    """The body of `POST model/load`."""
    load = convert(parse_object(body), LoadBody)
    load.check()
    return load


def parse_offset(start: str | None, last_event_id: str | None) -> int:
    """Where to resume: `?from=SEQ`, else the number in `Last-Event-ID: run:seq`, else the beginning."""
    digits = start if start is not None else (last_event_id or "0").rpartition(":")[2]
    if not re.fullmatch(r"[0-9]{1,12}", digits):
        raise InvalidRequest("`from` must be a number of 0 or more", field="from")
    return int(digits)


def event(name: str, run: str, seq: int, **fields: Any) -> bytes:
    """One event of a run; `seq` is the offset to resume from after it."""
    body = msgspec.json.encode({"run": run, "seq": seq, **fields})
    return sse.encode(body, event=name, id=f"{run}:{seq}")


def model_event(name: str, body: bytes) -> bytes:
    """One event of a load: `progress`, `ready` or `error`, with its JSON."""
    return sse.encode(body, event=name)


def token_fields(entry: TokenLogprobs) -> list[Any]:
    """A token as deltas carry it: [id, text, logprob, [[id, text, logprob] of each of the likeliest], offset].

    The last counts the whole characters of the text before it.
    """
    own, *top = ([token, text, logprob] for logprob, token, text in (entry.token, *(entry.top or ())))
    return [*own, top, entry.offset]


def part_fields(parts: list[AnswerPart]) -> dict[str, Any]:
    """Reasoning, calls and new text of unfinished calls, as deltas carry them. A call that was cut is left out."""
    over = {part.tool_call.id for part in parts if part.tool_call and not part.cut}
    begun = [part.tool_call_delta for part in parts if part.tool_call_delta and part.tool_call_delta.id not in over]
    found = {
        "reasoning": "".join(part.reasoning for part in parts),
        "tool_call_deltas": [_joined(list(row)) for _, row in groupby(begun, attrgetter("id"))],
        "tool_calls": [msgspec.to_builtins(part.tool_call) for part in parts if part.tool_call and not part.cut],
    }
    return {name: value for name, value in found.items() if value}


def _joined(row: list[ToolCall]) -> dict[str, str]:
    """The new part of one call."""
    return {"id": row[0].id, "name": row[0].name, "arguments": "".join(new.arguments for new in row)}


def progress_fields(progress: LoadProgress) -> dict[str, Any]:
    """A step of loading, as events carry it."""
    return {"stage": progress.stage, "done": progress.done, "total": progress.total}


def error_fields(error: NbgenError) -> dict[str, Any]:
    """An error as events and snapshots carry it."""
    fields = {"message": error.message, "code": error.status, "retryable": error.retryable}
    return fields | ({"field": error.field} if error.field else {})


def error_body(error: NbgenError) -> bytes:
    """An error as the body of an answer."""
    return msgspec.json.encode({"error": error_fields(error)})
