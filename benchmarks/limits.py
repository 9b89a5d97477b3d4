"""What the machine can do at most, and the seconds a workload must take there: the ceiling of each row.

Measured in turn with the engines, by a process of its own (`python -m benchmarks.limits THREADS BYTES`): how fast
memory of the weights' size is read, and how fast large matrices are multiplied. A step takes at least its bytes over
the one and its floating-point operations over the other, whichever is longer (the roofline of Williams et al. 2009).
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measured_process import MeasuredProcess, MeasurementFailed
from benchmarks.workloads import Workload

BYTES = 2  # of a bfloat16
DENSE = ("llama", "mistral", "qwen2", "qwen3")
SECONDS = 0.15
#: Square matrices: which size is fastest depends on the caches.
MATRIX_SIZES = (512, 1024, 2048)
LAYER_ROWS = 3072


class Limits(NamedTuple):
    """Bytes read and operations done in a second."""

    bandwidth: float
    bfloat16: float
    float32: float


class Cost(NamedTuple):
    """What a model's arithmetic takes. A "pair" is a query token and a key token it sees."""

    weights: int
    head: int
    pair_operations: int
    cache_bytes: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> "Cost":
        """Of a dense decoder with gated feed-forward layers (Llama, Qwen3), from its config.json."""
        hidden, layers, heads = (config[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        dim = config.get("head_dim") or hidden // heads
        key_dim = config["num_key_value_heads"] * dim
        layer = 2 * hidden * heads * dim + 2 * hidden * key_dim + 3 * hidden * config["intermediate_size"]
        head = hidden * config["vocab_size"]
        return cls(layers * layer, head, 4 * layers * heads * dim, 2 * layers * key_dim * BYTES)

    @property
    def weight_bytes(self) -> int:
        """Read in each step: all but the rows of the input embedding."""
        return BYTES * (self.weights + self.head)


def least_seconds(workload: Workload, cost: Cost, limits: Limits) -> float:
    """The shortest time that the limits allow, with the shared prefix computed and read once."""
    own, shared, requests = workload.own, workload.shared, workload.requests
    tokens = shared + requests * own
    pairs = shared**2 / 2 + requests * own * (shared + own / 2)
    prefill = 2 * cost.weights * tokens + 2 * cost.head * requests + cost.pair_operations * pairs
    seconds = max(cost.weight_bytes / limits.bandwidth, prefill / limits.bfloat16)
    for step in range(1, workload.new):
        read = cost.weight_bytes + cost.cache_bytes * (shared + requests * (own + step))
        row = 2 * (cost.weights + cost.head) + cost.pair_operations * (shared + own + step)
        seconds += max(read / limits.bandwidth, requests * row / limits.bfloat16)
    return seconds


class Machine:
    """The machine itself, measured as an engine is: what it can do of anything, whatever the workload."""

    name = "limits"

    def __init__(self, threads: int, weight_bytes: int) -> None:
        """Raises MeasurementFailed."""
        command = [sys.executable, "-m", "benchmarks.limits", str(threads), str(weight_bytes)]
        self._process = MeasuredProcess(command, threads, answers=True)
        self._process.pause()

    def measure(self, workload: Workload, seed: int) -> dict[str, float]:
        """The limits by name, and what it took to find them. Raises MeasurementFailed."""
        self._process.resume()
        self._process.ask("")
        answer = self._process.answer()
        if not answer:
            raise MeasurementFailed(f"{self.name}: {self._process.last_words()}")
        self._process.pause()
        return json.loads(answer)

    def close(self) -> None:
        self._process.close()


def cost(folder: Path) -> Cost | None:
    """None for what the arithmetic here does not describe: experts, recurrent layers, weights in another type."""
    config = json.loads((folder / "config.json").read_text())
    dense = config["model_type"] in DENSE and config.get("dtype", config.get("torch_dtype")) == "bfloat16"
    return Cost.of(config) if dense else None


def main(threads: int, weight_bytes: int) -> None:
    import torch

    torch.set_num_threads(threads)
    readers = _readers(torch, weight_bytes)
    products = {dtype: list(_products(torch, dtype)) for dtype in ("bfloat16", "float32")}
    for _ in sys.stdin:
        started, cpu = time.perf_counter(), time.process_time()
        found = Limits(_best(readers), *map(_best, products.values()))
        took = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        print(json.dumps({**found._asdict(), **took}), flush=True)


#: A call and the bytes or operations that it takes.
Work = tuple[Callable[[], Any], int]


def _readers(torch: Any, size: int) -> list[Work]:
    """Sums, a product of a matrix with a vector, and a model's linear layers on one token."""
    matrix, vector = torch.ones(size // 4096, 1024), torch.ones(1024)
    sums = (matrix.sum, matrix.view(torch.int64).sum, lambda: matrix @ vector)
    weights = matrix.bfloat16().split(LAYER_ROWS)
    layers, token = [_linear(torch, weight) for weight in weights], torch.ones(1, 1024, dtype=torch.bfloat16)
    read = sum(weight.nbytes for weight in weights)
    return [*((call, matrix.nbytes) for call in sums), (lambda: [layer(token) for layer in layers], read)]


def _products(torch: Any, dtype: str) -> Iterator[Work]:
    """Plain products and linear layers."""
    for n in MATRIX_SIZES:
        a, b = (torch.rand(n, n).to(getattr(torch, dtype)) for _ in range(2))
        layer = _linear(torch, b)
        yield lambda a=a, b=b: a @ b, 2 * n**3
        yield lambda a=a, layer=layer: layer(a), 2 * n**3


def _best(works: list[Work]) -> float:
    return max(amount / _least(call) for call, amount in works)


def _linear(torch: Any, weight: Any) -> Callable[[Any], Any]:
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
    main(int(sys.argv[1]), int(sys.argv[2]))
