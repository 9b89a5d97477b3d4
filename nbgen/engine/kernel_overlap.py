"""Kernels that start while the ones before them end: CUDA's programmatic dependent launch, on sm_90 and later.

A kernel launched this way must `follow` before it reads what another kernel wrote, or writes anything. Before that it
may read weights, which no kernel writes, and what was written before the last ordinary launch: keys of earlier steps,
since every step looks up embeddings by an ordinary launch. Needs triton: import it only where there is a GPU.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl

#: The first compute capability with such launches.
CAPABILITY = (9, 0)


@triton.jit
def begin(OVERLAPS: tl.constexpr):
    """From here on the next kernel may start, as far as there is room beside this one."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def follow(OVERLAPS: tl.constexpr):
    """Wait until all kernels before this one have ended and what they wrote can be read."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()


@triton.jit
def take_turn(OVERLAPS: tl.constexpr):
    """`begin` and `follow` at once, for a kernel that can do nothing before."""
    begin(OVERLAPS)
    follow(OVERLAPS)


def overlap(device: torch.device) -> dict[str, bool]:
    """Launch options on the device for a kernel that has the argument `OVERLAPS`."""
    return {"OVERLAPS": True, "launch_pdl": True} if _overlaps(device) else {"OVERLAPS": False}


@lru_cache
def _overlaps(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= CAPABILITY
