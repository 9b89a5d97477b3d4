"""`python -m benchmarks.states`: recurrent layers' states in nbgen's C++ beside transformers' functions.

Products and attention are nbgen's in both. One engine does the rows of `cpu_rows` with the one and the other in turn,
in bfloat16.
"""

from contextlib import ExitStack
from functools import partial
from unittest import mock

from benchmarks.cpu_rows import compared_runs, engine, keep
from benchmarks.rounded_speed import seconds
from nbgen.engine import native_delta, native_scan
from nbgen.engine.assembly import Assembly

MODELS = ("d08", "h350")
#: Turns have as many seeds at most.
OTHERS = 1000


def by_transformers(assembly: Assembly, *row: int) -> tuple[float, list[list[int]]]:
    """A row in its turn, of other prompts than ours, of which nothing is cached."""
    *counts, turn = row
    with ExitStack() as stack:
        for module in (native_delta, native_scan):
            stack.enter_context(mock.patch.object(module, "_suits", return_value=False))
        return seconds(assembly, *counts, OTHERS + turn)


def measure(model: str) -> dict[str, list[float]]:
    """Tokens a second by transformers' functions, and by ours, of each row."""
    assembly = engine(model)
    return compared_runs(partial(by_transformers, assembly), partial(seconds, assembly), alike=False)


def main() -> None:
    keep("states", {model: measure(model) for model in MODELS})


if __name__ == "__main__":
    main()
