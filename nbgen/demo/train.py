"""Trains the demo model from scratch: `python -m nbgen.demo.train`, an hour and a half at most on two CPU cores.

The text comes from `corpus.py`; the same seed and number of steps give the same training text and order.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from nbgen.demo import batches, card, corpus, tokenizer
from nbgen.demo.optimizer import Optimizer, rate

MODEL = Path(__file__).parent / "model"
STEPS = 2800
MINUTES = 90
REPORT_EVERY = 20
SAVE_EVERY = 100
THREADS = 2
EARLY_SHARE = 0.3


def config(vocabulary: Tokenizer) -> LlamaConfig:
    """A Llama of four and a half million parameters."""
    return LlamaConfig(
        vocab_size=tokenizer.VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=tokenizer.CONTEXT,
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=vocabulary.token_to_id(corpus.BEGIN),
        eos_token_id=vocabulary.token_to_id(corpus.END),
        pad_token_id=vocabulary.token_to_id(corpus.PAD),
        attn_implementation="eager",
    )


def generation_config(model: LlamaConfig) -> GenerationConfig:
    """How the model is sampled when nobody says otherwise."""
    return GenerationConfig(
        bos_token_id=model.bos_token_id,
        eos_token_id=model.eos_token_id,
        pad_token_id=model.pad_token_id,
        do_sample=True,
        temperature=0.3,
        top_p=0.9,
        max_new_tokens=512,
    )


@dataclass
class Progress:
    """How far a run has come: it ends after so many steps, or after so many minutes if they are over first."""

    steps: int
    minutes: float
    number: int = 0
    tokens: int = 0
    start: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.start

    @property
    def done(self) -> float:
        """The share of the run that lies behind."""
        return max(self.number / self.steps, self.seconds / 60 / self.minutes)

    def add(self, step: list[batches.MicroBatch]) -> None:
        """One more step is done."""
        self.number += 1
        self.tokens += sum(batch.ids.numel() for batch in step)

    def __str__(self) -> str:
        return f"{self.number} steps, {self.tokens / 1e6:.1f} million tokens, {self.seconds / 60:.0f} minutes"


def loss(model: LlamaForCausalLM, batch: batches.MicroBatch) -> torch.Tensor:
    """The weighted sum of the losses of the learned tokens."""
    device = model.device
    hidden = model.model(input_ids=batch.ids.to(device), use_cache=False).last_hidden_state
    logits = model.lm_head(hidden.flatten(0, 1)[batch.places.to(device)]).float()
    losses = nn.functional.cross_entropy(logits, batch.targets.to(device), reduction="none")
    return (losses * batch.weights.to(device)).sum()


def gradients(
    model: LlamaForCausalLM, part: list[batches.MicroBatch], whole: float
) -> tuple[list[torch.Tensor], float]:
    """The gradients and the loss of some of a step's micro-batches, as shares of the whole step."""
    weights, mean = list(model.parameters()), 0.0
    sums = [torch.zeros_like(weight) for weight in weights]
    for batch in part:
        share = loss(model, batch) / whole
        torch._foreach_add_(sums, torch.autograd.grad(share, weights))
        mean += share.item()
    return sums, mean


def accumulate(model: LlamaForCausalLM, step: list[batches.MicroBatch], pool: ThreadPoolExecutor) -> float:
    """Leaves the gradients of a step in the weights; returns the mean loss.

    Each thread takes micro-batches of its own: on a busy machine, two within one operation wait long for each other.
    """
    whole = sum(float(batch.weights.sum()) for batch in step)
    parts = list(pool.map(lambda first: gradients(model, step[first::THREADS], whole), range(THREADS)))
    for weight, *shares in zip(model.parameters(), *(part[0] for part in parts), strict=True):
        weight.grad = sum(shares[1:], shares[0])
    return sum(part[1] for part in parts)


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Writes the weights and both configurations, readable by everybody."""
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def fit(model: LlamaForCausalLM, vocabulary: Tokenizer, progress: Progress, options: argparse.Namespace) -> None:
    """Trains the model in place, saving it now and then, so that a run cut short leaves a model too."""
    optimizer, pool = Optimizer(model), ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,))
    early = batches.steps(options.seed, corpus.EARLY, vocabulary)
    late = batches.steps(options.seed + 1, corpus.LATE, vocabulary)
    while progress.done < 1:
        step = next(early if progress.done < EARLY_SHARE else late)
        mean = accumulate(model, step, pool)
        optimizer.step(rate(progress.number, progress.done))
        progress.add(step)
        if progress.number % REPORT_EVERY == 0:
            print(f"loss {mean:.4f} after {progress}", flush=True)
        if progress.number % SAVE_EVERY == 0:
            save(model, options.out)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=MODEL, help="the folder to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the text (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the optimizer (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="after which it ends early (default: %(default)s)"
    )
    return parser.parse_args()


def main() -> None:
    """Trains, saves, evaluates, writes the card."""
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    vocabulary = tokenizer.trained(options.seed)
    tokenizer.wrapped(vocabulary).save_pretrained(options.out)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LlamaForCausalLM(config(vocabulary)).to(device, torch.bfloat16)
    model.generation_config = generation_config(model.config)
    progress = Progress(options.steps, options.minutes)
    fit(model, vocabulary, progress, options)
    training = f"These weights took {progress} on {device}."
    save(model, options.out)
    card.write(options.out, training)


if __name__ == "__main__":
    main()
