"""The file by which a kernel finds its server: where it is, and the key to nbgen's routes. Its owner alone reads it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec


class RuntimeFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `nbgen-{pid}.json` says. `url` ends with the base URL; nbgen's routes are at `url` + "nbgen/"."""

    url: str
    base_url: str
    key: str
    pid: int
    server_id: str
    version: str

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

    def _path(self, folder: Path) -> Path:
        return folder / f"nbgen-{self.pid}.json"
