"""`python -m benchmarks.gpu [SHAPE ...]`: nbgen on an NVIDIA GPU beside the limit of its memory, and transformers.

Shapes of real models with random weights in bfloat16, made on the spot. How many tokens a second 1 and 64 sequences
write after 1,024 tokens of context, greedily and drawn; the time to the first token of such a prompt; and the same 64
prompts, written to their ends, by nbgen and by transformers' continuous batching in one run. Writes GPU.md from
gpu.json.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import ContinuousBatchingConfig

from benchmarks import gpu_profile, limits, machine, shapes
from benchmarks.engines.nbgen_engine import begin
from benchmarks.engines.transformers_batching import batching
from benchmarks.report import line
from benchmarks.workloads import Workload
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine_config import EngineConfig

FIGURES, REPORT = Path(__file__).parent / "gpu.json", Path(__file__).parent / "GPU.md"
LLAMA_3 = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}
SHAPES = {
    "qwen3-0.6b": {**shapes.SHAPES["q06"], "vocab_size": 151_936, "max_position_embeddings": 40_960},
    "llama-3.2-1b": {
        **LLAMA_3,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        **LLAMA_3,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "head_dim": 128,
        "intermediate_size": 14_336,
        "tie_word_embeddings": False,
    },
}
#: Of transformers' pool, which has such pages unless told otherwise, and of one of its steps.
PAGE_TOKENS, BATCH_TOKENS = 256, 2048
REPETITIONS = 3
#: What is asked, and of one prompt alone.
MANY = Workload("gpu", "64 prompts", 64, 0, 1024, 128)
#: Of the tokens that are drawn.
TOP_P = 0.95


class Run(NamedTuple):
    """Seconds to the first token of any and to the end, and tokens a second while all were writing."""

    first: float
    seconds: float
    rate: float


def run(assembly: Assembly, prompts: list[list[int]], new: int, top_p: float | None = None) -> Run:
    """Continue all prompts at once."""
    started, moments = time.perf_counter(), []
    gained = dict.fromkeys(begin(assembly, prompts, new, top_p), 0)
    while assembly.engine.has_work:
        for output in assembly.engine.step():
            gained[output.rid] += len(output.token_ids)
        moments.append(
            (time.perf_counter() - started, min(gained.values()), max(gained.values()), sum(gained.values()))
        )
    writing = [(at, total) for at, least, most, total in moments if least and most < new]
    (begun, before), (ended, after) = (writing[0], writing[-1]) if len(writing) > 1 else ((0, 0), (1, 0))
    first = next(at for at, _, most, _ in moments if most)
    return Run(first, moments[-1][0], (after - before) / (ended - begun))


def runs(assembly: Assembly, workload: Workload, vocab: int, repetitions: int) -> Run:
    """Medians, after one run that does not count."""
    prompts = [workload.prompts(vocab, seed) for seed in range(repetitions + 1)]
    taken = [run(assembly, each, workload.new, workload.top_p) for each in prompts][1:]
    return Run(*(statistics.median(column) for column in zip(*taken, strict=True)))


def profiled(assembly: Assembly, prompts: list[list[int]], new: int) -> dict[str, float]:
    """Microseconds of a step of all of them, by kind of kernel."""
    silent = set(begin(assembly, prompts, new))
    while silent:
        silent -= {output.rid for output in assembly.engine.step() if output.token_ids}
    found = gpu_profile.taken(assembly.engine.step)
    while assembly.engine.has_work:
        assembly.engine.step()
    return found


def peer(folder: Path, workload: Workload, vocab_size: int, device: str, repetitions: int) -> tuple[float, float]:
    """Seconds of transformers' continuous batching, from prompts to all their answers: the first time, and then."""
    pages = workload.requests * (1 + (workload.prompt_tokens + workload.new) // PAGE_TOKENS)
    pool = ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=BATCH_TOKENS)
    generate = batching(folder, pool, device, stays_ready=True)

    def once(seed: int) -> float:
        prompts, started = workload.prompts(vocab_size, seed), time.perf_counter()
        generate(prompts, workload.new)
        return time.perf_counter() - started

    first, *others = (once(seed) for seed in range(repetitions + 1))
    return first, statistics.median(others)


def measure(folder: Path, workload: Workload, device: str, repetitions: int) -> dict[str, Any]:
    """All figures of one model."""
    cost, bandwidth = limits.cost(folder), copied_bytes_a_second(device)
    cache = 2 * cost.cache_bytes * workload.requests * (workload.prompt_tokens + workload.new)
    config = EngineConfig(
        model=str(folder), device=device, dtype="bfloat16", max_running=workload.requests, kv_cache_bytes=cache
    )
    started = time.perf_counter()
    assembly = assemble(config, lambda *_: None)
    vocab = assembly.model.vocab_size
    found: dict[str, Any] = {"start": time.perf_counter() - started, "bandwidth": bandwidth}
    found["layers_in"] = assembly.model.layers_in
    for name, batch in (("one", 1), ("many", workload.requests)):
        part = workload._replace(requests=batch)
        first, seconds, rate = runs(assembly, part, vocab, repetitions)
        found[f"{name}_drawn"] = runs(assembly, part._replace(top_p=TOP_P), vocab, repetitions).rate
        read = cost.weight_bytes + batch * cost.cache_bytes * (part.prompt_tokens + part.new / 2)
        ceiling = batch * bandwidth / read
        found |= {f"{name}_first": first, f"{name}_seconds": seconds, f"{name}_rate": rate}
        found |= {f"{name}_ceiling": ceiling, f"{name}_share": rate / ceiling}
        found[f"{name}_parts"] = profiled(assembly, part.prompts(vocab, repetitions + 1), part.new)
    assembly.close()
    del assembly
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    first, then = peer(folder, workload, vocab, device, repetitions)
    return found | {"peer_first": first, "peer_seconds": then}


def copied_bytes_a_second(device: str, size: int = 2**30) -> float:
    """Read and written, of a copy within the device's memory: the best of ten."""
    source = torch.zeros(size if device.startswith("cuda") else 2**24, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None

    def once() -> float:
        started = time.perf_counter()
        for _ in range(4):
            target.copy_(source)
        wait()
        return 8 * source.nbytes / (time.perf_counter() - started)

    wait()
    return max(once() for _ in range(10))


def checkpoint(name: str, device: str) -> Path:
    """The folder of a shape, made if it is not there."""
    made = shapes.folder() / name
    return made if (made / "config.json").is_file() else shapes.make(made, SHAPES[name], device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument(
        "--repetitions", type=int, default=REPETITIONS, help="of each row, after one that does not count"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no NVIDIA GPU here")
    found = json.loads(FIGURES.read_text()) if FIGURES.is_file() else {}
    for name in options.shapes:
        figures = measure(checkpoint(name, "cuda"), MANY, "cuda", options.repetitions)
        command = f"python -m benchmarks.gpu {name}"
        if options.repetitions != REPETITIONS:
            command += f" --repetitions {options.repetitions}"
        found[name] = {**figures, "command": command, "machine": machine.describe()}
        print(name, json.dumps(found[name], indent=1), flush=True)
        FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    REPORT.write_text(render(found))


HEAD = """# On a GPU

`python -m benchmarks.gpu` writes this file. The limit is that of memory: bytes of weights and cache that a step reads
over the rate at which the device copies. Tokens are the likeliest ones but where they are drawn, at a temperature of 1
with a top-p of 0.95; in brackets, how much of the speed is left. "64 prompts" are 1,024 tokens each and 128 more, from
the first prompt to the last answer; beside them transformers' continuous batching in the same run, with its defaults
and SDPA, which is what it has where flash-attn is not installed: the first time, when it captures its graphs, and then.
In brackets, how many times as long it takes.
"""
PROFILES = """Microseconds of a decode step by what the GPU does, as torch's profiler tells it; each kernel counts from
the end of the one before it to its own.
"""
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "copied, TB/s": lambda f: f"{f['bandwidth'] / 1e12:.2f}",
    "1 sequence, tok/s": lambda f: f"{f['one_rate']:,.0f} of {f['one_ceiling']:,.0f} ({f['one_share']:.0%})",
    "64 sequences, tok/s": lambda f: f"{f['many_rate']:,.0f} of {f['many_ceiling']:,.0f} ({f['many_share']:.0%})",
    "drawn, 1 and 64": lambda f: f"{_drawn(f, 'one')}, {_drawn(f, 'many')}" if "one_drawn" in f else "",
    "first token of 1,024, ms": lambda f: f"{1000 * f['one_first']:.1f}",
    "64 prompts, s": lambda f: f"{f['many_seconds']:.2f}",
    "transformers, first": lambda f: _beside(f, "peer_first"),
    "then": lambda f: _beside(f, "peer_seconds"),
}


def _drawn(found: dict[str, Any], name: str) -> str:
    """Tokens a second, and how much of the greedy ones' speed that is."""
    return f"{found[f'{name}_drawn']:,.0f} ({found[f'{name}_drawn'] / found[f'{name}_rate']:.0%})"


def _beside(found: dict[str, Any], name: str) -> str:
    return f"{found[name]:.2f} ({found[name] / found['many_seconds']:.2f})" if name in found else ""


def render(found: dict[str, Any]) -> str:
    lines = [["model", *COLUMNS]]
    lines += [[name, *(cell(figures) for cell in COLUMNS.values())] for name, figures in found.items()]
    said = sorted({f"{f['machine']}: `{f['command']}`" for f in found.values()})
    notes = [f["note"] for f in found.values() if "note" in f]
    return "\n".join([HEAD, *_table(lines), "", *_profiles(found), *notes, "Taken on", *said, ""])


def _profiles(found: dict[str, Any]) -> list[str]:
    """Where steps spend their time, of the models that were looked at."""
    kinds = [*gpu_profile.KINDS, gpu_profile.OTHERS, gpu_profile.IDLE]
    lines = [["model", "sequences", *kinds, "together"]]
    for name, figures in found.items():
        for title, parts in (("1", figures.get("one_parts")), (str(MANY.requests), figures.get("many_parts"))):
            if parts:
                cells = [f"{parts.get(kind, 0):,.0f}" for kind in kinds]
                lines.append([name, title, *cells, f"{sum(parts.values()):,.0f}"])
    return [PROFILES, *_table(lines), ""] if len(lines) > 1 else []


def _table(lines: list[list[str]]) -> list[str]:
    return [line(cells) for cells in (lines[0], ["---"] * len(lines[0]), *lines[1:])]


if __name__ == "__main__":
    main()
