"""`python -m benchmarks.adapters`: eight LoRA adapters in a batch of sixteen, beside the same batch without any.

Eight layers of Qwen3-0.6B's width in bfloat16, all linear layers adapted at rank 16, 32 tokens in and 12 out. The two
batches take turns in one process on one thread, whose CPU time is what is compared.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import shapes
from benchmarks.results import Results
from nbgen.engine.adapter_folder import Adapter, Pair
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine.lora import linear_shapes
from nbgen.engine_config import EngineConfig
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams

SHAPE = shapes.SHAPES["q06"] | {"num_hidden_layers": 8, "vocab_size": 4096}
ADAPTERS, RANK, REQUESTS, TURNS = 8, 16, 16, 9
PARAMS = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)


def seconds(assembly: Assembly, adapters: list[Adapter | None]) -> float:
    """CPU seconds of decoding a batch whose requests go through these adapters in turn."""
    assembly.engine.flush_cache()
    for index in range(REQUESTS):
        prompt = list(range(300 + index, 332 + index))
        request = GenerateRequest(rid=str(index), input_ids=prompt, params=PARAMS)
        sequences = assembly.admission.sequences(request)
        for sequence in sequences:
            sequence.adapter = adapters[index % len(adapters)]
        assembly.engine.add(sequences)
    assembly.engine.step()
    started = time.process_time()
    while assembly.engine.has_work:
        assembly.engine.step()
    return time.process_time() - started


def random_adapter(name: str, sizes: dict[str, tuple[int, int]]) -> Adapter:
    pairs = {
        path: Pair(torch.randn(RANK, inputs) * 0.02, torch.randn(outputs, RANK) * 0.02)
        for path, (inputs, outputs) in sizes.items()
        if path != "lm_head"
    }
    return Adapter(name, pairs, RANK)


def measure(folder: Path) -> dict[str, float]:
    """CPU seconds without and with adapters, and the share of the speed that is left: medians over the turns."""
    assembly = assemble(EngineConfig(model=str(folder), threads=1, dtype="bfloat16", draft_tokens=0), lambda *_: None)
    sizes = linear_shapes(assembly.engine._runner.model)
    adapters = [random_adapter(str(index), sizes) for index in range(ADAPTERS)]
    for adapter in adapters:
        assembly.engine.install(adapter)
    turns = [(seconds(assembly, [None]), seconds(assembly, [*adapters])) for _ in range(TURNS + 1)][1:]
    plain, adapted = (statistics.median(turn[side] for turn in turns) for side in (0, 1))
    return {"plain": plain, "adapted": adapted, "share": statistics.median(turn[0] / turn[1] for turn in turns)}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(shapes.make(Path(folder), SHAPE))
    Results().keep("adapters", found)
    print(found)


if __name__ == "__main__":
    main()
