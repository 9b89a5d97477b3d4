"""transformers' continuous batching, `generate_batch`, with a pool of pages that holds every workload."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from benchmarks.child import Generate, serve

PAGE_TOKENS = 16
POOL_TOKENS = 20_480
#: Tokens of one step.
BATCH_TOKENS = 1024


def load(folder: Path, threads: int) -> Generate:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="sdpa").eval()
    pool = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS, num_blocks=POOL_TOKENS // PAGE_TOKENS, max_batch_tokens=BATCH_TOKENS
    )

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        greedy = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)
        outputs = model.generate_batch(prompts, generation_config=greedy, continuous_batching_config=pool)
        return [output.generated_tokens for output in outputs.values()]

    return generate


if __name__ == "__main__":
    serve(load)
