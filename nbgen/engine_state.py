"""What the server tells a fresh engine process to load, and what the process says of itself from then on."""

from __future__ import annotations

import msgspec

from nbgen.engine_config import EngineConfig
from nbgen.messages import Struct


class LoadModel(Struct, frozen=True):
    """The first message to a fresh engine process."""

    config: EngineConfig


class LoadProgress(Struct, frozen=True):
    """A step of loading. `done` and `total` count bytes, or are both 0 where nothing can be counted."""

    stage: str
    done: int = 0
    total: int = 0


class ModelInfo(Struct, frozen=True):
    """What is loaded."""

    name: str
    model_type: str
    architectures: list[str]
    vocab_size: int
    context_length: int
    device: str
    dtype: str
    #: "A" paged attention, "B" that and pooled recurrent state, "C" transformers' own cache one sequence at a time.
    tier: str
    has_chat_template: bool
    #: Whether its decoder runs through torch.compile.
    compiled: bool = False
    #: Whose code its layers are: "C++" and "Triton" are nbgen's own, the rest is "transformers".
    layers_in: str = "transformers"
    #: "int8" or "int4" where the server rounds the weights so; of a checkpoint that was quantized before, its format
    #: and what is kept of it, as "gptq (4 bits)" or "fp8 (written out)".
    quantization: str | None = None
    #: Tokens that the KV cache holds.
    kv_tokens: int = 0
    #: Sequences that decode together; 0 where nothing but the configuration limits them.
    max_running: int = 0
    #: Tokens that a step guesses at most.
    draft_tokens: int = 0
    #: Whether prompts are computed in pieces.
    cuts_prompts: bool = True
    caches_prefixes: bool = True
    #: CPU threads that compute.
    threads: int = 0
    #: Of `generation_config.json`: the sampling fields it sets.
    sampling_defaults: dict[str, float] = msgspec.field(default_factory=dict)
    parameters: int = 0
    weight_bytes: int = 0
    #: Width of a hidden state; 0 where it cannot be told.
    hidden_size: int = 0
    #: Width of an input embedding; 0 where the model takes ids alone.
    embed_size: int = 0
    #: Experts of one token, over all layers; 0 where there are none.
    routed_experts: int = 0
    #: Whether it makes vectors, not text.
    is_embedding: bool = False
    #: Of one that tells classes apart: what these are called, and whether a text may be of several at once.
    labels: list[str] = msgspec.field(default_factory=list)
    labels_overlap: bool = False
    #: Of a reranker, whose chat template asks whether a document answers a query: its tokens for yes and for no.
    verdicts: list[int] = msgspec.field(default_factory=list)
    #: What a prompt may hold besides text: of "image", "audio", "video".
    media: list[str] = msgspec.field(default_factory=list)
    #: Of its tokenizer: the class, the chat template and special tokens, by the names that transformers has for them.
    tokenizer: dict[str, str | None] = msgspec.field(default_factory=dict)


class EngineReady(Struct, frozen=True):
    """The model is loaded; requests are served."""

    model: ModelInfo
    load_seconds: float = 0.0


class EngineFailed(Struct, frozen=True):
    """The model cannot be loaded; the process ends."""

    message: str


class EngineStatus(Struct, frozen=True):
    """The engine's pulse: sent between steps, and at least once a second while idle."""

    running: int = 0
    waiting: int = 0
    steps: int = 0
    generated_tokens: int = 0
    #: Tokens that were guessed before they came, and those of them that did.
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    #: How often a sequence's step had some.
    draft_steps: int = 0

    blocks_total: int = 0
    #: Free ones and cached ones that nobody uses.
    blocks_free: int = 0
    blocks_cached: int = 0
    #: Places for states of recurrent layers that prompts can begin from, and those taken.
    snapshots_total: int = 0
    snapshots_kept: int = 0
    paused: bool = False
    #: Tokens a second, all requests together, since the last pulse.
    throughput: float = 0.0
    #: Sequences that had to give their blocks back and start again.
    preemptions: int = 0
    #: Bytes of the engine's device: taken by this process, and in all.
    memory_used: int = 0
    memory_total: int = 0

    @property
    def accept_rate(self) -> float:
        """The share of guesses that came true."""
        return self.accepted_tokens / max(self.drafted_tokens, 1)

    @property
    def accept_length(self) -> float:
        """Tokens that a sequence gained by a step with guesses; 0 where there was none."""
        return 1 + self.accepted_tokens / self.draft_steps if self.draft_steps else 0.0
