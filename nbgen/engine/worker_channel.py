"""Frames (length and msgpack) between a process and its worker, over the worker's standard input and output.

It also has the limits of memory that a worker sets itself. Does not know what work is done.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import msgspec

from nbgen.frames import FRAME_HEADER, frame_length

T = TypeVar("T")


class Pipes(NamedTuple):
    """The two pipes of one end."""

    reads: IO[bytes]
    writes: IO[bytes]

    @classmethod
    def of_worker(cls) -> Pipes:
        """This process's standard input and output. Nothing else in the process can reach them from now on."""
        pipes = cls(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        return pipes

    def send(self, message: object) -> None:
        """Write one frame."""
        body = msgspec.msgpack.encode(message)
        self.writes.write(len(body).to_bytes(FRAME_HEADER, "big"))
        self.writes.write(body)
        self.writes.flush()

    def receive(self, kind: type[T]) -> T:
        """Read one frame. Raises EOFError where the other end is closed."""
        body = self._read(frame_length(self._read(FRAME_HEADER)))
        return msgspec.msgpack.decode(body, type=kind)

    def close(self) -> None:
        for file in self:
            with contextlib.suppress(OSError):  # unwritten data has no reader any more
                file.close()

    def _read(self, length: int) -> bytes:
        body = self.reads.read(length)
        if len(body) < length:
            raise EOFError
        return body


def limit_memory(num_bytes: int) -> None:
    """Let the address space grow by at most so much from its size now, if the system has such limits."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + num_bytes,) * 2)


def limit_stack(num_bytes: int) -> None:
    """Limit the stack of the main thread, if the system has such limits."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_STACK, (num_bytes, resource.getrlimit(resource.RLIMIT_STACK)[1]))
