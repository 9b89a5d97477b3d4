"""`python -m benchmarks.half_speed`: weights of 16 bits in float32, read as they lie beside written out as float32.

That is what processors without instructions for bfloat16 do, and any CPU with float16; here bfloat16 is done so. The
two take turns in one process (`cpu_rows`), and must write the same tokens.
"""

from unittest import mock

import torch

from benchmarks.cpu_rows import compared, engine, keep
from nbgen.engine import device, half_weights

MODELS = ("m30", "q06")


def measure(model: str) -> dict[str, list[float]]:
    """Tokens a second written out, and as they lie, of each row."""
    with mock.patch.object(device, "computes_bfloat16", return_value=False):
        kept = engine(model, dtype="auto")
        with mock.patch.object(half_weights, "widen", torch.nn.Module.float):
            written_out = engine(model, dtype="auto")
    return compared(written_out, kept, alike=True)


def main() -> None:
    keep("half_speed", {model: measure(model) for model in MODELS})


if __name__ == "__main__":
    main()
