"""The sampled tokens of a step: used on the device at once, and copied to the host without waiting (on a CPU at once).

Knows neither scores nor sequences.
"""

import torch

#: Of a row of scores in which none is finite.
NO_TOKEN = -1


class SampledTokens:
    """One token a row, `[rows]`, on its way to the host."""

    def __init__(self, ids: torch.Tensor) -> None:
        """`ids` may hold negative ones in rows that nobody goes on with."""
        self.ids = ids
        self._on_host = ids.to("cpu", non_blocking=True, copy=True)  # `ids` may be what a graph writes anew
        self._arrived = torch.cuda.current_stream(ids.device).record_event() if ids.is_cuda else None

    def tolist(self) -> list[int]:
        """The tokens, once the device has them. Later work of the device is not waited for."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._on_host.tolist()

    def fill(self, ids: torch.Tensor) -> torch.Tensor:
        """`ids` of any shape with the tokens of the rows that its negative ones stand for (`Sequence.next_ids`)."""
        return torch.where(ids < 0, self.ids[(-1 - ids).clamp(min=0)].clamp(min=0), ids)
