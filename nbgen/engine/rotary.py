"""Rotary embeddings that depend on the length of each sequence (LongRoPE, Ding et al. 2024).

transformers chooses the frequencies of a whole batch by its longest position; here each row of a packed batch has those
of its sequence, so that no text depends on what runs beside it. Dynamic NTK scaling needs nothing: it acts beyond
`max_position_embeddings` only, which no sequence exceeds.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.upload import upload


class LongRotary:
    """The rotary modules of a model that have frequencies for short and for long sequences; often there are none."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.long_after: int | None = None
        self._rows: list[bool] | None = None
        self._frequencies: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        #: Whether kinds of layers have LongRoPE frequencies of their own, which is not supported here.
        self._by_kind = False
        modules: Iterator[Any] = model.modules()
        for module in modules:
            kind = getattr(module, "rope_type", None)
            self._by_kind |= isinstance(kind, dict) and "longrope" in kind.values()
            if kind == "longrope":
                self.long_after = module.config.rope_parameters["original_max_position_embeddings"]
                module.forward = partial(self._forward, module)

    @contextmanager
    def lengths(self, items: list[ScheduledSequence]) -> Iterator[None]:
        """Enter it around the forward of `items`, packed in this order.

        Raises NotImplementedError if kinds of layers have frequencies of their own.
        """
        if self._by_kind:
            raise NotImplementedError("frequencies by length for each kind of layers")
        if self.long_after is not None:
            self._rows = [len(sequence) > self.long_after for sequence, count in items for _ in range(count)]
        try:
            yield
        finally:
            self._rows = None

    def _forward(
        self, module: Any, x: torch.Tensor, position_ids: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines `[B, T, dim]` of each row's own frequencies."""
        if self._rows is None or self.long_after is None:
            return type(module).forward(module, x, position_ids, **options)
        rows = upload(self._rows, x.device).view(*position_ids.shape, 1)
        if module not in self._frequencies:
            self._frequencies[module] = self._short_and_long(module, x.device, self.long_after)
        short, long = (_embed(module, each, x, position_ids) for each in self._frequencies[module])
        return torch.where(rows, long[0], short[0]), torch.where(rows, long[1], short[1])

    @staticmethod
    def _short_and_long(module: Any, device: torch.device, after: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The frequencies of sequences of up to `after` tokens, and those of longer ones."""
        short, long = (ROPE_INIT_FUNCTIONS["longrope"](module.config, device, seq_len=after + more) for more in (0, 1))
        return short[0], long[0]


def _embed(
    module: Any, frequencies: torch.Tensor, x: torch.Tensor, position_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines with these frequencies, whatever the positions."""
    module.inv_freq.copy_(frequencies)
    return inspect.unwrap(type(module).forward)(module, x, position_ids)
