"""How much of the machine this process may use where control groups (cgroups, v1 and v2) limit it, as containers do.

Its own group may do that, and every one above it. Knows no torch, and not what either is used for.
"""

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
#: The files of v2 and of v1 that say how much there may be, how much is used, and what of that is cached files that
#: nobody reads any more, which the kernel lets go first.
MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory(root: Path = ROOT) -> tuple[float, float]:
    """Bytes free and in all, both infinite where nothing limits them."""
    free = total = math.inf
    for group in _groups("memory", root):
        for limit, used, cached in MEMORY:
            match f"{_text(group / limit)} {_text(group / used)}".split():
                case [most, now] if most.isdigit():
                    free = min(free, int(most) - int(now) + _field(group / "memory.stat", cached))
                    total = min(total, int(most))
    return max(0, free), total


def threads(configured: int | None, usual: int, root: Path = ROOT) -> int:
    """How many compute: what the owner set, else the usual number, but none that would wait for its share of time."""
    return configured or int(min(usual, processors(root)))


def processors(root: Path = ROOT) -> float:
    """How many can be kept busy all the time, rounded up; infinite where nothing limits them."""
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
    """Empty where there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
