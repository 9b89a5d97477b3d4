"""Rows that engines of one process do in turn, on one thread each, whose CPU time is what is compared.

A few tokens in, one stream and several at once, and one prompt.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import machine, shapes
from benchmarks.results import Results
from benchmarks.rounded_speed import seconds
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine_config import EngineConfig

#: By name: streams at once, tokens of each prompt, tokens that each gains.
ROWS = {"1 stream": (1, 4, 12), "4 streams": (4, 4, 8), "16 streams": (16, 4, 4), "prompt of 1,024": (1, 1024, 1)}
TURNS = 5
#: A row and the turn that it is done in: seconds, and what was written.
Run = Callable[..., tuple[float, list[list[int]]]]


def engine(model: str, **options: Any) -> Assembly:
    """One that computes a shape, or a model, on one thread in bfloat16 or as its `options` say, and guesses nothing."""
    usual = {"threads": 1, "dtype": "bfloat16", "kv_cache_bytes": 2**28, "draft_tokens": 0}
    config = EngineConfig(model=str(shapes.checkpoint(model)), **{**usual, **options})
    return assemble(config, lambda *_: None)


def compared(*engines: Assembly, alike: bool) -> dict[str, list[float]]:
    """Tokens a second of each, by row; where they are `alike` they must write the same tokens."""
    return compared_runs(*(partial(seconds, each) for each in engines), alike=alike)


def compared_runs(*runs: Run, alike: bool) -> dict[str, list[float]]:
    """The same of whatever does the rows."""
    found = {}
    for name, row in ROWS.items():
        turns = [[run(*row, turn) for run in runs] for turn in range(TURNS + 1)][1:]
        assert not alike or all(other[1] == first[1] for first, *others in turns for other in others)
        tokens = row[0] * row[2] if row[2] > 1 else row[1]
        found[name] = [tokens / statistics.median(turn[side][0] for turn in turns) for side in range(len(runs))]
    return found


def keep(name: str, models: dict[str, dict[str, list[float]]]) -> None:
    """Write down, and show, what was found of each model under the name of a section of RESULTS.md."""
    Results().keep(name, {"models": models, "machine": machine.describe()})
    print(models)
