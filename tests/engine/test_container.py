"""A container's limits are read where the kernel writes them: control groups of version 1 and 2, its own and above."""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nbgen.engine import container, memory

GIB = 2**30
HOST = {"proc/meminfo": f"MemTotal: {256 * 2**20} kB\nMemAvailable: {200 * 2**20} kB\n"}
Tree = dict[str, str]
#: What limits a process to 4 GiB, of which it may still take 3, and to two and a half processors.
LIMITED: dict[str, Tree] = {
    "v2, seen from inside": {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon 7\ninactive_file {GIB}\nactive_file 9\n",
        "sys/fs/cgroup/cpu.max": "250000 100000\n",
    },
    "v2, by a group above": {
        "proc/self/cgroup": "0::/pods/one/app\n",
        "sys/fs/cgroup/pods/one/app/memory.max": "max\n",
        "sys/fs/cgroup/pods/one/app/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/pods/one/app/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pods/one/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/pods/one/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/pods/memory.max": f"{64 * GIB}\n",
        "sys/fs/cgroup/pods/memory.current": f"{32 * GIB}\n",
        "sys/fs/cgroup/pods/cpu.max": "250000 100000\n",
    },
    "v1, named from outside": {
        "proc/self/cgroup": "4:memory:/docker/a b\n2:cpu,cpuacct:/docker/a b\n1:name=systemd:/\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "20000\n",
    },
}
UNLIMITED: dict[str, Tree] = {
    "no groups": {},
    "v2": {
        "proc/self/cgroup": "0::/user.slice\n",
        "sys/fs/cgroup/user.slice/memory.max": "max\n",
        "sys/fs/cgroup/user.slice/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
    },
    "v1": {
        "proc/self/cgroup": "4:memory:/\n2:cpu:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    },
    "a namespace of another": {
        "proc/self/cgroup": "0::/../other\n",
        "sys/memory.max": "1\n",
        "sys/memory.current": "1\n",
    },
}


@pytest.fixture
def root(tmp_path: Path) -> Callable[[Tree], Path]:
    """A machine's root folder with these files."""

    def write(files: Tree) -> Path:
        for name, text in {**HOST, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize("files", LIMITED.values(), ids=LIMITED)
def test_limits_hold(files: Tree, root: Callable[[Tree], Path]) -> None:
    machine = root(files)
    assert memory.device_memory(torch.device("cpu"), machine) == (3 * GIB, 4 * GIB)
    assert [container.threads(None, usual, machine) for usual in (64, 2)] == [3, 2]
    assert container.threads(8, 64, machine) == 8, "the owner decides"


@pytest.mark.parametrize("files", UNLIMITED.values(), ids=UNLIMITED)
def test_without_limits_all_is_the_machine_s(files: Tree, root: Callable[[Tree], Path]) -> None:
    machine = root(files)
    assert memory.device_memory(torch.device("cpu"), machine) == (200 * GIB, 256 * GIB)
    assert container.threads(None, 64, machine) == 64


def test_a_machine_with_less_than_its_container_may_take(root: Callable[[Tree], Path]) -> None:
    large = {**LIMITED["v2, seen from inside"], "sys/fs/cgroup/memory.max": f"{900 * GIB}\n"}
    assert memory.device_memory(torch.device("cpu"), root(large)) == (200 * GIB, 256 * GIB)


def test_a_group_beyond_its_limit_has_nothing_left(root: Callable[[Tree], Path]) -> None:
    full = {**LIMITED["v2, by a group above"], "sys/fs/cgroup/pods/one/memory.current": f"{5 * GIB}\n"}
    assert container.memory(root(full)) == (0, 4 * GIB)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's own")
def test_this_very_process_has_some_of_both() -> None:
    free, total = container.memory()
    assert 0 < free <= total
    assert 1 <= container.processors() <= math.inf
