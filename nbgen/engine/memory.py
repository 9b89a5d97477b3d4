"""How much memory there is, and how much of it the KV cache may take. Knows nothing of what is stored there."""

import ctypes
import gc
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from nbgen.engine import container
from nbgen.safetensors_file import is_whole

SHARE = 0.25
MOST_BYTES = 8 * 2**30
#: Memory is short with less free than this share of it and than this many bytes: others may soon get none.
SHORT_SHARE = 1 / 16
SHORT_BYTES = 2**30


def kv_cache_budget(device: torch.device, configured: int | None) -> int:
    """Bytes for the KV cache: what the owner set, else a quarter of what is free and 8 GiB at most."""
    if configured is not None:
        return configured
    free, _ = device_memory(device)
    return min(int(free * SHARE), MOST_BYTES)


def device_memory(device: torch.device, root: Path = container.ROOT) -> tuple[int, int]:
    """Bytes free and in all, of the GPU, or of the machine as far as this process may take them."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    lines = root / "proc/meminfo"
    if not lines.is_file():  # macOS
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(8 * 2**30, installed), installed
    fields = dict(line.split(":") for line in lines.read_text(encoding="utf-8").splitlines())
    available, installed = (int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    free, total = container.memory(root)
    return int(min(available, free)), int(min(installed, total))


def is_short(device: torch.device) -> bool:
    """Whether so little of the machine's memory is free that a notebook may soon be killed for want of it.

    Never on a GPU: what it cannot give is refused, and no process is killed.
    """
    if device.type == "cuda":
        return False
    free, total = device_memory(device)
    return free < min(total * SHORT_SHARE, SHORT_BYTES)


class Plenty:
    """Whether memory may be taken for data that is merely cached. Called for every block, measured once a second."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._answer = True
        self._due = 0.0

    def __call__(self) -> bool:
        if (now := time.monotonic()) >= self._due:
            self._due = now + 1
            self._answer = not is_short(self._device)
        return self._answer


def drop_pages(*tensors: torch.Tensor) -> None:
    """Let go of the memory behind tensors that are mapped from safetensors files; it is read again if need be.

    Other tensors stay in memory: only a file's pages have another copy.
    """
    is_mapped = _mapped_from_weights()
    for start, stop in map(_whole_pages, tensors):
        if start < stop and is_mapped(start, stop):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)


def are_mapped(*tensors: torch.Tensor) -> bool:
    """Whether all are mapped from safetensors files."""
    is_mapped = _mapped_from_weights()
    return all(is_mapped(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors)


def _whole_pages(tensor: torch.Tensor) -> tuple[int, int]:
    page = mmap.PAGESIZE
    return -(-tensor.data_ptr() // page) * page, (tensor.data_ptr() + tensor.nbytes) // page * page


def _mapped_from_weights() -> Callable[[int, int], bool]:
    """Tells whether the memory between two addresses is mapped from a file of weights, by the present mappings.

    A file is recognised by its content: a hub's cache keeps files under names that say nothing.
    """
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if maps.is_file() else []
    spans = [(span.split("-"), inode, path) for span, _, _, _, inode, path in _of_files(lines)]
    known = [(int(first, 16), int(last, 16), inode, path) for (first, last), inode, path in spans]
    return lambda start, stop: any(
        first <= start and stop <= last and _has_weights(path, inode) for first, last, inode, path in known
    )


def _of_files(lines: list[str]) -> Iterator[list[str]]:
    """The fields of those lines of the system's list that name a file."""
    return (fields for line in lines if len(fields := line.split(maxsplit=5)) == 6 and fields[5].startswith("/"))


@cache
def _has_weights(path: str, _inode: str) -> bool:
    """Whether it is a safetensors file; the inode tells a file from another that replaces it."""
    with suppress(OSError):  # it was removed, or replaced, since it was mapped
        return os.path.isfile(path) and is_whole(Path(path))
    return False


def ran_out(error: BaseException) -> bool:
    """Whether the error says that memory ran out.

    On a CPU torch raises a RuntimeError with the system's words; on a GPU not only the allocator can run out
    (launches, cuBLAS, Triton).
    """
    words = str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in words:
        return True
    return isinstance(error, RuntimeError) and ("out of memory" in words or "ALLOC_FAILED" in words)


def used_memory(device: torch.device) -> int:
    """Bytes that this process holds on the device."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    statm = Path("/proc/self/statm")
    return int(statm.read_text(encoding="utf-8").split()[1]) * mmap.PAGESIZE if statm.is_file() else 0


def report(device: torch.device) -> dict[str, Any]:
    """The memory fields of a status: the device's bytes that this process holds, and all that there are."""
    _free, total = device_memory(device)
    return {"memory_used": used_memory(device), "memory_total": total}


def give_back(device: torch.device) -> None:
    """Return memory that nothing refers to any more from this process's allocators to the system."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
