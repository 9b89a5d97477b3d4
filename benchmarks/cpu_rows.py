"""Rows that engines of one process do in turn, on one thread each, whose CPU time is what is compared.

A few tokens in, one stream and several at once, and one prompt.
"""

import statistics

from benchmarks import machine
from benchmarks.results import Results
from benchmarks.rounded_speed import seconds
from nbgen.engine.assembly import Assembly

#: By name: streams at once, tokens of each prompt, tokens that each gains.
ROWS = {"1 stream": (1, 4, 12), "4 streams": (4, 4, 8), "16 streams": (16, 4, 4), "prompt of 1,024": (1, 1024, 1)}
TURNS = 5


def compared(*engines: Assembly, alike: bool) -> dict[str, list[float]]:
    """Tokens a second of each, by row; where they are `alike` they must write the same tokens."""
    found = {}
    for name, row in ROWS.items():
        turns = [[seconds(each, *row, turn) for each in engines] for turn in range(TURNS + 1)][1:]
        assert not alike or all(other[1] == first[1] for first, *others in turns for other in others)
        tokens = row[0] * row[2] if row[2] > 1 else row[1]
        sides = range(len(engines))
        found[name] = [tokens / statistics.median(turn[side][0] for turn in turns) for side in sides]
    return found


def keep(name: str, models: dict[str, dict[str, list[float]]]) -> None:
    """Write down, and show, what was found of each model under the name of a section of RESULTS.md."""
    Results().keep(name, {"models": models, "machine": machine.describe()})
    print(models)
