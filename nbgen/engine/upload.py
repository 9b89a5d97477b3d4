"""Numbers from the host to a model's device. The host does not wait: they come in the order of what the device does.

Does not know what the numbers are for.
"""

from typing import Any

import torch


def upload(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The numbers (lists, an array, a tensor) there; torch keeps the pinned memory between until they have come.

    Raises NotImplementedError within a CUDA graph, which would go on reading that memory when it is another's.
    """
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            raise NotImplementedError("numbers of one step in a graph of many")
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
