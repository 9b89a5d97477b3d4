"""`python -m benchmarks.half_speed`: weights of 16 bits in float32, read as they lie beside written out as float32.

That is what processors without instructions for bfloat16 do, and any CPU with float16; here bfloat16 is done so. The
two take turns in one process (`cpu_rows`), and must write the same tokens.
"""

from unittest import mock

import torch

from benchmarks import shapes
from benchmarks.cpu_rows import compared, keep
from nbgen.engine import device, half_weights
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine_config import EngineConfig

MODELS = ("m30", "q06")


def engine(folder: str) -> Assembly:
    config = EngineConfig(model=folder, threads=1, dtype="auto", kv_cache_bytes=2**28, draft_tokens=0)
    return assemble(config, lambda *_: None)


def measure(model: str) -> dict[str, list[float]]:
    """Tokens a second written out, and as they lie, of each row."""
    folder = str(shapes.checkpoint(model))
    with mock.patch.object(device, "computes_bfloat16", return_value=False):
        kept = engine(folder)
        with mock.patch.object(half_weights, "widen", torch.nn.Module.float):
            written_out = engine(folder)
    return compared(written_out, kept, alike=True)


def main() -> None:
    keep("half_speed", {model: measure(model) for model in MODELS})


if __name__ == "__main__":
    main()
