"""`python -m benchmarks [MODEL]`: serve the model, measure it beside transformers in turn, write RESULTS.md.

MODEL is a folder or a hub id; left out, the bundled model. Figures are medians of `REPETITIONS`; compare ratios, not
absolute numbers, since machines are shared.
"""

import statistics
import sys
import time
from datetime import date
from pathlib import Path

import psutil

from benchmarks.machine import describe
from benchmarks.served import Served
from benchmarks.transformers_peer import TransformersPeer
from benchmarks.workload import NEW_TOKENS, PROMPT_TOKENS, Measurement
from nbgen.engine_config import BUNDLED, BUNDLED_FOLDER

REPETITIONS = 5
STREAMS = (1, 16)
RESULTS = Path(__file__).parent / "RESULTS.md"


def main(model: str = BUNDLED) -> None:
    served = Served(model)
    peer = TransformersPeer(str(BUNDLED_FOLDER) if model == BUNDLED else model, served.model["dtype"])
    try:
        rows = [measure(served, peer, streams) for streams in STREAMS]
    finally:
        served.close()
        peer.close()
    text = report(model, served.model, rows)
    RESULTS.write_text(text)
    print(text)


def measure(served: Served, peer: TransformersPeer, streams: int) -> dict:
    """Both in turn, `REPETITIONS` times after one that does not count; the medians and the share outside the model."""
    ours, theirs = [], []
    for repetition in range(REPETITIONS + 1):
        ours.append(served.measure(streams, repetition))
        theirs.append(peer.measure(streams, repetition))
        print(f"{streams:3d} streams: {ours[-1].tokens_per_second:8.1f} and {theirs[-1].tokens_per_second:8.1f} tok/s")
    before = served.forward_seconds()
    timed = [served.measure(streams, REPETITIONS + 1 + i) for i in range(3)]
    in_model = served.forward_seconds() - before
    outside = 1 - in_model / sum(m.seconds for m in timed)
    return {"streams": streams, "ours": ours[1:], "theirs": theirs[1:], "outside": outside}


def median(measurements: list[Measurement], name: str) -> float:
    return statistics.median(getattr(m, name) for m in measurements)


def report(model: str, info: dict, rows: list[dict]) -> str:
    head = f"""# Benchmarks

`python -m benchmarks` (or `make bench`) writes this file: it serves the model with `python -m nbgen`, drives it
over HTTP with streaming, and runs transformers' `generate` on the same checkpoint in turn with it:
{PROMPT_TOKENS} prompt tokens and {NEW_TOKENS} new ones a stream, greedy; medians of {REPETITIONS}. transformers gets
the streams as one batch of equal lengths, its best case; its time to first token is that of a `generate` of one token.
"Outside the model" is the share of the wall time of a served run that is not spent in the model's forward:
scheduling, sampling, text, sockets, HTTP and the client, which runs on the same cores. Compare ratios: absolute
numbers move with the machine's other work.

- Taken {date.today().isoformat()} on {describe()};
  load average {psutil.getloadavg()[0]:.1f} at the end.
- Model: {model}, {info["parameters"] / 1e6:.1f} M parameters, {info["dtype"]} on {info["device"]}, tier {info["tier"]}.
- Command: `python -m benchmarks{"" if model == BUNDLED else " MODEL"}`

| streams | | nbgen, served | transformers generate | ratio |
|---|---|---|---|---|
"""
    return head + "".join(_rows(row) for row in rows)


def _rows(row: dict) -> str:
    lines = [
        ("tokens/s", "tokens_per_second", 1.0, False),
        ("time to first token, ms", "first_token_seconds", 1000.0, True),
        ("CPU ms a token", "cpu_ms_per_token", 1.0, True),
    ]
    text = ""
    for title, name, scale, less_is_better in lines:
        ours, theirs = median(row["ours"], name) * scale, median(row["theirs"], name) * scale
        ratio = theirs / ours if less_is_better else ours / theirs
        text += f"| {row['streams']} | {title} | {ours:.1f} | {theirs:.1f} | {ratio:.2f} times as good |\n"
    return text + f"| {row['streams']} | outside the model | {100 * row['outside']:.0f}% | | |\n"


if __name__ == "__main__":
    started = time.monotonic()
    main(*sys.argv[1:])
    print(f"{time.monotonic() - started:.0f} s")
