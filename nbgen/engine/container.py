"""How much memory and processor time control groups (cgroups, v1 and v2) leave this process, as in a container.

Its own group may set limits, and every group above it. Knows no torch, and not what memory and threads are used for.
"""

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
#: By v2 and v1: the files with the limit and the bytes in use, and the field of memory.stat with the part of these that
#: is inactive file cache, which the kernel drops first.
MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory(root: Path = ROOT) -> tuple[float, float]:
    """Free and total bytes, both infinite if nothing limits them."""
    free = total = math.inf
    for group in _groups("memory", root):
        for limit, used, cached in MEMORY:
            match f"{_text(group / limit)} {_text(group / used)}".split():
                case [most, now] if most.isdigit():
                    free = min(free, int(most) - int(now) + _field(group / "memory.stat", cached))
                    total = min(total, int(most))
    return max(0, free), total


def threads(configured: int | None, usual: int, root: Path = ROOT) -> int:
    """Number of computing threads: `configured`, else `usual`, but no more than the group has processor time for."""
    return configured or int(min(usual, processors(root)))


def processors(root: Path = ROOT) -> float:
    """How many processors the group may keep busy all the time, rounded up; infinite without a limit."""
    shares = [math.inf]
    for group in _groups("cpu", root):
        parts = (_text(group / name) for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
        match " ".join(parts).split():
            case [quota, period] if quota.isdigit():
                shares.append(math.ceil(int(quota) / int(period)))
    return min(shares)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folder of the process's own group, then of each above it. Inside a container some of them cannot be seen."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        if not controllers or controller in controllers.split(","):
            group = top / path.lstrip("/")
            yield from [group, *(parent for parent in group.parents if parent.is_relative_to(top))]


def _field(path: Path, name: str) -> int:
    words = _text(path).split()
    return int(words[words.index(name) + 1]) if name in words else 0


def _text(path: Path) -> str:
    """The file's text; empty if there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
