"""RESULTS.md from the records: per model one table of rates beside the limit, one of CPU time, one of servers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.limits import Cost, Limits, least_seconds
from benchmarks.peers import MACHINE, OURS, PEERS
from benchmarks.results import Record, Results
from benchmarks.servers import OURS_SERVED, SERVICES
from benchmarks.turns import MEMORY, MEMORY_LOADED, STREAMS
from benchmarks.workloads import FIRST_TOKEN, WORKLOADS

HEAD = """# Benchmarks

`python -m benchmarks` (or `make bench`) takes these figures and writes this file; the one of its name beside it
(`.json`) holds every run. nbgen and its peers work on the same checkpoint with the same number of threads, greedy but
where a row says otherwise, each in a process of its own, in turn: one runs, the others are stopped. Figures are medians
of at least three runs after one that does not count. The number in brackets says how many times as good nbgen is as
that peer, the median over turns that both took part in: **compare these**, absolute numbers move with the machine and
its other work.

The limit of a row is what the machine's memory and arithmetic allow: the bytes of weights and cache over the measured
read bandwidth, or the operations over the measured rate of large matrix products, whichever takes longer, step by
step. Both are measured in turn with the engines; the share is nbgen's, the median over turns.

m30 is a Llama of 28 million parameters, q06 has Qwen3-0.6B's shape with a vocabulary of 32,768, g124 is GPT-2's; all
have random weights in bfloat16 from a fixed seed. transformers' `generate` gets concurrent prompts as one batch of
equal lengths, its best case. Peers other than transformers live in environments of their own below `NBGEN_BENCH_PEERS`
(`benchmarks/peers.py` says how each was installed); one that is not installed, or cannot do a row, is absent. Servers
and engines that are measured have process sessions of their own, so that a system which shares its processors out by
session gives each its part. Engines with a cache of their own get 2 GiB for it; nbgen's, which takes a quarter of the
free memory where nothing is said (`kv_cache_bytes`), fills with what it has computed, for later prompts. Starts are of
a model that was started before: its files are in memory, and what nbgen keeps between starts is there.

RESULTS.md is of a Zen 5, [RESULTS_AMX.md](RESULTS_AMX.md) of a Xeon with AMX, which multiplies in tiles,
[RESULTS_NO_AMX.md](RESULTS_NO_AMX.md) of a Xeon whose virtual machine hides its tiles,
[RESULTS_ICE_LAKE.md](RESULTS_ICE_LAKE.md) of an older Xeon, which never had any,
[RESULTS_ZEN4.md](RESULTS_ZEN4.md) of a Zen 4, which multiplies half as fast as a Zen 5, and
[RESULTS_ZEN3.md](RESULTS_ZEN3.md) of a Zen 3, which has AVX2 and no products of bfloat16
(`--results benchmarks/results_zen3.json`). On that one and on the Xeons without tiles, nbgen computes in float32. Each
table says when its rows were taken: the code went on between them. A GPU's figures are in [GPU.md](GPU.md), those of
whole tensors in [INFER.md](INFER.md), those of the browser in [PANEL.md](PANEL.md).
"""

Value = Callable[[Record], float]

#: Engines with weights of fewer bits than the checkpoint's, and all others.
ROUNDED = ("nbgen-int8", "nbgen-int4", "llama.cpp-q8", "openvino-int8")
WHOLE = tuple(name for name in PEERS if name not in ROUNDED)


class Row:
    """One line of a table: what is read from a record, and whether more is better."""

    def __init__(self, workload: str, title: str, value: Value, *, digits: int = 0, more: bool = True) -> None:
        self.workload, self.title, self.value, self.digits, self.more = workload, title, value, digits, more

    def number(self, value: float | None) -> str:
        return "" if value is None else f"{value:,.{self.digits}f}"

    def cell(self, results: Results, model: str, engine: str, ours: str = OURS) -> str:
        """The median, and for a peer how many times as good ours is."""
        wanted = {"model": model, "workload": self.workload}
        median = results.median(self.value, engine=engine, **wanted)
        if engine == ours or median is None:
            return self.number(median)
        pair = (ours, engine) if self.more else (engine, ours)
        ratio = results.ratio(self.value, *pair, **wanted)
        return self.number(median) + (f" ({ratio:.2f})" if ratio else "")


#: Sections of what `cpu_rows` keeps, by the name that it is kept under: their words, and the heads of their tables.
COMPARED = {
    "own_layers": (
        """
## Layers in C++

Tokens for a CPU second of one thread in bfloat16, with the layers of transformers' code, whose products and
attention are nbgen's already, and with all of a step in nbgen's C++ (`python -m benchmarks.own_layers`).
g270 has Gemma-3-270M's shape, e09 that of 15 of Gemma-4-E2B's 35 layers, 8 of which share keys; both with a
vocabulary of 32,768.
""",
        ["", "transformers' layers", "nbgen's"],
    ),
    "experts": (
        """
## Mixtures of experts

Tokens for a CPU second of one thread, in bfloat16 and with experts and linear layers of fewer bits
(`python -m benchmarks.experts`). a400 has Granite-3.1-1B-A400M's shape with a vocabulary of 32,768: of 32
experts in each of its layers a token goes through 8.
""",
        ["", "transformers' experts and layers", "nbgen's", "int8", "int4"],
    ),
    "states": (
        """
## Recurrent layers

Tokens for a CPU second of one thread in bfloat16, with layers and states computed by transformers' code, with
states alone and with all of a step in nbgen's C++ (`python -m benchmarks.states`). d08 has Qwen3.5-0.8B's shape
(linear attention by the gated delta rule), h350 Granite-4.0-H-350M's (Mamba 2), l350 LFM2-350M's (short
convolutions, which are no states of ours without the layers), each with a vocabulary of 32,768. Prompts of 4
tokens are part of the rows.
""",
        ["", "transformers' code", "with nbgen's states", "nbgen's"],
    ),
    "half_speed": (
        """
## 16 bits on processors that do not multiply them

Tokens for a CPU second of one thread in float32, with weights that are written out as float32 and with those
of 16 bits as they lie (`python -m benchmarks.half_speed`): half the bytes, and the same tokens.
""",
        ["", "written out", "as they lie"],
    ),
}


def render(results: Results) -> str:
    facts = results.facts
    tables = "".join(_model(results, model) for model in _models(results))
    compared = [_compared(facts.get(name), *told) for name, told in COMPARED.items()]
    others = [_drafts(facts), *compared, _rounded(results), _adapters(facts)]
    return HEAD + f"\nOn {facts['machine']}.\n" + tables + "".join(others)


def _rounded(results: Results) -> str:
    """Weights of fewer bits: what they cost, and what they gain."""
    lines, facts = [], results.facts
    if perplexity := facts.get("perplexity"):
        lines += [
            "\n## Weights of fewer bits\n",
            "Perplexity of the bundled model over what the assistant says in 60 documents of its training's generator,",
            "under another seed (`python -m benchmarks.perplexity`):\n",
            line(list(perplexity)),
            line(["---"] * len(perplexity)),
            line([f"{value:.4f}" for value in perplexity.values()]),
            "",
        ]
    if speed := facts.get("rounded_speed"):
        lines += [
            "Bytes of weights, and tokens for a second of CPU time of one thread on q06 with 1 and 16 streams",
            "(`python -m benchmarks.rounded_speed`); in brackets, times bfloat16's. Where memory alone were the limit,",
            "one stream would gain what the bytes fall.\n",
            line(["weights", "MB", "1 stream, tok/CPU s", "16 streams, tok/CPU s"]),
            line(["---"] * 4),
            *(line(_speed_cells(kind, found, speed["bfloat16"])) for kind, found in speed.items()),
            "",
        ]
    for model in _models(results):
        if results.of(model=model, engine=ROUNDED[0]):
            lines += [
                f"{model} beside peers with weights of 8 bits, on the threads of the tables above; in brackets, how",
                "many times as good nbgen is with 8 bits.\n",
                *_table(results, model, list(_rows(model)), ROUNDED, ROUNDED[0]),
            ]
    return "\n".join(lines)


def _models(results: Results) -> list[str]:
    return list(dict.fromkeys(record["model"] for record in results.records))


def _speed_cells(kind: str, found: dict[str, float], full: dict[str, float]) -> list[str]:
    size = f"{found['weight_bytes'] / 1e6:,.0f} ({full['weight_bytes'] / found['weight_bytes']:.2f})"
    return [kind, size, *(f"{found[n]:.1f} ({found[n] / full[n]:.2f})" for n in ("1", "16"))]


def _compared(found: dict[str, Any] | None, words: str, head: list[str]) -> str:
    """A section of what `cpu_rows` keeps: for each row one speed, and others with how many times as fast they are."""
    if not found:
        return ""
    rows = [
        [f"{model}, {name}", f"{one:,.1f}", *(f"{other:,.1f} ({other / one:.2f})" for other in others)]
        for model, speeds in found["models"].items()
        for name, (one, *others) in speeds.items()
    ]
    return _section([words], head, rows, found["machine"])


def _drafts(facts: dict[str, Any]) -> str:
    found = facts.get("drafts")
    if not found:
        return ""
    words = [
        "\n## Guesses at the next tokens\n",
        "Tokens for a CPU second of one thread without and with them (`python -m benchmarks.drafts` says how texts are",
        "written by random weights of two shapes, Qwen3-0.6B's and Qwen3.5-0.8B's). Elsewhere on this page nothing is",
        "guessed, since random weights repeat themselves more than any text.\n",
    ]
    rows = [
        [name, f"{row['tokens_a_step']:.2f}", f"{row['without']:.1f}", f"{row['with']:.1f} ({row['gain']:.2f})"]
        for name, row in found["rows"].items()
    ]
    return _section(words, ["what is written", "tokens a step", "without", "with"], rows, found["machine"])


def _section(words: list[str], head: list[str], rows: list[list[str]], machine: str) -> str:
    """With one table, of figures from a machine of their own."""
    table = [line(head), line(["---"] * len(head)), *map(line, rows)]
    return "\n".join([*words, *table, f"\nTaken on {machine}."]) + "\n"


def _adapters(facts: dict[str, Any]) -> str:
    found = facts.get("adapters")
    if not found:
        return ""
    return (
        "\n## Adapters\n\nSixteen requests over eight LoRA adapters of rank 16 on all linear layers keep "
        f"{found['share']:.0%} of the speed of\nthe same batch without any (`python -m benchmarks.adapters`, CPU time "
        "of one thread).\n"
    )


def _model(results: Results, model: str) -> str:
    records = results.of(model=model)
    days = sorted({record["run"][:10] for record in records})
    commands = sorted({record["command"] for record in records})
    return "\n".join(
        [
            f"\n## {model}\n",
            *_limits(results, model),
            f"Taken {' and '.join(days)}, load average {max(r['load'] for r in records):.1f} at most, with",
            *(f"`{command}`" for command in commands),
            "",
            *_table(results, model, list(_rows(model)), WHOLE, OURS, limited=True),
            "CPU time of all threads, milliseconds for each token counted above:\n",
            *_table(results, model, list(_cpu_rows()), WHOLE, OURS),
            *_served(results, model),
        ]
    )


def _limits(results: Results, model: str) -> Iterator[str]:
    taken = [results.median(lambda r, n=name: r[n], model=model, engine=MACHINE.name) for name in Limits._fields]
    if None not in taken:
        found = Limits(*taken)
        yield (
            f"Measured limits: {found.bandwidth / 1e9:.1f} GB/s read from memory of the weights' size, "
            f"{found.bfloat16 / 1e12:.2f} TFLOP/s in bfloat16, {found.float32 / 1e12:.2f} in float32.\n"
        )


def _rows(model: str) -> Iterator[Row]:
    for workload in WORKLOADS.values():
        yield Row(workload.name, f"{workload.title}, tok/s", lambda r, w=workload: w.tokens / r["seconds"], digits=1)
    yield Row(FIRST_TOKEN.name, f"{FIRST_TOKEN.title}, s", lambda r: r["seconds"], digits=2, more=False)
    for name, when in ((MEMORY_LOADED, "the first token"), (MEMORY, "the rows taken with it")):
        yield Row(name, f"resident memory after {when}, MB", lambda r: r["bytes"] / 1e6, more=False)


def _cpu_rows() -> Iterator[Row]:
    for w in WORKLOADS.values():
        yield Row(w.name, w.title, lambda r, w=w: 1000 * r["cpu_seconds"] / w.tokens, digits=2, more=False)


def _table(
    results: Results, model: str, rows: list[Row], some: Sequence[str], ours: str, *, limited: bool = False
) -> Iterator[str]:
    """Of some engines, beside `ours`; `limited` tells what the machine allows as well."""
    engines = [name for name in some if results.of(model=model, engine=name)]
    head = ["limit", "share"] if limited else []
    yield line(["", *head, *(PEERS[name].title for name in engines)])
    yield line(["---"] * (1 + len(head) + len(engines)))
    for row in rows:
        if any(results.of(model=model, workload=row.workload, engine=name) for name in engines):
            cells = _limit_cells(results, model, row) if limited else []
            yield line([row.title, *cells, *(row.cell(results, model, name, ours) for name in engines)])
    yield ""


def _limit_cells(results: Results, model: str, row: Row) -> list[str]:
    workload, cost = WORKLOADS.get(row.workload), results.facts.get("costs", {}).get(model)
    if workload is None or cost is None:
        return ["", ""]

    def rate(record: Record) -> float:
        """The machine's or ours."""
        if record["engine"] != MACHINE.name:
            return row.value(record)
        limits = Limits(*(record[name] for name in Limits._fields))
        return workload.tokens / least_seconds(workload, Cost(**cost), limits)

    limit = results.median(rate, model=model, workload=row.workload, engine=MACHINE.name)
    share = results.ratio(rate, OURS, MACHINE.name, model=model, workload=row.workload)
    return [row.number(limit), f"{share:.0%}" if share else ""]


def _server_cpu(record: Record) -> float:
    return 1000 * record["server_cpu_seconds"] / record["tokens"]


SERVED: tuple[tuple[str, Callable[[Record], float], int, bool], ...] = (
    ("tok/s", lambda r: r["tokens"] / r["seconds"], 0, True),
    ("TTFT p50, ms", lambda r: 1000 * r["first_token_p50"], 0, False),
    ("TTFT p99, ms", lambda r: 1000 * r["first_token_p99"], 0, False),
    ("ITL p50, ms", lambda r: 1000 * r["gap_p50"], 1, False),
    ("ITL p99, ms", lambda r: 1000 * r["gap_p99"], 1, False),
    ("server CPU, ms/token", _server_cpu, 3, False),
    ("engine CPU, ms/token", lambda r: 1000 * r["engine_cpu_seconds"] / r["tokens"], 3, False),
)


def _served(results: Results, model: str) -> Iterator[str]:
    services = [name for name in SERVICES if results.of(model=model, engine=name)]
    if not services:
        return
    yield "Served over HTTP, streaming, 128 tokens in and 128 out a request; TTFT is the time to the first token, ITL"
    yield "between tokens. The client runs on the same cores; a server of one process has its CPU time in one row."
    if any(SERVICES[name].paced for name in services):
        yield "Tornado alone writes events of that size at a clock's pace: what a server built on it takes at least."
    yield ""
    yield line(["streams", "", *(SERVICES[name].title for name in services)])
    yield line(["---"] * (2 + len(services)))
    for streams in STREAMS:
        for title, value, digits, more in SERVED:
            row = Row(f"served-{streams}", title, value, digits=digits, more=more)
            said = [name for name in services if value is _server_cpu or not SERVICES[name].paced]
            cells = [row.cell(results, model, name, OURS_SERVED) if name in said else "" for name in services]
            yield line([str(streams), title, *cells])
    yield ""
    yield from _share(results, model)


def _share(results: Results, model: str) -> Iterator[str]:
    def rate(record: Record) -> float:
        return record.get("tokens", WORKLOADS["single"].tokens) / record["seconds"]

    if share := results.ratio(rate, OURS_SERVED, OURS, model=model, workload="served-1"):
        yield f"One stream over HTTP has {share:.0%} of the engine's own speed, measured in turn.\n"


def line(cells: list[Any]) -> str:
    return "| " + " | ".join(cells) + " |"
