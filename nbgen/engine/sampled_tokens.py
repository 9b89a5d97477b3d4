"""The sampled tokens of a step, usable on the device at once; copied to the host without waiting (on a CPU at once).

Knows neither scores nor sequences.
"""

import torch

#: The token of a row in which no score is finite.
NO_TOKEN = -1


class SampledTokens:
    """One token a row, `[rows]`, on its way to the host."""

    def __init__(self, ids: torch.Tensor) -> None:
        """`ids` may be negative in rows whose sequences do not go on."""
        self.ids = ids
        self._on_host = ids.to("cpu", non_blocking=True, copy=True)  # a graph may write `ids` again
        self._arrived = torch.cuda.current_stream(ids.device).record_event() if ids.is_cuda else None

    def tolist(self) -> list[int]:
        """The tokens. Waits until the device has computed them, but not for its later work."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._on_host.tolist()

    def fill(self, ids: torch.Tensor) -> torch.Tensor:
        """`ids` of any shape, with each negative one, `-1 - row`, replaced by the row's token (`Sequence.next_ids`)."""
        return torch.where(ids < 0, self.ids[(-1 - ids).clamp(min=0)].clamp(min=0), ids)
