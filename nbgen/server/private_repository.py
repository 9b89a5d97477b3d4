"""A private folder of modules, for a server that was given none: nobody else can write it, and it ends with the server.

A killed server leaves its folder behind. The next server removes it, and tells live ones by a lock. Knows no modules.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "nbgen-models-"
#: Marks that the lock is held: a folder without it may be just being made, or be on a file system without locks.
HELD = ".held"


class PrivateRepository(tempfile.TemporaryDirectory[str]):
    """Creates the folder at once, and removes those of servers that were killed."""

    def __init__(self) -> None:
        _remove_abandoned()
        super().__init__(prefix=PREFIX)
        self._lock = os.open(self.name, os.O_RDONLY)
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(self.name, HELD).touch()

    def cleanup(self) -> None:
        """Remove the folder."""
        super().cleanup()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), _opened(folder) as descriptor:
            if os.fstat(descriptor).st_uid == os.getuid() and (folder / HELD).exists():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where its server lives
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A descriptor of a folder; raises OSError for a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
