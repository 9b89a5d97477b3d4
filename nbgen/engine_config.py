"""What the owner of the server decides about the engine: one frozen struct, the only place for its defaults."""

from __future__ import annotations

from pathlib import Path

import msgspec

#: The model that ships inside the package, by its short name.
BUNDLED = "bundled"
BUNDLED_FOLDER = Path(__file__).parent / "demo" / "model"
#: Tokens to a block of the KV cache.
BLOCK_SIZE = 16


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine loads and runs its model. Sizes are in tokens unless a name says bytes."""

    #: A folder in transformers' format, a hub id, or "bundled".
    model: str = BUNDLED
    #: "auto" (the first NVIDIA GPU, else the CPU), "cpu", "cuda" or "cuda:N".
    device: str = "auto"
    #: "auto" (the checkpoint's own; float32 where the CPU has no bfloat16 arithmetic), "float32", "bfloat16" or
    #: "float16" (GPU only).
    dtype: str = "auto"
    #: "int8" or "int4": weights of so many bits in the linear layers of a language model; None: the checkpoint's own.
    quantization: str | None = None
    #: Threads of a CPU model; None takes torch's choice, the physical cores, as far as a container has them.
    threads: int | None = None
    #: Longest prompt plus answer; None takes the model's own limit.
    context_length: int | None = None
    #: Bytes of KV cache; None takes min(25% of the free memory, 8 GiB).
    kv_cache_bytes: int | None = None
    #: Seconds without a request after which the KV cache's memory is given back, with all cached prefixes, until the
    #: next request (a minute at most where the machine's memory is short); None: never.
    idle_release_seconds: float | None = 1800.0
    #: Sequences that decode together.
    max_running: int = 64
    #: Requests that may wait; one more is refused.
    max_waiting: int = 2048
    #: Seconds that a request may wait until it runs, and that it may run; None: no limit.
    queue_seconds: float | None = 60.0
    run_seconds: float | None = 600.0
    #: Prompt tokens that one step computes at most; None: 512 on a CPU, 2,048 on a GPU.
    prefill_chunk: int | None = None
    #: … and a step that goes on with streams; None: on a CPU about as many as take as long as these, on a GPU as many
    #: as any other.
    mixed_chunk: int | None = None
    #: Tokens that one step guesses at most, from what stood there before, and checks beside the newest ones; 0: none;
    #: None: 7 where nbgen's own C++ computes, which changes no bit of an answer, and elsewhere none.
    draft_tokens: int | None = None
    #: Whether an NVIDIA GPU decodes by CUDA graphs, which are captured as batch sizes come up.
    cuda_graphs: bool = True
    #: Whether torch.compile fuses the decoder's small operations: a faster step, a start longer by 15 seconds (the
    #: first time by 45), and a C++ compiler needed on the machine.
    compile: bool = False
    #: "model" takes sampling defaults from generation_config.json, "openai" the constants.
    sampling_defaults: str = "model"
    #: What makes answers match a schema, regex or grammar: "xgrammar", "llguidance" or "none".
    grammar_backend: str = "xgrammar"
    #: Whether clients may send code of their own, which runs in the engine process with all of its rights.
    enable_custom_logit_processor: bool = False

    def chunk_on(self, device: str) -> int:
        """Prompt tokens that one step computes at most on a device ("cpu", "cuda:0")."""
        return self.prefill_chunk or (2048 if device.startswith("cuda") else 512)
