"""Numbers from the host to a model's device. The host does not wait: they come in the order of what the device does."""

from typing import Any

import torch


def upload(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The numbers (lists, an array, a tensor) there; torch keeps the pinned memory between until they have come."""
    tensor = torch.as_tensor(values, dtype=dtype)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
