"""The seconds that a workload must take where the limits of a machine are known: the ceiling of each row.

A step takes at least its bytes over the rate at which memory is read, and its floating-point operations over that of
products, whichever is longer (the roofline of Williams et al. 2009).
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.workloads import Workload

BYTES = 2  # of a bfloat16
DENSE = ("llama", "mistral", "qwen2", "qwen3")


class Limits(NamedTuple):
    """Bytes read and operations done in a second."""

    bandwidth: float
    bfloat16: float
    float32: float

    @property
    def operations(self) -> float:
        """In the type that is multiplied faster: numbers of bfloat16 are numbers of float32, too."""
        return max(self.bfloat16, self.float32)


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
    seconds = max(cost.weight_bytes / limits.bandwidth, prefill / limits.operations)
    for step in range(1, workload.new):
        read = cost.weight_bytes + cost.cache_bytes * (shared + requests * (own + step))
        row = 2 * (cost.weights + cost.head) + cost.pair_operations * (shared + own + step)
        seconds += max(read / limits.bandwidth, requests * row / limits.operations)
    return seconds


def cost(folder: Path) -> Cost | None:
    """None for what the arithmetic here does not describe: experts, recurrent layers, weights in another type."""
    config = json.loads((folder / "config.json").read_text())
    dense = config["model_type"] in DENSE and config.get("dtype", config.get("torch_dtype")) == "bfloat16"
    return Cost.of(config) if dense else None
