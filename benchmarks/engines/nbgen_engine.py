"""nbgen's engine without server or messages between processes; an option is the weights' bits, or to compile."""

import gc
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.child import Generate, serve
from benchmarks.workloads import CACHE_BYTES
from nbgen.engine.lean_imports import import_engine
from nbgen.engine_config import EngineConfig
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams

if TYPE_CHECKING:
    from nbgen.engine.assembly import Assembly


def load(folder: Path, threads: int) -> Generate:
    option = next(iter(sys.argv[3:]), None)
    compiles = option == "compile"
    quantization = None if compiles else option
    options = {"quantization": quantization, "compile": compiles, "kv_cache_bytes": CACHE_BYTES}
    config = EngineConfig(model=str(folder), threads=threads, draft_tokens=0, **options)  # of random weights
    import_parts(config)
    from nbgen.engine.assembly import assemble

    return partial(generate, assemble(config, lambda *_: None))


def import_parts(config: EngineConfig) -> None:
    """Import an engine's parts. They are never collected, as in the engine's process: that would take 90 ms a time."""
    gc.disable()
    import_engine(config)
    import_module("nbgen.engine.assembly")
    gc.freeze()
    gc.enable()


def begin(assembly: "Assembly", prompts: list[list[int]], new: int, top_p: float | None = None) -> list[str]:
    """Ask for all prompts to be continued; what their outputs are known by."""
    drawn = {"temperature": 0.0} if top_p is None else {"temperature": 1.0, "top_p": top_p}
    params = SamplingParams(max_new_tokens=new, ignore_eos=True, **drawn)
    rids = [str(index) for index in range(len(prompts))]
    for rid, ids in zip(rids, prompts, strict=True):
        assembly.engine.add(assembly.admission.sequences(GenerateRequest(rid=rid, input_ids=ids, params=params)))
    return rids


def generate(assembly: "Assembly", prompts: list[list[int]], new: int, top_p: float | None = None) -> list[list[int]]:
    """All prompts at once; the tokens each gained."""
    answers: dict[str, list[int]] = {rid: [] for rid in begin(assembly, prompts, new, top_p)}
    while assembly.engine.has_work:
        for output in assembly.engine.step():
            answers[output.rid] += output.token_ids
    return list(answers.values())


if __name__ == "__main__":
    serve(load)
