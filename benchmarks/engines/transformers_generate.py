"""transformers' `generate` with its dynamic cache: its best case, prompts of one length as one batch, no padding.

An option is the type that it computes in: processors without bfloat16 are faster in float32.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.child import Generate, serve


def load(folder: Path, threads: int) -> Generate:
    torch.set_num_threads(threads)
    dtype = next(iter(sys.argv[3:]), "auto")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def generate(prompts: list[list[int]], new: int, top_p: float | None = None) -> list[list[int]]:
        drawn = {"do_sample": False} if top_p is None else {"do_sample": True, "top_k": 0, "top_p": top_p}
        ids = torch.tensor(prompts)
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            **drawn,
            eos_token_id=None,
            pad_token_id=0,
        )
        return output[:, ids.shape[1] :].tolist()

    return generate


if __name__ == "__main__":
    serve(load)
