"""`python -m benchmarks.experts`: a mixture of experts in nbgen's C++ beside transformers' code, and with fewer bits.

In transformers' code attention and all products but those of experts are nbgen's. All take turns in one process
(`cpu_rows`).
"""

from contextlib import ExitStack
from unittest import mock

from benchmarks.cpu_rows import compared, engine, keep
from nbgen.engine import native_experts, probe, quantization
from nbgen.engine.assembly import Assembly
from nbgen.engine.known_scores import KnownScores

MODEL = "a400"


def stock() -> Assembly:
    """Without experts and layers of our own."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(native_experts, "known", return_value=False))
        stack.enter_context(mock.patch.object(probe, "_give_native_layers"))
        stack.enter_context(mock.patch.object(KnownScores, "recall", return_value=None))
        return engine(MODEL)


def main() -> None:
    ours = (engine(MODEL, quantization=kind) for kind in (None, *quantization.KINDS))
    keep("experts", {MODEL: compared(stock(), *ours, alike=False)})


if __name__ == "__main__":
    main()
