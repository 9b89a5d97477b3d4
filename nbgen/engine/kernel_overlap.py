"""Kernels that come up while the ones before them end: CUDA's programmatic dependent launch, of sm_90 and later.

A kernel that is launched so must `follow` before it reads what another kernel wrote, or writes anything. What comes
before that may read weights, which no kernel writes, and what was written before the last kernel that was launched as
usual: keys of earlier steps, since every step looks up embeddings so. Needs triton: import it where there is a GPU.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl

#: The first compute capability that can.
CAPABILITY = (9, 0)


@triton.jit
def begin(OVERLAPS: tl.constexpr):
    """From here on the next kernel may come up, as far as there is room beside this one."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def follow(OVERLAPS: tl.constexpr):
    """Wait until all kernels before this one have ended and what they wrote can be read."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()


@triton.jit
def take_turn(OVERLAPS: tl.constexpr):
    """Both at once, for a kernel that has nothing to do before."""
    begin(OVERLAPS)
    follow(OVERLAPS)


def overlap(device: torch.device) -> dict[str, bool]:
    """Options of a launch on the device, of a kernel that is told by `OVERLAPS`."""
    return {"OVERLAPS": True, "launch_pdl": True} if _overlaps(device) else {"OVERLAPS": False}


@lru_cache
def _overlaps(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= CAPABILITY
