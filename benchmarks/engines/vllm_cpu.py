"""vLLM's CPU build, compiled, offline."""

import os
from pathlib import Path

from benchmarks.child import Generate, serve
from benchmarks.workloads import CACHE_BYTES


def load(folder: Path, threads: int) -> Generate:
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(CACHE_BYTES // 2**30))
    from vllm import LLM, SamplingParams

    model = LLM(model=str(folder), dtype="bfloat16", max_model_len=2048, enable_prefix_caching=True, seed=0)

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        greedy = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        return [answer.outputs[0].token_ids for answer in model.generate(inputs, greedy, use_tqdm=False)]

    return generate


if __name__ == "__main__":
    serve(load)
