"""Where engines keep what they would make anew at each start. Knows not what that is."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

DAY = 86_400
#: After so long without use, in seconds, it is of a version or a machine that is gone.
UNUSED = 60 * DAY
#: After so long what was being made was left by a process that was killed.
ABANDONED = 3600
#: What begins the names of folders in which something is made.
MAKING = "tmp"

log = logging.getLogger(__name__)


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
    if not usable:
        _tell_of(folder)
    with nullcontext(folder) if usable else private_folder() as found:
        yield found


@cache
def _tell_of(folder: Path) -> None:
    log.warning(
        "%s cannot be written to: each start makes anew what would be kept there. XDG_CACHE_HOME names another place",
        folder,
    )


@contextmanager
def private_folder() -> Iterator[Path]:
    """One for the time being."""
    with tempfile.TemporaryDirectory(prefix="nbgen-") as folder:
        yield Path(folder)


def keep(file: Path, make: Callable[[Path], object]) -> None:
    """Have the file made: whole or not at all, whoever else makes it now, and though the machine may stop."""
    with _made(file.parent, file.name, make) as made:
        made.replace(file)


def keep_sealed(folder: Path, name: str, make: Callable[[Path], object]) -> Path:
    """The same with the content's digest in the file's name, so that damage is noticed; the file."""
    with _made(folder, name, make) as made:
        return made.replace(folder / f"{made.stem}-{_digest(made)}{made.suffix}")


def sealed(folder: Path, name: str) -> Path | None:
    """The file that `keep_sealed` made under this name, if its digest still fits; a damaged one is deleted."""
    stem, _, suffix = name.rpartition(".")
    for file in folder.glob(f"{stem}-*.{suffix}"):
        with suppress(FileNotFoundError):  # another process has removed it
            if file.stem == f"{stem}-{_digest(file)}":
                used(file)
                return file
        file.unlink(missing_ok=True)
    return None


def drop_unused(folder: Path, pattern: str) -> None:
    """Remove files that no process has used for long; one that still has one of them open keeps it."""
    for file in folder.glob(pattern):
        with suppress(OSError):
            if _age(file) > UNUSED:
                file.unlink()


def used(file: Path) -> None:
    """Note that it is in use, once a day."""
    with suppress(OSError):
        if _age(file) > DAY:
            os.utime(file)


@contextmanager
def _made(folder: Path, name: str, make: Callable[[Path], object]) -> Iterator[Path]:
    """The file, made in a place of its own to be moved from, and all of it on the disk."""
    _drop_abandoned(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=MAKING) as making:
        made = Path(making, name)
        make(made)
        _sync(made)
        yield made
    with suppress(OSError):  # not every system syncs folders
        _sync(folder)


def _drop_abandoned(folder: Path) -> None:
    for making in folder.glob(f"{MAKING}*"):
        with suppress(OSError):
            if _age(making) > ABANDONED:
                shutil.rmtree(making, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _age(path: Path) -> float:
    """Seconds since it was changed, or noted to be in use. Raises OSError."""
    return time.time() - path.stat().st_mtime
