"""`python -m benchmarks.rounded_speed`: decoding Qwen3-0.6B's shape with weights of 16, 8 and 4 bits.

The three take turns in one process on one thread, whose CPU time is what is compared: 4 tokens in, alone and sixteen
at once. Beside it stand the bytes of weights a token reads, which predict the ratio where memory is the limit.
"""

import random
import statistics
import time

from benchmarks import shapes
from benchmarks.engines.nbgen_engine import generate
from benchmarks.results import Results
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine_config import EngineConfig

KINDS = (None, "int8", "int4")
#: Streams at once, and tokens of each.
BATCHES = ((1, 12), (16, 4))
TURNS = 3


def seconds(assembly: Assembly, streams: int, length: int, new: int, seed: int) -> tuple[float, list[list[int]]]:
    """Of CPU time, with prompts of `length` tokens included; what was written."""
    chance = random.Random(seed)
    prompts = [chance.choices(range(300, 8000), k=length) for _ in range(streams)]
    started = time.process_time()
    written = generate(assembly, prompts, new)
    return time.process_time() - started, written


def rate(assembly: Assembly, streams: int, new: int, seed: int) -> float:
    """Tokens for a second of CPU time, prompts of 4 included."""
    return streams * new / seconds(assembly, streams, 4, new, seed)[0]


def main() -> None:
    folder = str(shapes.checkpoint("q06"))
    engines = {
        kind or "bfloat16": assemble(
            EngineConfig(
                model=folder, threads=1, dtype="bfloat16", quantization=kind, kv_cache_bytes=2**27, draft_tokens=0
            ),
            lambda *_: None,
        )
        for kind in KINDS
    }
    found = {kind: {"weight_bytes": engine.model.weight_bytes} for kind, engine in engines.items()}
    for streams, new in BATCHES:
        turns = [{kind: rate(engine, streams, new, turn) for kind, engine in engines.items()} for turn in range(TURNS)]
        for kind in engines:
            found[kind][str(streams)] = statistics.median(turn[kind] for turn in turns)
    Results().keep("rounded_speed", found)
    print(found)


if __name__ == "__main__":
    main()
