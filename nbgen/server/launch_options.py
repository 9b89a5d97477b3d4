"""Options on the command line: short names of NbgenApp's, those of SGLang's launcher among them, and JSON as values."""

import json
from typing import Any

from traitlets import Dict


class JsonDict(Dict):
    """A dictionary of JSON's values: NAME=VALUE as often as there are some, or an object. What is no JSON is text."""

    def item_from_string(self, s: str) -> dict[str, Any]:
        return {name: _json(value) for name, value in super().item_from_string(s).items()}

    def from_string_list(self, s_list: list[str]) -> Any:
        found = _json(s_list[0]) if len(s_list) == 1 else None
        return found if isinstance(found, dict) else super().from_string_list(s_list)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


ALIASES: dict[str, str] = {
    "model": "NbgenApp.model",
    "device": "NbgenApp.device",
    "dtype": "NbgenApp.dtype",
    "quantization": "NbgenApp.quantization",
    # As SGLang's launch options are called.
    "model-path": "NbgenApp.model",
    "context-length": "NbgenApp.context_length",
    "sampling-defaults": "NbgenApp.sampling_defaults",
    "grammar-backend": "NbgenApp.grammar_backend",
    "max-running-requests": "NbgenApp.max_running",
    "max-queued-requests": "NbgenApp.max_waiting",
    "chunked-prefill-size": "NbgenApp.prefill_chunk",
    "preferred-sampling-params": "NbgenApp.preferred_sampling_params",
    "stream-interval": "NbgenApp.stream_interval",
    "adapters": "NbgenApp.adapters",
    "lora-paths": "NbgenApp.adapters",
    "allow-media-host": "NbgenApp.allow_media_hosts",
    "media-root": "NbgenApp.media_root",
    "max-connections": "StandaloneServerApp.max_connections",
}


def _flag(name: str, words: str) -> tuple[dict[str, Any], str]:
    return {"NbgenApp": {name: True}}, words


FLAGS: dict[str, tuple[dict[str, Any], str]] = {
    "incremental-streaming-output": _flag("incremental_streaming_output", "Streams of what is new only."),
    "allow-auto-truncate": _flag("allow_auto_truncate", "Cut what the context does not hold."),
    "enable-torch-compile": _flag("compile", "Compile the model's small operations."),
    "enable-custom-logit-processor": _flag("enable_custom_logit_processor", "Run Python code that clients send."),
}
