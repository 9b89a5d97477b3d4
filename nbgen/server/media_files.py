"""Reads files that clients name by path, below one folder of the owner's. POSIX only, as the engine's process is."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nbgen.errors import InvalidRequest

MAX_PATH = 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Without O_NONBLOCK, opening a pipe would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class MediaFiles:
    """Reads files below `root`; None allows no paths. All unreadable paths get the same error."""

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else root.resolve()

    def check(self, field: str) -> None:
        """Raise InvalidRequest if no paths are allowed."""
        if self._root is None:
            raise InvalidRequest(
                f"`{field}`: files by path are off here (--media-root names a folder of them); send the file itself as "
                "base64 or as a data URL",
                field=field,
            )

    def read(self, address: str, limit: int, field: str) -> bytes:
        """The file at a path or a file:// URL, which may be relative to the root. Raises InvalidRequest."""
        self.check(field)
        assert self._root is not None
        try:
            data = _read_below(self._root, _path(address), limit + 1)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links that form a circle
            raise InvalidRequest(
                f"`{field}`: there is no file {address[:200]!r} below the folder that media are read from", field=field
            ) from None
        if len(data) > limit:
            raise InvalidRequest(f"`{field}`: {address[:200]!r} has more than {limit} bytes", field=field)
        return data


def _path(address: str) -> str:
    if len(address) > MAX_PATH:
        raise ValueError("too long")
    if not address.lower().startswith("file:"):
        return address
    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost"):
        raise ValueError("of another machine")
    return unquote(parts.path)


def _read_below(root: Path, path: str, limit: int) -> bytes:
    """Read at most `limit` bytes. Open the resolved path part by part, so that no link can be slipped in."""
    resolved = (root / path).resolve(strict=True)
    if not resolved.is_relative_to(root) or resolved == root:
        raise ValueError("outside")
    folder = os.open(root, _DIRECTORY)
    try:
        *folders, name = resolved.relative_to(root).parts
        for part in folders:
            inner = os.open(part, _DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = inner
        return _read_regular(os.open(name, _FILE, dir_fd=folder), limit)
    finally:
        os.close(folder)


def _read_regular(descriptor: int, limit: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # `open` would raise for a folder and leave the descriptor open
        raise ValueError("no regular file")
    with open(descriptor, "rb") as file:
        return file.read(limit)
