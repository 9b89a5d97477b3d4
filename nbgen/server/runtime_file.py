"""The file by which a kernel finds its server: where it is, and the key to nbgen's routes. Its owner alone reads it.

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

#: The same as NBGEN_URL where that is a server's word: one that is started in its terminal has its own.
ANNOUNCED = "NBGEN_ANNOUNCED_URL"
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
#: Where a server that listens everywhere can be reached from its own host, whether or not that has a name.
LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


class RuntimeFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `nbgen-{pid}.json` says. `url` ends with the base URL; nbgen's routes are at `url` + "nbgen/"."""

    url: str
    base_url: str
    key: str
    pid: int
    #: Whose loopback it is, and whose process: a home may be that of several hosts.
    host: str
    server_id: str
    version: str
    #: The one that the server shows, as PEM, for kernels to trust it alone.
    certificate: str = ""

    @classmethod
    def of(cls, server: ServerApp, key: str, server_id: str) -> RuntimeFile:
        """What the file of `server`, this process, says."""
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
        """Take it away again."""
        with contextlib.suppress(FileNotFoundError):
            self._path(folder).unlink()

    def announce(self, path: str) -> bool:
        """Name this server's routes at `path` to its kernels, unless who started it names another one to them."""
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
    """The server's own of those in a file; others there have signed it, and more than it."""
    try:
        found = CERTIFICATE.search(Path(path).read_text(encoding="utf-8", errors="replace")) if path else None
    except OSError:
        found = None
    return found[0] if found else ""
