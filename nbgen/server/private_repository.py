"""The folder of modules of a server that was given none: nobody else can write it, and it ends with the server.

Who is killed takes nothing away. The next server does, and knows by a lock which of them live. Knows no modules.
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
#: There once the lock is held: a folder without it may be a moment old, or on a file system that has no locks.
HELD = ".held"


class PrivateRepository(tempfile.TemporaryDirectory[str]):
    """Made at once. Those whose servers were killed are removed then."""

    def __init__(self) -> None:
        _remove_abandoned()
        super().__init__(prefix=PREFIX)
        self._lock = os.open(self.name, os.O_RDONLY)
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(self.name, HELD).touch()

    def cleanup(self) -> None:
        """Remove it."""
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
    """A folder that is no link to one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
