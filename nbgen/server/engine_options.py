"""The options of the server that are the engine's: each a field of `EngineConfig`, with its default and its words.

Does not know what they do.
"""

from __future__ import annotations

import math
from typing import Any

from traitlets import Bool, Enum, Float, Int, Unicode
from traitlets.config import Configurable

from nbgen.engine_config import EngineConfig

#: What a message to the engine can hold.
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


class EngineOptions(Configurable):
    """What the owner says about the engine."""

    model = Unicode(DEFAULTS.model, help=WORDS["model"]).tag(config=True)
    device = Unicode(DEFAULTS.device, help=WORDS["device"]).tag(config=True)
    dtype = Enum(("auto", "float32", "bfloat16", "float16"), DEFAULTS.dtype, help=WORDS["dtype"]).tag(config=True)
    quantization = Enum((None, "int8", "int4"), DEFAULTS.quantization, help=WORDS["quantization"]).tag(config=True)
    threads = Count(DEFAULTS.threads, allow_none=True, min=1, help=WORDS["threads"]).tag(config=True)
    context_length = Count(DEFAULTS.context_length, allow_none=True, min=1, help=WORDS["context_length"]).tag(
        config=True
    )
    kv_cache_bytes = Count(DEFAULTS.kv_cache_bytes, allow_none=True, min=1, help=WORDS["kv_cache_bytes"]).tag(
        config=True
    )
    idle_release_seconds = Seconds(
        DEFAULTS.idle_release_seconds, allow_none=True, help=WORDS["idle_release_seconds"]
    ).tag(config=True)
    max_running = Count(DEFAULTS.max_running, min=1, help=WORDS["max_running"]).tag(config=True)
    max_waiting = Count(DEFAULTS.max_waiting, min=1, help=WORDS["max_waiting"]).tag(config=True)
    queue_seconds = Seconds(DEFAULTS.queue_seconds, allow_none=True, help=WORDS["queue_seconds"]).tag(config=True)
    run_seconds = Seconds(DEFAULTS.run_seconds, allow_none=True, help=WORDS["run_seconds"]).tag(config=True)
    prefill_chunk = Count(DEFAULTS.prefill_chunk, allow_none=True, min=1, help=WORDS["prefill_chunk"]).tag(config=True)
    mixed_chunk = Count(DEFAULTS.mixed_chunk, allow_none=True, min=1, help=WORDS["mixed_chunk"]).tag(config=True)
    draft_tokens = Count(DEFAULTS.draft_tokens, allow_none=True, min=0, help=WORDS["draft_tokens"]).tag(config=True)
    compile = Bool(DEFAULTS.compile, help=WORDS["compile"]).tag(config=True)
    cuda_graphs = Bool(DEFAULTS.cuda_graphs, help=WORDS["cuda_graphs"]).tag(config=True)
    sampling_defaults = Enum(("model", "openai"), DEFAULTS.sampling_defaults, help=WORDS["sampling_defaults"]).tag(
        config=True
    )
    grammar_backend = Enum(
        ("xgrammar", "llguidance", "none"), DEFAULTS.grammar_backend, help=WORDS["grammar_backend"]
    ).tag(config=True)
    enable_custom_logit_processor = Bool(
        DEFAULTS.enable_custom_logit_processor, help=WORDS["enable_custom_logit_processor"]
    ).tag(config=True)

    def engine_config(self) -> EngineConfig:
        """What the options come to."""
        fields = [name for name in EngineConfig.__struct_fields__ if self.has_trait(name)]
        return EngineConfig(**{name: getattr(self, name) for name in fields})
