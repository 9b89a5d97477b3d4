"""`python -m benchmarks.experts`: a mixture of experts in nbgen's C++ beside transformers' code, and with fewer bits.

In transformers' code attention and all products but those of experts are nbgen's. All take turns in one process
(`cpu_rows`).
"""

from contextlib import ExitStack
from unittest import mock

from benchmarks import shapes
from benchmarks.cpu_rows import compared, keep
from nbgen.engine import native_experts, probe, quantization
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine.known_scores import KnownScores
from nbgen.engine_config import EngineConfig

MODEL = "a400"


def engine(kind: str | None = None) -> Assembly:
    config = EngineConfig(
        model=str(shapes.checkpoint(MODEL)),
        threads=1,
        dtype="bfloat16",
        quantization=kind,
        kv_cache_bytes=2**27,
        draft_tokens=0,
    )
    return assemble(config, lambda *_: None)


def stock() -> Assembly:
    """Without experts and layers of our own."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(native_experts, "known", return_value=False))
        stack.enter_context(mock.patch.object(probe, "_give_native_layers"))
        stack.enter_context(mock.patch.object(KnownScores, "recall", return_value=None))
        return engine()


def main() -> None:
    keep("experts", {MODEL: compared(stock(), engine(), *map(engine, quantization.KINDS), alike=False)})


if __name__ == "__main__":
    main()
