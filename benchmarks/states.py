"""`python -m benchmarks.states`: recurrent layers in nbgen's C++ beside transformers' code.

Products and attention are nbgen's in all. Two engines do the rows of `cpu_rows` in turn, in bfloat16: the one that has
transformers' layers with transformers' functions for states and with nbgen's.
"""

from contextlib import ExitStack
from functools import partial
from unittest import mock

from benchmarks.cpu_rows import compared_runs, keep
from benchmarks.own_layers import both
from benchmarks.rounded_speed import seconds
from nbgen.engine import native_delta, native_scan
from nbgen.engine.assembly import Assembly

MODELS = ("d08", "h350", "l350")
#: Half of it holds the states of all streams.
CACHE = 2**30
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
    """Tokens a second by transformers' code, with our functions, and by our layers, of each row."""
    stock, ours = both(model, kv_cache_bytes=CACHE)
    return compared_runs(partial(by_transformers, stock), partial(seconds, stock), partial(seconds, ours), alike=False)


def main() -> None:
    keep("states", {model: measure(model) for model in MODELS})


if __name__ == "__main__":
    main()
