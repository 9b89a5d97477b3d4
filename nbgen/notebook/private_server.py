"""An nbgen server for this kernel alone, where no Jupyter server has the extension.

Starts `python -m nbgen` and waits for it. The server ends when the kernel does, as its standard input is closed then,
and its folder is deleted. Knows nothing of what the server does.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import IO
from weakref import WeakSet

from nbgen.errors import InvalidRequest, NbgenError, ServerNotFound
from nbgen.notebook import passed_on
from nbgen.notebook.client import answering
from nbgen.notebook.private_client import PrivateClient, last_words
from nbgen.notebook.private_folder import PrivateFolder

START_SECONDS = 90.0
STOP_SECONDS = 10.0
#: Bytes of disk that a server's files need at least.
ROOM = 2**16

#: The pipes that keep servers running. A fork must close its copies, else they outlive this process and `stop`.
_inputs: WeakSet[IO[bytes]] = WeakSet()
os.register_at_fork(after_in_child=lambda: [held.close() for held in list(_inputs)])


class PrivateServer:
    """A running server on the loopback interface, known to nobody but this process."""

    def __init__(
        self,
        model: str | None = None,
        waiting: Callable[[int], None] = lambda seconds: None,
        options: Mapping[str, object] = MappingProxyType({}),
        folder: PrivateFolder | None = None,
    ) -> None:
        """`options` are those of the server's application, as `jupyter nbgen --help-all` lists them.

        The server takes over `folder` (None: a new one). Raises ServerNotFound where no server can be started.
        """
        with _in_words():
            self._folder = folder or PrivateFolder()
        self._log = self._folder.path / "server.log"
        try:
            chosen = {**({"model": model} if model else {}), "private_folder": self._folder.path, **options}
            with _in_words():
                self._process = self._spawn(_command(chosen))
        except ServerNotFound:
            self._folder.remove()
            raise
        atexit.register(self.stop)
        self.client: PrivateClient | None = None
        try:
            self.client = self._answering(waiting)
        finally:
            if self.client is None:
                self._process.kill()  # before it has begun, it does not notice that its standard input is closed
                self.stop()

    @property
    def url(self) -> str:
        """The root of nbgen's routes."""
        return self.client.url if self.client else ""

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def __repr__(self) -> str:
        state = "running; .stop() ends it" if self.running else "stopped"
        process = f"process {self._process.pid}, log {self._log}"
        return f"<nbgen server at {self.url}, {process}, {state}>"

    def stop(self) -> None:
        """End the server and its engine, and wait until they are gone. In a fork of this process it does nothing."""
        atexit.unregister(self.stop)
        if not self._folder.ours:
            return
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self.client:
            self.client.close()
            self.client.lost = True
            passed_on.take_back(self.client.url)
        self._folder.remove()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            log.write(bytes(ROOM))  # fails at once on a full disk, where the server could not write its address
            log.seek(0)
            log.truncate()
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(self._folder.path),
                # Jupyter interrupts a kernel's whole process group: Ctrl-C must not reach the server.
                start_new_session=True,
            )
        assert process.stdin is not None, "it is a pipe"
        _inputs.add(process.stdin)
        return process

    def _answering(self, waiting: Callable[[int], None]) -> PrivateClient:
        """A client, as soon as the server answers. Raises ServerNotFound with the end of its log."""
        started, shown = time.monotonic(), 0
        while (seconds := time.monotonic() - started) < START_SECONDS and self.running:
            if client := self._connect():
                return client
            if seconds >= shown + 1:
                shown += 1
                waiting(shown)
            time.sleep(0.1)
        why = "did not answer in time" if self.running else "did not start"
        raise ServerNotFound(f"the nbgen server {why}:\n{last_words(self._log)}")

    def _connect(self) -> PrivateClient | None:
        """A client, if the server has written its address and key into its folder, which only this user can read."""
        for path in self._folder.path.glob("nbgen-*.json"):
            try:
                entry = json.loads(path.read_text(encoding="utf-8"))
                return answering(PrivateClient(entry["url"], entry["key"], self._log))
            except (ValueError, NbgenError):
                continue
        return None


@contextmanager
def _in_words() -> Iterator[None]:
    """Around a start: raises what the operating system refuses as ServerNotFound."""
    try:
        yield
    except OSError as error:
        raise ServerNotFound(
            f"no nbgen server can be started for this kernel: {error.strerror or error}. It needs a process, and a "
            "folder for a log and an address: TMPDIR names another place for that"
        ) from None


def _command(chosen: Mapping[str, object]) -> list[str]:
    options: dict[str, object] = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": _free_port(),
        "ServerApp.port_retries": 0,
        "ServerApp.base_url": "/",
        "ServerApp.open_browser": False,
        # The user's configuration may set these for a server that others reach.
        "ServerApp.certfile": "",
        "ServerApp.keyfile": "",
        "ServerApp.client_ca": "",
        "ServerApp.sock": "",
        "NbgenApp.stop_on_eof": True,
    }
    if os.name == "posix" and os.geteuid() == 0:
        options["ServerApp.allow_root"] = True
    options |= {f"NbgenApp.{name}": value for name, value in chosen.items()}
    # -P keeps a calendar.py beside the notebook out of the server's imports.
    return [sys.executable, "-P", "-m", "nbgen", *(f"--{name}={value}" for name, value in options.items())]


def _environment(folder: Path) -> dict[str, str]:
    """The server's environment. Its own runtime folder hides it from other kernels, as it ends with this one.

    The server also writes its configuration there, since a home may be read-only, but still reads the user's.
    Its log has no colours, which Jupyter asks for in kernels.
    """
    from jupyter_core.paths import jupyter_config_dir

    mine = {name: value for name, value in os.environ.items() if name not in passed_on.NAMES}
    if not mine.get("JUPYTER_NO_CONFIG"):
        users = [mine.get("JUPYTER_CONFIG_PATH"), jupyter_config_dir()]
        mine["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, users))
        (folder / "migrated").touch()  # or Jupyter would migrate files of an old IPython
    return {**mine, "JUPYTER_RUNTIME_DIR": str(folder), "JUPYTER_CONFIG_DIR": str(folder), "PYTHON_COLORS": "0"}


def sizes(**given: int | None) -> dict[str, int]:
    """The server's options that are given. Raises InvalidRequest for one that is no whole number from 1."""
    wanted = {name: size for name, size in given.items() if size is not None}
    for name, size in wanted.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise InvalidRequest(f"{name} must be a whole number from 1, got {size!r:.80}", field=name)
    return wanted


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
