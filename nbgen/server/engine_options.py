"""The options of the server that are the engine's: each a field of `EngineConfig`, with its default."""

from __future__ import annotations

from traitlets import Bool, Enum, Float, Int, Unicode
from traitlets.config import Configurable

from nbgen.engine_config import EngineConfig

DEFAULTS = EngineConfig()


class EngineOptions(Configurable):
    """What the owner says about the engine."""

    model = Unicode(
        DEFAULTS.model, help="A folder in transformers' format, a hub id, or 'bundled' for the model inside nbgen."
    ).tag(config=True)
    device = Unicode(
        DEFAULTS.device, help="'auto' (the first NVIDIA GPU, else the CPU), 'cpu', 'cuda' or 'cuda:N'."
    ).tag(config=True)
    dtype = Enum(
        ("auto", "float32", "bfloat16", "float16"),
        DEFAULTS.dtype,
        help="Precision of weights and KV cache; 'auto' takes the checkpoint's own where the device has it.",
    ).tag(config=True)
    quantization = Enum(
        (None, "int8", "int4"),
        DEFAULTS.quantization,
        help="Bits of a weight in the linear layers, rounded as the model is loaded: less memory, faster decoding. "
        "None: as the checkpoint has them.",
    ).tag(config=True)
    threads = Int(
        DEFAULTS.threads,
        allow_none=True,
        min=1,
        help="Threads of a CPU model; None: as many as physical cores, as far as a container has them.",
    ).tag(config=True)
    context_length = Int(
        DEFAULTS.context_length,
        allow_none=True,
        min=1,
        help="Longest prompt plus answer, in tokens; None: the model's own.",
    ).tag(config=True)
    kv_cache_bytes = Int(
        DEFAULTS.kv_cache_bytes,
        allow_none=True,
        min=1,
        help="Bytes of KV cache; None: a quarter of the free memory, at most 8 GiB.",
    ).tag(config=True)
    idle_release_seconds = Float(
        DEFAULTS.idle_release_seconds,
        allow_none=True,
        min=0,
        help="Seconds without a request after which the KV cache's memory is given back, with all cached prefixes; the "
        "next request takes it again. A minute at most where the machine's memory is short. None: never.",
    ).tag(config=True)
    max_running = Int(DEFAULTS.max_running, min=1, help="Sequences that decode together.").tag(config=True)
    max_waiting = Int(DEFAULTS.max_waiting, min=1, help="Requests that may wait; one more is refused.").tag(config=True)
    queue_seconds = Float(
        DEFAULTS.queue_seconds, allow_none=True, min=0, help="Seconds a request may wait for its turn; None: no limit."
    ).tag(config=True)
    run_seconds = Float(
        DEFAULTS.run_seconds, allow_none=True, min=0, help="Seconds a request may run; None: no limit."
    ).tag(config=True)
    prefill_chunk = Int(
        DEFAULTS.prefill_chunk,
        allow_none=True,
        min=1,
        help="Prompt tokens that one step computes at most; None: 512 on a CPU, 2,048 on a GPU.",
    ).tag(config=True)
    mixed_chunk = Int(
        DEFAULTS.mixed_chunk,
        allow_none=True,
        min=1,
        help="Prompt tokens of a step that goes on with streams; None: on a CPU about as many as take as long as "
        "these, on a GPU prefill_chunk.",
    ).tag(config=True)
    draft_tokens = Int(
        DEFAULTS.draft_tokens,
        allow_none=True,
        min=0,
        help="Tokens that one step guesses at most, from what followed the same tokens before, and checks at once: "
        "answers that repeat their prompt come faster and are the same. 0: none; None: 7 where nbgen's C++ computes, "
        "elsewhere none.",
    ).tag(config=True)
    compile = Bool(
        DEFAULTS.compile,
        help="Compile the model's small operations: a faster step, a longer start. Needs a C++ compiler.",
    ).tag(config=True)
    cuda_graphs = Bool(
        DEFAULTS.cuda_graphs, help="Decode by CUDA graphs where there is an NVIDIA GPU: faster, takes some memory."
    ).tag(config=True)
    sampling_defaults = Enum(
        ("model", "openai"),
        DEFAULTS.sampling_defaults,
        help="Where unset sampling options come from: the model's generation_config.json, or the constants.",
    ).tag(config=True)
    grammar_backend = Enum(
        ("xgrammar", "llguidance", "none"),
        DEFAULTS.grammar_backend,
        help="What makes answers match a JSON schema, regex or grammar; 'none' refuses such requests.",
    ).tag(config=True)
    enable_custom_logit_processor = Bool(
        DEFAULTS.enable_custom_logit_processor,
        help="Let clients send Python code that changes the model's scores. It runs in the engine process with all of "
        "its rights: only for servers whose every caller may run code here anyway.",
    ).tag(config=True)

    def engine_config(self) -> EngineConfig:
        """What the options come to."""
        fields = [name for name in EngineConfig.__struct_fields__ if self.has_trait(name)]
        return EngineConfig(**{name: getattr(self, name) for name in fields})
