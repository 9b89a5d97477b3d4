"""transformers' continuous batching, `generate_batch`, with a pool of pages that holds every workload."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from benchmarks.child import Generate, serve

#: Tokens of a page, of all pages, and of one step.
PAGE_TOKENS, POOL_TOKENS, BATCH_TOKENS = 16, 20_480, 1024


def load(folder: Path, threads: int) -> Generate:
    torch.set_num_threads(threads)
    pool = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS, num_blocks=POOL_TOKENS // PAGE_TOKENS, max_batch_tokens=BATCH_TOKENS
    )
    return batching(folder, pool)


def batching(
    folder: Path, pool: ContinuousBatchingConfig, device: str = "cpu", *, stays_ready: bool = False
) -> Generate:
    """The model on its device, over such a pool; what a call makes ready may stay so for the next."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="sdpa").to(device).eval()

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        greedy = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)
        outputs = model.generate_batch(
            prompts, generation_config=greedy, continuous_batching_config=pool, persistent_manager=stays_ready
        )
        return [output.generated_tokens for output in outputs.values()]

    return generate


if __name__ == "__main__":
    serve(load)
