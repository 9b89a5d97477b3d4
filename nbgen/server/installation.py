"""Checks that the nbgen on disk is still this server's version: the processes that it starts import from there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import nbgen
from nbgen.errors import Unavailable

VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


def check_unchanged() -> None:
    """Raise Unavailable if another version has been installed since: a new process would mix both."""
    try:
        found = VERSION.search(Path(nbgen.__file__).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        _refuse("removed")
    if found is None:
        _refuse("replaced by what says no version")
    if found[1] != nbgen.__version__:
        _refuse(f"replaced by {found[1]}")


def _refuse(what: str) -> NoReturn:
    raise Unavailable(f"nbgen {nbgen.__version__} was {what} while this server ran: restart the server")
