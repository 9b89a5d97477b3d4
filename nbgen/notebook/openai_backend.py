"""OpenAI's endpoints of any server: chat and completions, as vLLM, llama.cpp, Ollama and others serve them.

Follows OpenAI's API reference (chat and completions, streaming). Options beyond it have the names that SGLang and vLLM
gave them, both where these differ: OpenAI's own server refuses what it does not know, others leave it out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nbgen import sse
from nbgen.notebook.backend import Words, in_its_words, refuse
from nbgen.notebook.client import Event
from nbgen.notebook.connection import Call, parse_object
from nbgen.sampling_params import DEFAULT_NEW_TOKENS, SPACED

_SAME = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
_ALSO = ("stop", "stop_token_ids", "ignore_eos", "logit_bias", "skip_special_tokens", "n", "regex", "ebnf")
NAMES = {name: name for name in (*_SAME, *_ALSO)} | {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "json_schema": "response_format",
}
#: Grammars in SGLang's words, and their names in vLLM's `structured_outputs`.
GRAMMARS = {"regex": "regex", "ebnf": "grammar"}
#: The fields of a chat besides sampling options, by our names.
CHAT = {
    "messages": "messages",
    "tools": "tools",
    "tool_choice": "tool_choice",
    "template_options": "chat_template_kwargs",
}


class OpenAIBackend:
    """Chat goes to `/v1/chat/completions`, a text to continue to `/v1/completions`."""

    name = "OpenAI's API"
    kind = "openai"

    def __init__(self, model: str) -> None:
        self.model = model

    def run(self, body: Mapping[str, Any]) -> Call:
        refuse(body, ("logit_processor",), self.name)
        params = in_its_words(body["params"], NAMES, self.name)
        if "messages" not in body:
            params.setdefault("max_tokens", DEFAULT_NEW_TOKENS)  # where OpenAI's own default is 16
        if params.get("max_tokens", 0) is None:
            del params["max_tokens"]
        if "response_format" in params:
            params["response_format"] = _format(params["response_format"])
        if named := {theirs: params[own] for own, theirs in GRAMMARS.items() if params.get(own) is not None}:
            params["structured_outputs"] = named
        common = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **params}
        if "messages" in body:
            chat = {theirs: body[own] for own, theirs in CHAT.items() if own in body}
            return Call("POST", "v1/chat/completions", {**chat, **common})
        return Call("POST", "v1/completions", {"prompt": body["prompt"], **common})

    def reader(self) -> OpenAIReader:
        return OpenAIReader()


class OpenAIReader(Words):
    """Reads chunks, then the finish reason, the usage, `[DONE]`. Tool calls come in pieces; the end has them whole."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, dict[str, str]] = {}

    def done(self, reason: Any) -> list[Event]:
        calls = [self._calls[index] for index in sorted(self._calls)]
        self._calls = {}
        told = [("delta", {"text": "", "tokens": 0, "index": 0, "tool_calls": calls})] if calls else []
        return [*told, *super().done(reason)]

    def feed(self, event: sse.Event) -> list[Event]:
        if event.data.strip() == "[DONE]":
            reason, self._reason = self._reason, None  # else `end` would give it again
            return self.done(reason)
        chunk = parse_object(event.data)
        if chunk.get("error"):
            return self.error(chunk["error"])
        usage = chunk.get("usage") or {}
        self.count({**usage, **(usage.get("prompt_tokens_details") or {})})
        return [event for choice in chunk.get("choices") or () for event in self._choice(choice)]

    def _choice(self, choice: Mapping[str, Any]) -> list[Event]:
        if choice.get("finish_reason") and choice.get("index", 0) == 0:
            self._reason = choice["finish_reason"]
        delta = choice.get("delta") or {}
        for piece in (delta.get("tool_calls") or ()) if choice.get("index", 0) == 0 else ():
            self._add(piece)
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        text = delta.get("content") or choice.get("text") or ""
        return self.delta(text, index=choice.get("index", 0), reasoning=reasoning)

    def _add(self, piece: Mapping[str, Any]) -> None:
        """Part of a call: its name first, then its arguments."""
        call = self._calls.setdefault(piece.get("index", 0), {"id": "", "name": "", "arguments": ""})
        function = piece.get("function") or {}
        call["id"] += piece.get("id") or ""
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""


def _format(schema: str) -> dict[str, Any]:
    """The schema as `response_format`, without the keys that only nbgen and llguidance read."""
    kept = {name: value for name, value in json.loads(schema).items() if name not in SPACED}
    wanted = {"name": "answer", "schema": kept, "strict": True}
    return {"type": "json_schema", "json_schema": wanted}
