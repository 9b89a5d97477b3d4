"""The engine's options, which the server's owner sets: one frozen struct, the only place for their defaults and
descriptions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta

#: The model that ships inside the package, by its short name.
BUNDLED = "bundled"
BUNDLED_FOLDER = Path(__file__).parent / "demo" / "model"
#: Tokens per block of the KV cache.
BLOCK_SIZE = 16


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine loads and runs its model. Sizes are in tokens unless a name says bytes."""

    model: Annotated[
        str, Meta(description="A folder in transformers' format, a hub id, or 'bundled' for the model inside nbgen.")
    ] = BUNDLED
    device: Annotated[
        str, Meta(description="'auto' (the first NVIDIA GPU, else the CPU), 'cpu', 'cuda' or 'cuda:N'.")
    ] = "auto"
    dtype: Annotated[
        str,
        Meta(
            description="What the model computes in: 'float32', 'bfloat16', 'float16' (on a GPU only), or 'auto', the "
            "checkpoint's own where the device has fast arithmetic for it, else 'float32' (on a GPU 'float16'), for "
            "which a CPU reads weights of 16 bits as they are."
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        str,
        Meta(
            description="What keys and values are kept in: 'auto', the type that the model computes in, or 'bfloat16' "
            "where a CPU computes a bfloat16 checkpoint in float32; or that type by its name; or 'bfloat16' for any "
            "model that computes in float32 on a CPU: half the memory of 'float32'."
        ),
    ] = "auto"
    quantization: Annotated[
        str | None,
        Meta(
            description="'int8' or 'int4': bits of a weight in the linear layers of a language model, rounded as it is "
            "loaded: less memory, faster decoding. None: as the checkpoint has them."
        ),
    ] = None
    threads: Annotated[
        int | None,
        Meta(description="Threads of a CPU model; None: as many as physical cores, as far as a container has them."),
    ] = None
    context_length: Annotated[
        int | None, Meta(description="Longest prompt plus answer, in tokens; None: the model's own limit.")
    ] = None
    kv_cache_bytes: Annotated[
        int | None, Meta(description="Bytes of KV cache; None: a quarter of the free memory, at most 8 GiB.")
    ] = None
    idle_release_seconds: Annotated[
        float | None,
        Meta(
            description="Seconds without a request after which the KV cache's memory is given back, with all cached "
            "prefixes; the next request takes it again. A minute at most where the machine's memory is short. None: "
            "never."
        ),
    ] = 1800.0
    max_running: Annotated[int, Meta(description="Sequences that decode together.")] = 64
    max_waiting: Annotated[int, Meta(description="Requests that may wait; one more is refused.")] = 2048
    queue_seconds: Annotated[
        float | None, Meta(description="Seconds that a request may wait for its turn; None: no limit.")
    ] = 60.0
    run_seconds: Annotated[float | None, Meta(description="Seconds that a request may run; None: no limit.")] = 600.0
    prefill_chunk: Annotated[
        int | None,
        Meta(description="Prompt tokens that one step computes at most; None: 512 on a CPU, 2,048 on a GPU."),
    ] = None
    mixed_chunk: Annotated[
        int | None,
        Meta(
            description="Prompt tokens of a step that goes on with streams; None: on a CPU about as many as take as "
            "long as these, on a GPU prefill_chunk."
        ),
    ] = None
    draft_tokens: Annotated[
        int | None,
        Meta(
            description="Tokens that one step guesses at most, from what followed the same tokens before, and checks "
            "at once: answers that repeat their prompt come faster and are the same. 0: none; None: 7 where nbgen's "
            "C++ computes, which changes no bit of an answer, elsewhere none."
        ),
    ] = None
    cuda_graphs: Annotated[
        bool,
        Meta(
            description="Decode by CUDA graphs where there is an NVIDIA GPU, captured as batch sizes come up: faster, "
            "takes some memory."
        ),
    ] = True
    compile: Annotated[
        bool,
        Meta(
            description="Have torch.compile fuse the model's small operations: a faster step, a start longer by "
            "seconds for each layer, most of all the first. Needs a C++ compiler."
        ),
    ] = False
    sampling_defaults: Annotated[
        str,
        Meta(
            description="Where unset sampling options come from: 'model', the model's generation_config.json, or "
            "'openai', the constants."
        ),
    ] = "model"
    grammar_backend: Annotated[
        str,
        Meta(
            description="What makes answers match a JSON schema, regex or grammar: 'xgrammar' or 'llguidance'; 'none' "
            "refuses such requests."
        ),
    ] = "xgrammar"
    enable_custom_logit_processor: Annotated[
        bool,
        Meta(
            description="Let clients send Python code that changes the model's scores. It runs in the engine process "
            "with all of its rights: only for servers whose every caller may run code here anyway."
        ),
    ] = False

    @classmethod
    def words(cls) -> dict[str, str]:
        """The description of each field, by name, for help texts."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: hints[name].__metadata__[0].description for name in cls.__struct_fields__}

    def chunk_on(self, device: str) -> int:
        """Most prompt tokens that one step computes on a device ("cpu", "cuda:0")."""
        return self.prefill_chunk or (2048 if device.startswith("cuda") else 512)
