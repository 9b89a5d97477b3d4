"""What the server tells a fresh engine process to load, and the messages by which the process reports its state."""

from __future__ import annotations

import msgspec

from nbgen.engine_config import BLOCK_SIZE, EngineConfig
from nbgen.messages import Struct


class LoadModel(Struct, frozen=True):
    """The first message to a fresh engine process."""

    config: EngineConfig


class LoadProgress(Struct, frozen=True):
    """A step of loading. `done` and `total` count bytes; both are 0 if nothing can be counted."""

    stage: str
    done: int = 0
    total: int = 0


class ModelInfo(Struct, frozen=True):
    """The properties of the loaded model."""

    name: str
    model_type: str
    architectures: list[str]
    vocab_size: int
    context_length: int
    device: str
    dtype: str
    #: "A": paged attention; "B": also pooled recurrent state; "C": transformers' own cache, one sequence at a time.
    tier: str
    has_chat_template: bool
    #: Whether its decoder runs through torch.compile.
    compiled: bool = False
    #: Whose code the layers run: "C++" and "Triton" are nbgen's own, the rest is "transformers".
    layers_in: str = "transformers"
    #: "int8" or "int4" if the server rounds the weights to that. For a checkpoint that was already quantized, its
    #: format and how it is kept, as "gptq (4 bits)" or "fp8 (written out)".
    quantization: str | None = None
    #: Tokens that fit into the KV cache.
    kv_tokens: int = 0
    #: What keys and values are kept in.
    kv_cache_dtype: str = ""
    #: Most sequences that decode together; 0 if only the configuration limits them.
    max_running: int = 0
    #: Most draft tokens of a step (speculative decoding).
    draft_tokens: int = 0
    #: Whether prompts are computed in chunks (chunked prefill).
    cuts_prompts: bool = True
    caches_prefixes: bool = True
    #: CPU threads that compute.
    threads: int = 0
    #: The sampling fields that `generation_config.json` sets.
    sampling_defaults: dict[str, float] = msgspec.field(default_factory=dict)
    parameters: int = 0
    weight_bytes: int = 0
    #: Width of a hidden state; 0 if unknown.
    hidden_size: int = 0
    #: Width of an input embedding; 0 if the model takes token ids only.
    embed_size: int = 0
    #: Experts that one token is routed to, over all layers; 0 if there are none.
    routed_experts: int = 0
    #: Whether it computes embeddings instead of text.
    is_embedding: bool = False
    #: For a classifier: the names of its classes, and transformers' word for what its scores mean, "" where it has none
    #: ("multi_label_classification": a text may be of several classes; "regression": they are measures, no classes).
    labels: list[str] = msgspec.field(default_factory=list)
    problem_type: str = ""
    #: For a reranker whose chat template asks whether a document answers a query: its tokens for yes and for no.
    verdicts: list[int] = msgspec.field(default_factory=list)
    #: Media that a prompt may hold besides text: some of "image", "audio", "video".
    media: list[str] = msgspec.field(default_factory=list)
    #: The tokenizer's class, chat template and special tokens, by transformers' names.
    tokenizer: dict[str, str | None] = msgspec.field(default_factory=dict)


class EngineReady(Struct, frozen=True):
    """The model is loaded; requests are served."""

    model: ModelInfo
    load_seconds: float = 0.0


class EngineFailed(Struct, frozen=True):
    """The model cannot be loaded; the process ends."""

    message: str


class EngineStatus(Struct, frozen=True):
    """The engine's status, sent between steps, and at least once a second while idle."""

    running: int = 0
    waiting: int = 0
    #: Tokens of prompts that are still to be computed, if nothing of those that wait is cached.
    waiting_tokens: int = 0
    steps: int = 0
    generated_tokens: int = 0
    #: Draft tokens that were proposed, and those of them that were accepted (speculative decoding).
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    #: How often a step of a sequence had draft tokens.
    draft_steps: int = 0

    blocks_total: int = 0
    #: Free blocks, including cached ones that no sequence uses.
    blocks_free: int = 0
    blocks_cached: int = 0
    #: Places for snapshots of recurrent layers' states, from which prompts can continue, and those taken.
    snapshots_total: int = 0
    snapshots_kept: int = 0
    paused: bool = False
    #: Tokens per second over all requests, since the last status.
    throughput: float = 0.0
    #: How often a sequence was preempted: it gave its blocks back and started again.
    preemptions: int = 0
    #: Bytes of the engine's device: used by this process, and in total.
    memory_used: int = 0
    memory_total: int = 0

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into the KV cache now: 0 while it is released."""
        return self.blocks_total * BLOCK_SIZE

    @property
    def used_tokens(self) -> int:
        """Tokens of the KV cache that sequences use, in whole blocks."""
        return (self.blocks_total - self.blocks_free) * BLOCK_SIZE

    @property
    def usage(self) -> float:
        """The share of the KV cache that sequences use; 0 while there is none."""
        return self.used_tokens / max(self.kv_tokens, 1)

    @property
    def accept_rate(self) -> float:
        """The share of draft tokens that were accepted."""
        return self.accepted_tokens / max(self.drafted_tokens, 1)

    @property
    def accept_length(self) -> float:
        """Mean tokens that a sequence gained in a step with draft tokens; 0 before any such step."""
        return 1 + self.accepted_tokens / self.draft_steps if self.draft_steps else 0.0
