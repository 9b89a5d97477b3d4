"""The engine's process: connected by an inherited socket pair with frames, always reaped.

Knows nothing of requests or restarts. Must be spawned on a thread that lives as long as the server: the child asks
the kernel to end it when that thread does.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from logging import Logger

from nbgen.server.engine_channel import EngineChannel
from nbgen.server.engine_child import EngineChild

LAST_LINES = 50
LONGEST_LINE = 4096
TERM_SECONDS = 1.5
#: How long to wait until a killed child's process group is gone.
GROUP_SECONDS = 1.0
#: The least part of a processor that a process uses while it computes. Threads that wait for Python's lock use less.
COMPUTES = 0.2

_PRIVATE = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][^\s\\/:'\",]+)+|0x[0-9a-fA-F]+")


class EngineProcess(EngineChannel):
    """One child, from spawn to reap."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Logger) -> None:
        super().__init__(log)
        self._popen = popen
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log_pump: asyncio.Task[None]
        #: Seconds of processor time that it had used, and when that was.
        self._used = 0.0, time.monotonic()

    @classmethod
    async def spawn(cls, log: Logger, *, gently: bool = False) -> EngineProcess:
        """Start the child and take the parent's end of its channel. `gently`: it imports at a low priority."""
        return await cls.adopt(EngineChild.spawn("gently" if gently else ""), log)

    @classmethod
    async def adopt(cls, child: EngineChild, log: Logger) -> EngineProcess:
        """Take over a child that has been started."""
        process = cls(child.process, log)
        try:
            await process._open(sock=child.channel)
        except BaseException:  # also on cancellation: closing the channel ends the child
            child.channel.close()
            raise
        process._log_pump = asyncio.create_task(process._read_log())
        return process

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether the child runs."""
        return self._popen.poll() is None

    def computes(self) -> bool:
        """Whether it has used a processor since the last call; true where the system does not tell."""
        if sys.platform != "linux":
            return True
        (used, at), now = self._used, time.monotonic()
        with contextlib.suppress(OSError):  # it has ended
            self._used = time.clock_gettime(~self.pid << 3 | 2), now  # what clock_getcpuclockid(3) makes of a pid
        return self._used[0] - used > COMPUTES * (now - at)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        self._signal(signal.SIGKILL)

    async def end(self, patience: float) -> str:
        """Wait for the exit, and force it after `patience` seconds; returns words for how the child ended."""
        self.close()
        for seconds, force in ((patience, signal.SIGTERM), (TERM_SECONDS, signal.SIGKILL), (30.0, None)):
            if await self._exited(seconds):
                break
            if force is not None:
                self._signal(force)
        self._signal(signal.SIGKILL)  # processes that the child may have left in its group
        with contextlib.suppress(TimeoutError):  # a process that left the group may hold the pipe open for ever
            await asyncio.wait_for(self._log_pump, GROUP_SECONDS)
        await self._reap_group()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        code = self._popen.returncode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def last_words(self) -> str:
        """The child's last log lines in a form fit for clients: no tracebacks, paths or addresses."""
        lines = [line for line in self._lines if line and not line.startswith((" ", "Traceback", "\t"))]
        return " / ".join(_PRIVATE.sub("…", line)[:200] for line in lines[-3:])

    async def _exited(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._popen.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # a poll reaps on every system; waiting would take a thread
        return self._popen.returncode is not None

    async def _reap_group(self) -> None:
        """Reap the child's killed children: the system hands them over to us if we are a container's first process."""
        deadline = time.monotonic() + GROUP_SECONDS
        while self._popen.returncode is not None and self._reaps() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _reaps(self) -> bool:
        """Reap one ended process of the child's group; whether any process of it is left."""
        try:
            os.waitpid(-self.pid, os.WNOHANG)
        except ChildProcessError:
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _read_log(self) -> None:
        pipe = self._popen.stdout
        assert pipe is not None
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        try:
            while chunk := await reader.read(2**16):
                *lines, rest = re.split(r"[\r\n]+", rest + decoder.decode(chunk))
                rest = rest[-LONGEST_LINE:]
                for line in lines:
                    self._keep(line)
        finally:
            self._keep(rest + decoder.decode(b"", final=True))
            transport.close()

    def _keep(self, line: str) -> None:
        if line.strip():
            line = "".join(c if c.isprintable() or c == "\t" else "�" for c in line[:LONGEST_LINE])
            self._lines.append(line)
            self._log.info("engine: %s", line)
