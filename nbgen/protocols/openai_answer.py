"""OpenAI's completions and chat completions: renders what the sequences have produced, and errors, as bytes.

Streams carry only what is new. Knows nothing of requests' bodies (`openai`).
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from nbgen import sse
from nbgen.engine_config import EngineConfig
from nbgen.engine_state import ModelInfo
from nbgen.errors import NbgenError, NotFound, Unauthorized
from nbgen.messages import GenerateRequest
from nbgen.protocols.openai import Call
from nbgen.protocols.openai_logprobs import chat_logprobs, completion_logprobs, prompt_offsets
from nbgen.protocols.openai_message import Deltas, message
from nbgen.protocols.sample import WEIGHT_VERSION, Sample
from nbgen.protocols.sglang_tensors import last_state, routed_experts


class Choice:
    """One sequence of a call, and how much of it a stream has sent."""

    def __init__(self, call: Call, request: GenerateRequest, index: int) -> None:
        self._call = call
        self._request = request
        self._index = index
        self._text = 0
        self._parts = 0
        self._message = Deltas()
        self._logprobs = 0
        #: How many output ids were sent; None before the prompt's ids were.
        self._ids: int | None = None
        #: Offset of the answer in the text: the length of the prompt's if that is echoed.
        self._start = 0
        self._begun = False
        self._echoes_text = self._echoes_logprobs = call.echo
        self.ended = False

    def whole(self, sample: Sample) -> dict[str, Any]:
        """The choice of a call without `stream`."""
        said = {"message": message(sample)} if self._call.chat else {"text": self._take_text(sample)}
        choice = self._choice(sample, said, self._take_logprobs(sample))
        return choice | self._hidden_states(sample) | self._take_ids(sample)

    def states(self, sample: Sample) -> list[dict[str, Any]]:
        """The choice of the chunk after all others, which carries hidden states if they are wanted."""
        states = self._hidden_states(sample)
        return [self._delta(states if self._call.chat else {"text": "", **states})] if states else []

    def deltas(self, sample: Sample) -> list[dict[str, Any]]:
        """The choices of the next chunks: first the role, then what is new, and finally the finish reason.

        Empty before the first output, with which everything comes that `echo` shows of the prompt.
        """
        if self.ended or not (sample.output_ids or sample.finish_reason):
            return []
        found = [] if self._begun or not self._call.chat else [self._delta({"role": "assistant", "content": ""})]
        self._begun = True
        contents = self._take_contents(sample)
        written = self._num_written(sample)
        if not contents and self._call.logprobs and written > self._logprobs:
            contents = [self._content("")]
        some = written > self._logprobs or self._echoes_logprobs  # held-back text may come without a token
        logprobs = [self._take_logprobs(sample, written)] if contents and some else []
        found += [self._delta(*each) for each in itertools.zip_longest(contents, logprobs)]
        if sample.finish_reason is not None:
            self.ended = True
            rest = self._take_logprobs(sample) if self._logprobs < len(sample.logprobs) else None
            found.append(self._choice(sample, {"delta": {}} if self._call.chat else {"text": ""}, rest))
        if found:
            found[0] |= self._take_ids(sample)
        return found

    def nothing(self) -> dict[str, Any]:
        """An empty choice, which only keeps the stream alive."""
        return self._delta({} if self._call.chat else {"text": ""})

    def _hidden_states(self, sample: Sample) -> dict[str, Any]:
        wanted = self._request.tensors is not None and self._request.tensors.last_hidden_state
        return {"hidden_states": last_state(sample)} if wanted else {}

    def _take_ids(self, sample: Sample) -> dict[str, Any]:
        """The new token ids, if wanted; the prompt's ids come once."""
        before, self._ids = self._ids, len(sample.output_ids)
        prompt = {"prompt_token_ids": sample.prompt_ids} if self._request.prompt_ids and before is None else {}
        return prompt | ({"token_ids": sample.output_ids[before or 0 :]} if self._call.token_ids else {})

    def _take_contents(self, sample: Sample) -> list[dict[str, Any]]:
        """The new content of the next deltas."""
        if sample.parts is None or not self._call.chat:
            text = self._take_text(sample)
            return [self._content(text)] if text else []
        new, self._parts = sample.parts[self._parts :], len(sample.parts)
        return list(self._message.of(new))

    def _content(self, text: str) -> dict[str, Any]:
        return {"content": text} if self._call.chat else {"text": text}

    def _delta(self, content: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        fields = {"delta": content} if self._call.chat else content
        return {"index": self._index, **fields, "logprobs": logprobs, "finish_reason": None, "matched_stop": None}

    def _choice(self, sample: Sample, content: dict[str, Any], logprobs: dict[str, Any] | None) -> dict[str, Any]:
        reason = sample.finish_reason
        ended = "tool_calls" if reason and reason.type == "stop" and sample.tool_calls else reason and reason.type
        return {
            "index": self._index,
            **content,
            "logprobs": logprobs,
            "finish_reason": ended,
            "matched_stop": reason.matched if reason else None,
        }

    def _take_text(self, sample: Sample) -> str:
        """The new text; with `echo` the prompt's text comes first."""
        echoed = self._prompt_text(sample) if self._echoes_text else ""
        self._echoes_text = False
        text, self._text = sample.text[self._text :], len(sample.text)
        return echoed + text

    def _prompt_text(self, sample: Sample) -> str:
        return self._request.text if self._request.text is not None else sample.prompt_text or ""

    def _num_written(self, sample: Sample) -> int:
        """Number of tokens to send by now. Final tokens without text wait for the last chunk.

        This is for clients that assemble a chunk's text from its tokens.
        """
        count = len(sample.logprobs)
        while sample.finish_reason and count > self._logprobs and sample.logprobs[count - 1].offset >= len(sample.text):
            count -= 1
        return count

    def _take_logprobs(self, sample: Sample, end: int | None = None) -> dict[str, Any] | None:
        if not self._call.logprobs:
            return None
        new = sample.logprobs[self._logprobs : end]
        self._logprobs += len(new)
        if self._call.chat:
            return chat_logprobs(new)
        echoed, offsets = [], []
        if self._echoes_logprobs:
            prompt, echoed = self._prompt_text(sample), sample.prompt_logprobs
            self._echoes_logprobs, self._start, offsets = False, len(prompt), prompt_offsets(prompt, echoed)
        return completion_logprobs(echoed + new, offsets + [self._start + entry.offset for entry in new])


class Answer:
    """One call's answer, whole or as a stream of chunks."""

    def __init__(self, call: Call, model: str) -> None:
        self._call = call
        self._model = model
        self._id = ("chatcmpl-" if call.chat else "cmpl-") + uuid.uuid4().hex
        self._created = int(time.time())
        #: The common beginning of all events.
        self._head = msgspec.json.encode(self._object(".chunk"))[:-1]
        places = iter(range(sum(request.params.n for request in call.requests)))
        self.choices = [[Choice(call, r, next(places)) for _ in range(r.params.n)] for r in call.requests]

    def whole(self, samples: list[list[Sample]]) -> bytes:
        """The body of a call without `stream`; samples are grouped by prompt."""
        # vLLM puts the prompt's ids beside a chat's choices, SGLang into each choice.
        beside = self._call.chat and self._call.requests[0].prompt_ids
        prompt = {"prompt_token_ids": samples[0][0].prompt_ids} if beside else {}
        choices = [msgspec.Raw(msgspec.json.encode(choice.whole(sample))) for choice, sample in self._pairs(samples)]
        rest = {"choices": choices, "usage": _usage(samples), "metadata": _METADATA}
        return msgspec.json.encode(self._object("") | rest | prompt | self._extension(samples))

    def chunks(self, samples: list[list[Sample]]) -> bytes:
        """The events for what is new."""
        usage = _usage(samples) if self._call.usage_in_each else None
        deltas = [delta for choice, sample in self._pairs(samples) for delta in choice.deltas(sample)]
        return b"".join([self._event([delta], usage) for delta in deltas])

    def empty_chunk(self, samples: list[list[Sample]]) -> bytes:
        """An event without content, which keeps the stream alive: some clients end it at anything that is no event."""
        going = next(choice for choices in self.choices for choice in choices if not choice.ended)
        return self._event([going.nothing()], _usage(samples) if self._call.usage_in_each else None)

    def end(self, samples: list[list[Sample]]) -> bytes:
        """The events after the last chunk: hidden states, experts and usage, if asked for, and `[DONE]`."""
        deltas = [delta for choice, sample in self._pairs(samples) for delta in choice.states(sample)]
        states = [self._event([delta], None) for delta in deltas]
        experts = self._event([], None, found) if (found := self._extension(samples)) else b""
        usage = self._event([], _usage(samples)) if self._call.usage else b""
        return b"".join([*states, experts, usage, sse.DONE])

    def _pairs(self, samples: list[list[Sample]]) -> Iterator[tuple[Choice, Sample]]:
        for choices, group in zip(self.choices, samples, strict=True):
            yield from zip(choices, group, strict=True)

    def _extension(self, samples: list[list[Sample]]) -> dict[str, Any]:
        """SGLang's extension beside the choices: the routed experts of the first choice."""
        options = self._call.requests[0].tensors
        if options is None or options.routed_experts is None:
            return {}
        return {"sglext": {"routed_experts": routed_experts(samples[0][0])}}

    def _event(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None, extension: dict[str, Any] | None = None
    ) -> bytes:
        rest = msgspec.json.encode({"choices": choices, "usage": usage, **(extension or {})})
        return sse.encode(b"%s,%s" % (self._head, rest[1:]))

    def _object(self, suffix: str) -> dict[str, Any]:
        kind = "chat.completion" + suffix if self._call.chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


_METADATA = {"weight_version": WEIGHT_VERSION}


def error_body(error: NbgenError) -> bytes:
    """An error both flat, as SGLang's servers have it, and nested, as OpenAI's do: clients look for either."""
    fields = error_fields(error)
    return msgspec.json.encode({"object": "error", **fields, "error": fields})


def error_event(error: NbgenError) -> bytes:
    """An error after the stream began. No `[DONE]` follows it."""
    return sse.encode(msgspec.json.encode({"error": {"object": "error", **error_fields(error)}}))


def error_fields(error: NbgenError) -> dict[str, Any]:
    """Message, type, field and code. The code is the error's name if clients know one, else the status."""
    code: str | int = error.code or error.status
    if isinstance(error, NotFound) and error.field == "model":
        code = "model_not_found"
    elif isinstance(error, Unauthorized):
        code = "invalid_api_key"
    return {"message": error.message, "type": _kind(error), "param": error.field, "code": code}


def _kind(error: NbgenError) -> str:
    """The error's type, by which some clients (LiteLLM) choose the exception to raise."""
    if error.status >= 500:
        return "server_error"
    return {401: "authentication_error", 403: "permission_error"}.get(error.status, "invalid_request_error")


def model_card(config: EngineConfig, model: ModelInfo | None, created: int) -> dict[str, Any]:
    """An entry of `/v1/models`: OpenAI's fields, and those of Anthropic's clients, which ask the same route."""
    return {
        "id": config.model,
        "object": "model",
        "created": created,
        "type": "model",
        "display_name": config.model,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
        "lifecycle": "active",
        "owned_by": "nbgen",
        "root": config.model,
        "parent": None,
        "max_model_len": model.context_length if model else config.context_length,
    }


def _usage(samples: list[list[Sample]]) -> dict[str, Any]:
    """Token counts: a prompt counts once, even with several samples; every sample counts."""
    prompt = sum(group[0].prompt_tokens for group in samples)
    cached = sum(group[0].cached_tokens for group in samples)
    completion = sum(sample.completion_tokens for group in samples for sample in group)
    reasoning = sum(sample.reasoning_tokens for group in samples for sample in group)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "reasoning_tokens": reasoning,
        **({"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {}),
    }
