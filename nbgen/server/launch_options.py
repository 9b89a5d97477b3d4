"""Short names of NbgenApp's options on the command line, those of SGLang's launcher among them."""

from typing import Any

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
