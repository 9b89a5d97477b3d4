"""The server's options for the engine: each is a field of `EngineConfig`, with that field's default and description.

Does not know what they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from traitlets import Bool, Enum, Float, Int, TraitType, Unicode
from traitlets.config import Configurable

from nbgen.engine_config import EngineConfig

#: The largest integer that a message to the engine can hold.
MOST = 2**63 - 1
DEFAULTS = EngineConfig()
WORDS = EngineConfig.words()


class Count(Int[Any, Any]):
    """A whole number that fits into 64 bits."""

    def __init__(self, default_value: Any = 0, **options: Any) -> None:
        super().__init__(default_value, **{"max": MOST, **options})


class Seconds(Float[Any, Any]):
    """A number of seconds, not negative and not NaN."""

    def __init__(self, default_value: Any = 0.0, **options: Any) -> None:
        super().__init__(default_value, **{"min": 0, **options})

    def validate(self, obj: Any, value: Any) -> Any:
        if (found := super().validate(obj, value)) is not None and math.isnan(found):
            self.error(obj, value)
        return found


def option(kind: Callable[..., TraitType[Any, Any]], name: str, *choices: Any, **limits: Any) -> Any:
    """The trait for the field of this name."""
    return kind(*choices, getattr(DEFAULTS, name), help=WORDS[name], **limits).tag(config=True)


class EngineOptions(Configurable):
    """What the server's owner decides about the engine."""

    model = option(Unicode, "model")
    device = option(Unicode, "device")
    dtype = option(Enum, "dtype", ("auto", "float32", "bfloat16", "float16"))
    kv_cache_dtype = option(Enum, "kv_cache_dtype", ("auto", "float32", "bfloat16", "float16"))
    quantization = option(Enum, "quantization", (None, "int8", "int4"))
    threads = option(Count, "threads", allow_none=True, min=1)
    context_length = option(Count, "context_length", allow_none=True, min=1)
    kv_cache_bytes = option(Count, "kv_cache_bytes", allow_none=True, min=1)
    idle_release_seconds = option(Seconds, "idle_release_seconds", allow_none=True)
    max_running = option(Count, "max_running", min=1)
    max_waiting = option(Count, "max_waiting", min=1)
    queue_seconds = option(Seconds, "queue_seconds", allow_none=True)
    run_seconds = option(Seconds, "run_seconds", allow_none=True)
    prefill_chunk = option(Count, "prefill_chunk", allow_none=True, min=1)
    mixed_chunk = option(Count, "mixed_chunk", allow_none=True, min=1)
    draft_tokens = option(Count, "draft_tokens", allow_none=True, min=0)
    compile = option(Bool, "compile")
    cuda_graphs = option(Bool, "cuda_graphs")
    sampling_defaults = option(Enum, "sampling_defaults", ("model", "openai"))
    grammar_backend = option(Enum, "grammar_backend", ("xgrammar", "llguidance", "none"))
    enable_custom_logit_processor = option(Bool, "enable_custom_logit_processor")

    def engine_config(self) -> EngineConfig:
        """The options as an `EngineConfig`."""
        fields = [name for name in EngineConfig.__struct_fields__ if self.has_trait(name)]
        return EngineConfig(**{name: getattr(self, name) for name in fields})
