"""A plain SGLang server: texts through its native `/generate`, chats through its OpenAI endpoint.

Follows SGLang 0.5.23 (chunks are cumulative). `/generate` has no chat template, hence the two endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbgen import sse
from nbgen.notebook.client import Event
from nbgen.notebook.connection import Call, parse_object
from nbgen.notebook.openai_backend import OpenAIBackend, OpenAIReader


class SGLangBackend(OpenAIBackend):
    """Options of `/generate` have the same names as nbgen's own."""

    name = "SGLang"
    kind = "sglang"

    def run(self, body: Mapping[str, Any]) -> Call:
        if "messages" in body:
            return super().run(body)
        params = {name: value for name, value in body["params"].items() if value is not None}
        asked = {"text": body["prompt"], "sampling_params": params, "stream": True}
        processor = body.get("logit_processor")
        return Call("POST", "generate", asked | ({"custom_logit_processor": processor} if processor else {}))

    def reader(self) -> SGLangReader:
        return SGLangReader()


class SGLangReader(OpenAIReader):
    """Reads the cumulative chunks of `/generate`, or those of a chat."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, int] = {}

    def feed(self, event: sse.Event) -> list[Event]:
        chunk = parse_object(event.data)
        meta = chunk.get("meta_info")
        if meta is None:
            return super().feed(event)
        index, text = chunk.get("index") or 0, chunk.get("text", "")
        new = text[self._seen.get(index, 0) :]
        self._seen[index] = len(text)
        before = self._usage.get("completion_tokens", 0)
        if index == 0:
            self.count(meta)
            self._reason = meta.get("finish_reason")
        return self.delta(new, self._usage.get("completion_tokens", 0) - before, index)
