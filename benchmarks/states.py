"""`python -m benchmarks.states`: recurrent layers' states in nbgen's C++ beside transformers' functions.

Products and attention are nbgen's in both. One engine does the rows of `cpu_rows` with the one and the other in turn,
in bfloat16.
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from benchmarks import shapes
from benchmarks.cpu_rows import ROWS, keep
from benchmarks.rounded_speed import seconds
from nbgen.engine import native_delta, native_scan
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine_config import EngineConfig

MODELS = ("d08", "h350")
TURNS = 3


def engine(model: str) -> Assembly:
    folder = str(shapes.checkpoint(model))
    config = EngineConfig(model=folder, threads=1, dtype="bfloat16", kv_cache_bytes=2**29, draft_tokens=0)
    return assemble(config, lambda *_: None)


@contextmanager
def by(name: str) -> Iterator[None]:
    """Have states computed by transformers, or by us."""
    with ExitStack() as stack:
        for module in (native_delta, native_scan) if name == "transformers" else ():
            stack.enter_context(mock.patch.object(module, "_suits", return_value=False))
        yield


def measure(model: str) -> dict[str, list[float]]:
    """Tokens a second by transformers' functions, and by ours, of each row."""
    assembly, found = engine(model), {}
    for name, row in ROWS.items():
        taken: dict[str, list[float]] = {"transformers": [], "nbgen": []}
        for turn in range(TURNS + 1):
            for place, side in enumerate(taken):
                with by(side):
                    taken[side].append(seconds(assembly, *row, 2 * turn + place)[0])
        tokens = row[0] * row[2] if row[2] > 1 else row[1]
        found[name] = [tokens / statistics.median(each[1:]) for each in taken.values()]
    return found


def main() -> None:
    keep("states", {model: measure(model) for model in MODELS})


if __name__ == "__main__":
    main()
