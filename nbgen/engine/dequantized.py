"""Checkpoints whose weights transformers can dequantize while it loads them: fp8, mxfp4, compressed-tensors.

Knows no format itself. Our own experts keep mxfp4 (`expert_files`).
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from nbgen.engine.quantized_checkpoint import WRITTEN_OUT

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def ask(architecture: Any, device: torch.device) -> bool:
    """Have transformers dequantize weights that nothing here can multiply: on a CPU, or without GPU kernels.

    On a CPU this includes compressed-tensors, whose layers would round their inputs and could not use our products.
    """
    if device.type == "cuda" and find_spec("kernels") is not None:
        return False
    configs = [getattr(part, "quantization_config", None) for part in (architecture, architecture.get_text_config())]
    known = WRITTEN_OUT if device.type == "cuda" else WRITTEN_OUT | {"compressed-tensors"}
    asked = [config for config in configs if isinstance(config, dict) and config.get("quant_method") in known]
    for config in asked:
        config["dequantize"] = True
    return bool(asked)


def even(model: "PreTrainedModel") -> None:
    """Convert all weights to the model's dtype: transformers leaves those that were not dequantized in the file's.

    An older transformers also leaves layers of compressed-tensors their scales and a forward that rounds inputs.
    """
    for module in model.modules():
        if vars(module).pop("quantization_scheme", None) is not None:
            vars(module).pop("forward", None)
            for name in {*module._parameters} - {"weight", "bias"}:
                delattr(module, name)
    dtype = model.config.dtype
    float32 = () if dtype == torch.float32 else model._keep_in_fp32_modules_strict or ()
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not any(part in name for part in float32):
            weight.data = weight.data.to(dtype)
