"""How the engine process behaves towards its machine: it dies with its parent and before anything else does.

Knows nothing of models or messages. The three ways to end are independent (end of file on the channel is the
third, in `channel`): the kernel's signal on the parent's death, and a thread that watches the parent's pid.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
WATCH_SECONDS = 2.0
OOM_SCORE = 500


def live_and_die_with_parent() -> None:
    """Ignore Ctrl-C (the server decides), end when the parent ends, be the first to go when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    _signal_on_parent_death()
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()
    _prefer_out_of_memory()


def _signal_on_parent_death() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


def _prefer_out_of_memory() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    except OSError:
        return  # not Linux, or not allowed: the kernel's own choice stands
