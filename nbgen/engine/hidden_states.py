"""Hidden states after the last norm, captured by a hook as the input of the model's output layer.

Works for every model that names that layer, whatever comes before it. Knows of requests only which ones ask.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from nbgen.engine.scheduler import ScheduledSequence

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Capture:
    """The output layer's input of one forward, as `states` `[rows, hidden]`; None where nobody asked."""

    def __init__(self) -> None:
        self.states: torch.Tensor | None = None

    def __call__(self, _: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self.states = inputs[0].flatten(0, -2)

    def rows(self, wanted: Sequence[int], *, picked: bool) -> torch.Tensor | None:
        """The states of the packed rows `wanted`, in that order; the model may have `picked` them already."""
        if self.states is None or (picked and len(self.states) == len(wanted)):
            return self.states
        return self.states[list(wanted)]


class HiddenStates:
    """Watches one model. `width` is that of a state, 0 where the model does not name the layer."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._model = model
        self.width = int(getattr(self._head, "in_features", 0))

    @property
    def _head(self) -> torch.nn.Module | None:
        """Looked up anew, since the layer may be replaced by a faster one."""
        getter = getattr(self._model, "get_output_embeddings", None)
        return getter() if getter else None

    def wanted(self, batch: Iterable[ScheduledSequence]) -> bool:
        """Whether any of the batch asks for hidden states."""
        return any(item.sequence.tensors and item.sequence.tensors.of_states for item in batch)

    @contextmanager
    def of(self, batch: Iterable[ScheduledSequence]) -> Iterator[Capture]:
        """Capture during one forward if any of the batch asks for it."""
        capture, head = Capture(), self._head
        watched: AbstractContextManager[Any] = nullcontext()
        if head is not None and self.wanted(batch):
            watched = head.register_forward_pre_hook(capture)
        with watched:
            yield capture
