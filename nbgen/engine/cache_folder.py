"""The folder of files that engines would otherwise make anew at each start. Does not know what they contain."""

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
#: Seconds without use after which a file is taken to be of a version or machine that is gone.
UNUSED = 60 * DAY
#: Seconds after which an unfinished file is taken to be left by a process that was killed.
ABANDONED = 3600
#: Prefix of the folders in which files are made.
MAKING = "tmp"

log = logging.getLogger(__name__)


@contextmanager
def cache_folder() -> Iterator[Path]:
    """The user's own cache folder, or a temporary one if that cannot be written to."""
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
    """A temporary folder."""
    with tempfile.TemporaryDirectory(prefix="nbgen-") as folder:
        yield Path(folder)


def keep(file: Path, make: Callable[[Path], object]) -> None:
    """Make the file atomically, even if other processes make it at the same time or the machine stops."""
    with _made(file.parent, file.name, make) as made:
        made.replace(file)


def keep_sealed(folder: Path, name: str, make: Callable[[Path], object]) -> Path:
    """The same with the content's digest in the file's name, so that damage is noticed; returns the file."""
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
    """Remove files that no process has used for long; a process that has one of them open can go on using it."""
    for file in folder.glob(pattern):
        with suppress(OSError):
            if _age(file) > UNUSED:
                file.unlink()


def used(file: Path) -> None:
    """Note that the file is in use, at most once a day."""
    with suppress(OSError):
        if _age(file) > DAY:
            os.utime(file)


@contextmanager
def _made(folder: Path, name: str, make: Callable[[Path], object]) -> Iterator[Path]:
    """The file, made in a temporary folder and synced to the disk, for the caller to move."""
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
    """Seconds since the file was changed, or noted to be in use. Raises OSError."""
    return time.time() - path.stat().st_mtime
