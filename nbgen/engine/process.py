"""The engine process: it dies with its parent, is killed first when memory is short, and yields the CPU to others.

Knows nothing of models or messages. The three ways to end are independent (end of file on the channel is the
third, in `channel`): the kernel's signal on the parent's death, and a thread that watches the parent's pid.
"""

import ctypes
import os
import platform
import signal
import sys
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
WATCH_SECONDS = 2.0
OOM_SCORE = 500
#: With a longer time slice than others (Linux since 6.12; the usual is 3 ms) this process yields at once to one that
#: wakes up: kernels, browsers and the server need the CPU only briefly. Its share of the processors stays the same.
SLICE_NANOSECONDS = 10_000_000
SET_SCHEDULING = {"x86_64": 314, "aarch64": 274}


class Scheduling(ctypes.Structure):
    """Linux's `struct sched_attr`, of the first version."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("runtime", "deadline", "period")),
    ]


def live_and_die_with_parent() -> None:
    """Ignore Ctrl-C (the server decides), end when the parent ends, be the first to be killed when memory runs out.

    Call it before other threads start: they inherit the scheduling.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    _give_way()
    _signal_on_parent_death()
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()
    _prefer_out_of_memory()


def _signal_on_parent_death() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _give_way() -> None:
    """Set the time slice of this thread and those it starts. An older kernel ignores it."""
    number = SET_SCHEDULING.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = Scheduling(ctypes.sizeof(Scheduling), os.SCHED_OTHER, 0, nice, 0, SLICE_NANOSECONDS)
    ctypes.CDLL(None).syscall(number, 0, ctypes.byref(wanted), 0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


def _prefer_out_of_memory() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="utf-8")
    except OSError:
        return  # not Linux, or not allowed: the kernel's own choice stands
