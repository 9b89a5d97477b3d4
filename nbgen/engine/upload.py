"""Copies numbers from the host to a model's device. The host does not wait: the copy is queued like the device's work.

Does not know what the numbers are for.
"""

from typing import Any

import torch


def upload(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The numbers (lists, an array, a tensor) on the device. torch keeps the pinned memory until they are copied.

    Raises NotImplementedError while a CUDA graph is captured: its replays would read that memory after its reuse.
    """
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            raise NotImplementedError("numbers of one step in a graph of many")
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
