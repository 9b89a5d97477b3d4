"""A plain Triton server: its generate extension, `v2/models/{model}/generate_stream`.

Follows Triton's extension_generate.md. Options are request parameters, named as Triton's vLLM and TensorRT-LLM back
ends name them. Knows no chat: the extension takes text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from nbgen import sse
from nbgen.errors import InvalidRequest
from nbgen.notebook.backend import Words, in_its_words, refuse
from nbgen.notebook.client import Event
from nbgen.notebook.connection import Call, parse_object
from nbgen.notebook.openai_backend import NAMES
from nbgen.sampling_params import DEFAULT_NEW_TOKENS

#: Options that cannot be said in a parameter, or that Triton would ignore without a word.
_UNSAID = ("n", "json_schema", "regex", "ebnf", "logit_bias")
_NAMES = {name: word for name, word in NAMES.items() if name not in _UNSAID}


class TritonBackend:
    """One text in, a stream of new text out."""

    name = "Triton"
    kind = "triton"

    def __init__(self, model: str) -> None:
        self.model = model

    def run(self, body: Mapping[str, Any]) -> Call:
        if "messages" in body:
            raise InvalidRequest("Triton's generate extension takes a text, not a chat: use complete=True")
        refuse(body, ("logit_processor", "tools", "template_options"), self.name)
        params = in_its_words({"max_new_tokens": DEFAULT_NEW_TOKENS, **body["params"]}, _NAMES, self.name)
        path = f"v2/models/{quote(self.model, safe='')}/generate_stream"
        return Call("POST", path, {"text_input": body["prompt"], "stream": True, "parameters": params})

    def reader(self) -> TritonReader:
        return TritonReader()


class TritonReader(Words):
    """Each event has the new text; the end of the stream is the end of the answer."""

    def feed(self, event: sse.Event) -> list[Event]:
        chunk = parse_object(event.data)
        if chunk.get("error"):
            return self.error(chunk["error"])
        self._reason = chunk.get("finish_reason") or "stop"
        self.count(chunk)
        return self.delta(chunk.get("text_output") or "")
