"""A folder for the time being, which this user alone can read. It goes with the process that made it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


class PrivateFolder:
    """Made at once; `remove` takes it away with all that is in it, and so does the end of the process."""

    def __init__(self, prefix: str = "nbgen-", above: str | None = None) -> None:
        """Below the folder `above`, None: the system's for such."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
        self._owner = os.getpid()
        atexit.register(self.remove)

    @property
    def ours(self) -> bool:
        """Whether this process made it, and not one that this one was forked from."""
        return os.getpid() == self._owner

    def remove(self) -> None:
        """Only for the process that made it."""
        atexit.unregister(self.remove)
        if self.ours:
            shutil.rmtree(self.path, ignore_errors=True)
