"""Chooses the attention back end for a device: the fastest that works there. Knows no model."""

import logging
from functools import lru_cache

import torch

from nbgen.engine.attention import ReferenceAttention
from nbgen.engine.attention_cpu import CpuAttention
from nbgen.engine.attention_native import NativeAttention

log = logging.getLogger(__name__)


def attention_for(device: torch.device) -> ReferenceAttention:
    """The device's own back end, or a slower one if that cannot run."""
    if device.type == "cpu":
        try:
            return NativeAttention()
        except OSError:  # no C++ compiler
            return CpuAttention()
    if device.type == "cuda":
        try:
            from nbgen.engine.attention_triton import TritonAttention  # only here: other machines have no triton

            device = torch.zeros((), device=device).device  # with its index
            torch.cuda.set_device(device)  # for Triton's launches, and new streams and graphs
            return TritonAttention.of(device)
        except Exception as error:  # no triton, no C compiler, too old a GPU: all of them only cost speed
            log.warning("Attention kernels do not run on %s (%s); torch's own serve, more slowly", device, error)
    return ReferenceAttention()


@lru_cache
def has_kernels(device: torch.device) -> bool:
    """Whether Triton's kernels run on the device."""
    return device.type == "cuda" and attention_for(device).graphs
