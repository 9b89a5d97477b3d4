"""A temporary folder that only this user can read. It is deleted when the process that made it ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


class PrivateFolder:
    """Made at once. `remove` deletes it with all that is in it, and so does the end of the process."""

    def __init__(self, prefix: str = "nbgen-", above: str | None = None) -> None:
        """Made in the folder `above`; None: in the system's folder for temporary files."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
        self._owner = os.getpid()
        atexit.register(self.remove)

    @property
    def ours(self) -> bool:
        """Whether this process made it, rather than a parent from which this process was forked."""
        return os.getpid() == self._owner

    def remove(self) -> None:
        """Delete the folder; does nothing in a fork of the process that made it."""
        atexit.unregister(self.remove)
        if self.ours:
            shutil.rmtree(self.path, ignore_errors=True)
