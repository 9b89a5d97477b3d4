"""Finds the device that a configuration names: "auto", "cpu", "cuda" or "cuda:N". Knows no model."""

import logging
import platform

import torch

from nbgen.errors import ModelError

log = logging.getLogger(__name__)


def named(name: str) -> torch.device:
    """The device; "auto" is a GPU if torch can compute on one. Raises ModelError for an unknown name or absent GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() and _computes() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ModelError(f"device is {name!r}; it must be 'auto', 'cpu', 'cuda' or 'cuda:N'")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        found = f"{count} NVIDIA GPU{'s' if count > 1 else ''}, counted from 0," if count else "no NVIDIA GPU"
        raise ModelError(f"device is {name!r}, but torch finds {found} here: use device='cpu' or 'auto'")
    return device


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the device has arithmetic for bfloat16 that is faster than what it has for float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):  # macOS has none
        return False
    # oneDNN accepts bfloat16 from AVX-512 on, but without instructions for it takes four times as long as for float32.
    if platform.machine() != "x86_64" or torch.cpu._is_amx_tile_supported():
        return True
    return torch.cpu._is_avx512_bf16_supported() and not _means_tiles()


def _means_tiles() -> bool:
    """Whether the processor has instructions for bfloat16 that are there for its tiles' sake (AMX).

    Those of Intel's processors since Sapphire Rapids, the first with AVX-512-FP16, multiply 16 pairs a cycle, and those
    for float32 do 32: measured where a virtual machine hid the tiles, 1.39 and 5.48 billion vectors a second.
    """
    told = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(told.get("avx512_fp16")) and str(told.get("cpu_name", "")).startswith("Intel")


def works(device: torch.device) -> bool:
    """Whether it still computes: after a fault in a kernel, a process can do nothing more on its GPU."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _computes() -> bool:
    """Whether this build of torch has kernels for the GPU: it also reports old GPUs, for which it has none."""
    try:
        return (torch.ones(1, device="cuda") + 1).item() == 2
    except RuntimeError as error:
        log.warning("The CPU is used, for torch cannot compute on the GPU here: %s", error)
        return False
