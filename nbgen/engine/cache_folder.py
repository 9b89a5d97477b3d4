"""Where engines keep what they would make anew at each start. Knows not what that is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path


@contextmanager
def cache_folder() -> Iterator[Path]:
    """The user's own cache folder, or one for the time being where there is none to write to."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base, "nbgen")
    try:
        usable = folder.is_absolute()
        if usable:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            usable = folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK)
    except OSError:
        usable = False
    with nullcontext(folder) if usable else private_folder() as found:
        yield found


@contextmanager
def private_folder() -> Iterator[Path]:
    """One for the time being."""
    with tempfile.TemporaryDirectory(prefix="nbgen-") as folder:
        yield Path(folder)


def keep(file: Path, make: Callable[[Path], object]) -> None:
    """Have the file made: whole or not at all, whoever else makes it now."""
    with tempfile.TemporaryDirectory(dir=file.parent) as making:
        made = Path(making, file.name)
        make(made)
        made.replace(file)
