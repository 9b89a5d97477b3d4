"""`python -m benchmarks.half_speed`: weights of 16 bits in float32, read as they lie beside written out as float32.

That is what processors without instructions for bfloat16 do, and any CPU with float16; here bfloat16 is done so. The
two take turns in one process on one thread, whose CPU time is what is compared: 4 tokens in, a few streams at once, and
one prompt. They must write the same tokens.
"""

import statistics
from unittest import mock

import torch

from benchmarks import machine, shapes
from benchmarks.results import Results
from benchmarks.rounded_speed import seconds
from nbgen.engine import device, native_half_linear
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine_config import EngineConfig

MODELS = ("m30", "q06")
#: By name: streams at once, tokens of each prompt, tokens that each gains.
ROWS = {"1 stream": (1, 4, 12), "4 streams": (4, 4, 8), "16 streams": (16, 4, 4), "prompt of 1,024": (1, 1024, 1)}
TURNS = 5


def engine(folder: str) -> Assembly:
    config = EngineConfig(model=folder, threads=1, dtype="auto", kv_cache_bytes=2**28, draft_tokens=0)
    return assemble(config, lambda *_: None)


def measure(model: str) -> dict[str, list[float]]:
    """Tokens a second written out, and as they lie, of each row."""
    folder, found = str(shapes.checkpoint(model)), {}
    with mock.patch.object(device, "computes_bfloat16", return_value=False):
        kept = engine(folder)
        with mock.patch.object(native_half_linear, "widen", torch.nn.Module.float):
            written_out = engine(folder)
    for name, row in ROWS.items():
        turns = [[seconds(each, *row, turn) for each in (written_out, kept)] for turn in range(TURNS + 1)][1:]
        assert all(one[1] == other[1] for one, other in turns)
        tokens = row[0] * row[2] if row[2] > 1 else row[1]
        found[name] = [tokens / statistics.median(turn[side][0] for turn in turns) for side in (0, 1)]
    return found


def main() -> None:
    found = {model: measure(model) for model in MODELS}
    Results().keep("half_speed", {"models": found, "machine": machine.describe()})
    print(found)


if __name__ == "__main__":
    main()
