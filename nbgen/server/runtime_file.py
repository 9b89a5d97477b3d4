"""The file by which a kernel finds its server: its URL, and the key to nbgen's routes. Only its owner can read it.

Does not know who reads it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from jupyter_server.serverapp import ServerApp

import nbgen

#: Equals NBGEN_URL if a server has set it: a server that is started from another one's terminal then overrides it.
ANNOUNCED = "NBGEN_ANNOUNCED_URL"
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
#: The address at which a server that listens everywhere is reached from its own host, without its name.
LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


class RuntimeFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `nbgen-{pid}.json`. `url` ends with the base URL; nbgen's routes are at `url` + "nbgen/"."""

    url: str
    base_url: str
    key: str
    pid: int
    #: The host of the loopback address and of the process: several hosts may share a home folder.
    host: str
    server_id: str
    version: str
    #: The server's certificate as PEM, which kernels trust alone; empty without TLS.
    certificate: str = ""

    @classmethod
    def of(cls, server: ServerApp, key: str, server_id: str) -> RuntimeFile:
        """The file of `server`, which runs in this process."""
        return cls(
            url=_address(server),
            base_url=server.base_url,
            key=key,
            pid=os.getpid(),
            host=socket.gethostname(),
            server_id=server_id,
            version=nbgen.__version__,
            certificate=_first_certificate(server.certfile),
        )

    def write(self, folder: Path) -> None:
        """Put the file into Jupyter's runtime folder, never readable by others, not even for a moment."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(folder)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(self))

    def remove(self, folder: Path) -> None:
        """Remove the file."""
        with contextlib.suppress(FileNotFoundError):
            self._path(folder).unlink()

    def announce(self, path: str) -> bool:
        """Set NBGEN_URL to this server's routes at `path`, unless whoever started it has named another server."""
        named = os.environ.get("NBGEN_URL")
        if named and named != os.environ.get(ANNOUNCED):
            return False
        os.environ["NBGEN_URL"] = os.environ[ANNOUNCED] = self.url + path
        return True

    def _path(self, folder: Path) -> Path:
        return folder / f"nbgen-{self.pid}.json"


def _address(server: ServerApp) -> str:
    url: str = server.connection_url
    host = LOOPBACK_OF.get(server.ip)
    return url if host is None or server.sock else urlsplit(url)._replace(netloc=f"{host}:{server.port}").geturl()


def _first_certificate(path: str) -> str:
    """The first certificate in a file, the server's own. The others there have signed it, and perhaps more servers."""
    try:
        found = CERTIFICATE.search(Path(path).read_text(encoding="utf-8", errors="replace")) if path else None
    except OSError:
        found = None
    return found[0] if found else ""
