"""The form of ids of requests, runs and chats. Does not know what they identify."""

from __future__ import annotations

import re
import reprlib

from nbgen.errors import InvalidRequest

IDENTIFIER = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def check_identifier(value: str, field: str) -> None:
    """Raise InvalidRequest for an invalid id."""
    if not IDENTIFIER.fullmatch(value):
        raise InvalidRequest(
            f"`{field}` must be 1 to 128 letters, digits or _.:-, got {reprlib.repr(value)}", field=field
        )
