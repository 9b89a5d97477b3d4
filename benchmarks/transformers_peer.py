"""transformers' `generate` on the same checkpoint, in a process of its own with the same number of threads.

Its best case: prompts of one length as one batch, so no padding and no scheduling. Runs as
`python -m benchmarks.transformers_peer FOLDER DTYPE` and answers one JSON line for each line it reads.
"""

import json
import os
import subprocess
import sys
import time

from benchmarks.workload import NEW_TOKENS, Measurement, prompts


class TransformersPeer:
    """The process, asked from outside."""

    name = "transformers generate"

    def __init__(self, folder: str, dtype: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.transformers_peer", folder, dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "GOMP_SPINCOUNT": "10000"},
        )

    def measure(self, streams: int, repetition: int) -> Measurement:
        self._process.stdin.write(json.dumps([streams, repetition]) + "\n")
        self._process.stdin.flush()
        return Measurement(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def main(folder: str, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def generate(ids: torch.Tensor, new_tokens: int) -> float:
        started = time.perf_counter()
        model.generate(ids, max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        return time.perf_counter() - started

    for line in sys.stdin:
        streams, repetition = json.loads(line)
        ids = torch.tensor(prompts(streams, model.config.vocab_size, repetition))
        first = generate(ids, 1)
        cpu = time.process_time()
        seconds = generate(ids, NEW_TOKENS)
        cpu = time.process_time() - cpu
        answer = {"streams": streams, "tokens": streams * NEW_TOKENS, "seconds": seconds}
        print(json.dumps({**answer, "first_token_seconds": first, "cpu_seconds": cpu}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
