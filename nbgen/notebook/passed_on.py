"""Passes the server that this process uses on to its child processes, by the environment that they inherit.

Knows the variables and their earlier values; nothing of how a server is chosen or found.
"""

from __future__ import annotations

import os
from typing import Any

NAMES = ("NBGEN_URL", "NBGEN_TOKEN", "NBGEN_KIND", "NBGEN_MODEL")

#: The variables' values that are passed on now, and their values before.
_told: dict[str, str] = {}
_before: dict[str, str | None] = {}


def tell(client: Any) -> None:
    """Have processes that are started from now on use the server of this client."""
    take_back()
    backend = getattr(client, "backend", None)
    values = (client.url, client.token, getattr(backend, "kind", ""), getattr(backend, "model", ""))
    _told.update(zip(NAMES, values, strict=True))
    _before.update({name: os.environ.get(name) for name in _told})
    os.environ.update(_told)


def take_back(url: str | None = None) -> None:
    """Restore the variables' earlier values; with `url`, only if it is that server which is passed on."""
    if url is not None and _told.get("NBGEN_URL") != url:
        return
    before = own_environment()
    for name in _told:
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)
    _told.clear()


def own_environment() -> dict[str, str]:
    """The environment that this process was given: without the values that it passes on."""
    own = dict(os.environ)
    for name in [name for name, value in _told.items() if own.get(name) == value]:
        before = _before[name]
        if before is None:
            del own[name]
        else:
            own[name] = before
    return own
