"""The optimizer of the demo model and the course of its learning rate; knows nothing of text or batches."""

import math

import torch
from torch import nn

WARM_UP = 40
PEAK = 2.5e-3


def rate(step: int, done: float) -> float:
    """The share of the peak learning rate: a warm-up, and half a cosine down to nothing."""
    return min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class Optimizer:
    """Muon for the matrices and AdamW for the rest, on 32-bit masters of 16-bit weights."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = list(model.parameters())
        self.masters = [weight.detach().float().clone() for weight in self.weights]
        embedding = model.get_input_embeddings().weight
        is_matrix = [weight.ndim == 2 and weight is not embedding for weight in self.weights]
        matrices = [master for master, yes in zip(self.masters, is_matrix, strict=True) if yes]
        others = [master for master, yes in zip(self.masters, is_matrix, strict=True) if not yes]
        self.parts = [
            torch.optim.Muon(matrices, lr=PEAK, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=PEAK, weight_decay=0.0, betas=(0.9, 0.95)),
        ]

    def step(self, share: float) -> None:
        """Clips the gradients, moves the masters, and copies them to the model."""
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        for part in self.parts:
            part.param_groups[0]["lr"] = PEAK * share
            part.step()
        torch._foreach_copy_([weight.data for weight in self.weights], self.masters)
