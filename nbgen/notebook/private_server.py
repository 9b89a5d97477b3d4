"""An nbgen server of this kernel's own, for where no Jupyter server has the extension.

Starts `python -m nbgen` and waits for it; it ends with the kernel, as its standard input does. Knows nothing
of what the server does.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from nbgen.errors import NbgenError, ServerNotFound
from nbgen.notebook.client import Client
from nbgen.notebook.discovery import answering

START_SECONDS = 90.0
STOP_SECONDS = 10.0


class PrivateServer:
    """A running server on the loopback interface, known to nobody but this process."""

    def __init__(
        self,
        model: str | None = None,
        waiting: Callable[[int], None] = lambda seconds: None,
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """`options` are those of the server's application, as `jupyter nbgen --help-all` lists them."""
        self._folder = tempfile.TemporaryDirectory(prefix="nbgen-")
        self._log = Path(self._folder.name) / "server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                _command({**({"model": model} if model else {}), **options}),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(self._folder.name),
                # Jupyter interrupts a kernel's whole process group: Ctrl-C must not reach the server.
                start_new_session=True,
            )
        atexit.register(self.stop)
        self.client: Client | None = None
        try:
            self.client = self._answering(waiting)
        finally:
            if self.client is None:
                self.stop()

    @property
    def url(self) -> str:
        """The root of nbgen's routes."""
        return self.client.url if self.client else ""

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<nbgen server at {self.url}, {state}, process {self._process.pid}; .stop() ends it>"

    def stop(self) -> None:
        """End the server and its engine, and wait until they are gone."""
        atexit.unregister(self.stop)
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
        self._folder.cleanup()

    def _answering(self, waiting: Callable[[int], None]) -> Client:
        """A client, as soon as the server answers. Raises ServerNotFound with its last words."""
        started, shown = time.monotonic(), 0
        while (seconds := time.monotonic() - started) < START_SECONDS and self.running:
            if client := self._connect():
                return client
            if seconds >= shown + 1:
                shown += 1
                waiting(shown)
            time.sleep(0.1)
        why = "did not answer in time" if self.running else "did not start"
        raise ServerNotFound(f"the nbgen server {why}:\n{self._last_words()}")

    def _connect(self) -> Client | None:
        """The server leaves its address and key in the folder that only this user can read."""
        for path in Path(self._folder.name).glob("nbgen-*.json"):
            try:
                entry = json.loads(path.read_text(encoding="utf-8"))
                return answering(Client(entry["url"], entry["key"]))
            except (ValueError, NbgenError):
                continue
        return None

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


def _command(chosen: Mapping[str, object]) -> list[str]:
    options: dict[str, object] = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": _free_port(),
        "ServerApp.port_retries": 0,
        "ServerApp.base_url": "/",
        "ServerApp.open_browser": False,
        "NbgenApp.stop_on_eof": True,
    }
    if os.name == "posix" and os.geteuid() == 0:
        options["ServerApp.allow_root"] = True
    options |= {f"NbgenApp.{name}": value for name, value in chosen.items()}
    return [sys.executable, "-m", "nbgen", *(f"--{name}={value}" for name, value in options.items())]


def _environment(folder: str) -> dict[str, str]:
    """A runtime folder of its own keeps other kernels from finding a server that ends with this one."""
    mine = {name: value for name, value in os.environ.items() if name not in ("NBGEN_URL", "NBGEN_TOKEN")}
    return {**mine, "JUPYTER_RUNTIME_DIR": folder}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
