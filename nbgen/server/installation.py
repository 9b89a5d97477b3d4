"""Whether nbgen on disk is still the one that this server runs, of which its processes import the rest."""

from __future__ import annotations

import re
from pathlib import Path

import nbgen
from nbgen.errors import Unavailable

VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


def check_unchanged() -> None:
    """Raises Unavailable where another version was installed meanwhile: a process of both would be of neither."""
    try:
        found = VERSION.search(Path(nbgen.__file__).read_text(encoding="utf-8"))
    except OSError:
        found = None
    if found is None or found[1] != nbgen.__version__:
        what = "removed" if found is None else f"replaced by {found[1]}"
        raise Unavailable(f"nbgen {nbgen.__version__} was {what} while this server ran: restart the server")
