"""What the machine can do at most, measured as an engine is, whatever the workload.

How fast memory of the size of a model's weights is read, and how fast large matrices are multiplied.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import limits

SECONDS = 0.15
#: Square matrices: which size is fastest depends on the caches.
MATRIX_SIZES = (512, 1024, 2048)
LAYER_ROWS = 3072

#: A call and the bytes or operations that it takes.
Work = tuple[Callable[[], Any], int]


def main(folder: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    readers = _readers(limits.cost(folder).weight_bytes)
    products = [list(_products(dtype)) for dtype in (torch.bfloat16, torch.float32)]
    print("{}", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        found = limits.Limits(_best(readers), *map(_best_product, products))
        print(json.dumps({**found._asdict(), "seconds": time.perf_counter() - started}), flush=True)


def _readers(size: int) -> list[Work]:
    """Sums, a product of a matrix with a vector, and a model's linear layers on one token."""
    matrix, vector = torch.ones(size // 4096, 1024), torch.ones(1024)
    sums = (matrix.sum, matrix.view(torch.int64).sum, lambda: matrix @ vector)
    weights = torch.ones(size // 2048, 1024, dtype=torch.bfloat16).split(LAYER_ROWS)  # as many bytes: caches hold fewer
    layers, token = [_linear(weight) for weight in weights], torch.ones(1, 1024, dtype=torch.bfloat16)
    read = sum(weight.nbytes for weight in weights)
    return [*((call, matrix.nbytes) for call in sums), (lambda: [layer(token) for layer in layers], read)]


def _products(dtype: torch.dtype) -> Iterator[Work]:
    """Plain products and linear layers."""
    for n in MATRIX_SIZES:
        a, b = (torch.rand(n, n).to(dtype) for _ in range(2))
        layer = _linear(b)
        yield lambda a=a, b=b: a @ b, 2 * n**3
        yield lambda a=a, layer=layer: layer(a), 2 * n**3


def _best(works: list[Work]) -> float:
    return max(amount / _least(call) for call, amount in works)


def _best_product(works: list[Work]) -> float:
    """The highest rate. After a product that took longer than `SECONDS` no larger one is tried."""
    rates = []
    for call, amount in works:
        rates.append(amount / (seconds := _least(call)))
        if seconds > SECONDS:
            break
    return max(rates)


def _linear(weight: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    """A linear layer, its weight laid out once for oneDNN where this torch can."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        layer = lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")  # noqa: E731
        layer(torch.ones(1, weight.shape[1], dtype=weight.dtype))
    except (AttributeError, RuntimeError):
        return lambda x: torch.nn.functional.linear(x, weight)
    return layer


def _least(call: Callable[[], Any]) -> float:
    times, until = [], time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
