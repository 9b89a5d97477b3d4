"""Starts an engine's process and its channel, also before the server is imported. Knows nothing of the server."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import Literal, NamedTuple

COMMAND = ("-m", "nbgen.engine")
#: When the process imports what a model needs: once it is told to load one, or before.
How = Literal["", "early", "gently"]
#: Buffer of each direction: a tensor of many megabytes then needs few switches between the two processes.
BUFFER_BYTES = 2**22


class EngineChild(NamedTuple):
    """A process that has just begun, with the server's end of its channel."""

    process: subprocess.Popen[bytes]
    channel: socket.socket

    @classmethod
    def spawn(cls, how: How = "") -> EngineChild:
        """`how`: it imports while it waits to be told what to be, as fast as it can or "gently". Raises OSError."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        try:
            with theirs:
                return cls(_process(theirs.fileno(), how), ours)
        except BaseException:
            ours.close()
            raise


_early: list[EngineChild] = []


def begin_early() -> None:
    """Start the process that the first load of this process's server will take: both import at the same time."""
    with contextlib.suppress(OSError):  # the load tries once more, and tells why not
        _early.append(EngineChild.spawn("early"))


def early() -> EngineChild | None:
    """The process that `begin_early` has started, for one caller."""
    return _early.pop() if _early else None


def end_early() -> None:
    """End the process that `begin_early` has started: nothing is loaded at once."""
    while (child := early()) is not None:
        child.channel.close()
        child.process.kill()
        child.process.communicate()


def _process(channel: int, how: How) -> subprocess.Popen[bytes]:
    # -P keeps a torch.py or json.py beside the notebook out of the engine's imports.
    return subprocess.Popen(
        [sys.executable, "-P", *COMMAND, str(channel), *([how] if how else [])],
        pass_fds=(channel,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    """Our environment, with OpenMP's busy waiting kept short: cores are shared with kernels and a browser.

    What it says of errors has no colours, which Jupyter asks for in kernels: the log and clients take plain text.
    """
    fixed = {"PYTHONUNBUFFERED": "1", "PYTHON_COLORS": "0", "TOKENIZERS_PARALLELISM": "false"}
    return {"GOMP_SPINCOUNT": "10000"} | os.environ | fixed
