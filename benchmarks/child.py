"""The inside of a measured process: take jobs as JSON lines, answer seconds. Plain Python, for any environment.

An engine's module calls `serve` with a function that continues prompts; `benchmarks.engine` is the other end.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.workloads import FIRST_TOKEN, WORKLOADS

#: Prompts, the number of new tokens and, where they are drawn, `Workload.top_p`; the tokens that each prompt gained.
Generate = Callable[..., list[list[int]]]


def serve(load: Callable[[Path, int], Generate]) -> None:
    """Load the model of the command line (FOLDER THREADS), make a first token, say so, then answer until the end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    generate = load(folder, threads)
    _answer(answers, _run(generate, FIRST_TOKEN, vocab_size, 0))
    for line in sys.stdin:
        name, seed = json.loads(line)
        _answer(answers, _run(generate, WORKLOADS[name], vocab_size, seed))


def _run(generate: Generate, workload: Any, vocab_size: int, seed: int) -> dict[str, float]:
    prompts = workload.prompts(vocab_size, seed)
    started = time.perf_counter()
    drawn = () if workload.top_p is None else (workload.top_p,)
    answers = generate(prompts, workload.new, *drawn)
    seconds = time.perf_counter() - started
    counts = [len(ids) for ids in answers]
    if counts != [workload.new] * workload.requests:
        raise RuntimeError(f"{workload.name}: {workload.new} tokens each were asked for, and {counts} came")
    return {"seconds": seconds}


def _answer(answers: Any, answer: dict[str, float]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
