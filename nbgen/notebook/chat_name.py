"""The ids of named chats, in their notebook and on the server. Knows neither of them."""

import hashlib
import re
import unicodedata
import uuid
from functools import cache

from traitlets.config import Application

from nbgen.errors import InvalidRequest
from nbgen.identifiers import IDENTIFIER

#: Names that would be steps in a path.
STEPS = (".", "..")
SLUG_LENGTH = 80
HASH_LENGTH = 12
#: Most characters of an id in the notebook: the id on the server adds the kernel's hash.
NAME_LENGTH = 100
KERNEL_LENGTH = 16


def chat_id(name: str) -> str:
    """The chat's id on the server: its id in the notebook, and a hash of the kernel, which restarts do not change, for
    the server has chats of other notebooks, too. Raises InvalidRequest for a name that is no text.
    """
    if not isinstance(name, str):
        raise InvalidRequest(f"a chat's name is a text, got {type(name).__name__}", field="name")
    return f"{kept_as(name)}.{_kernel()}"


def kept_as(name: str) -> str:
    """The chat's id in the notebook: its name if that is a valid id, else the name in plain ASCII, and its hash."""
    if IDENTIFIER.fullmatch(name) and name not in STEPS and len(name) <= NAME_LENGTH:
        return name
    name = unicodedata.normalize("NFC", name)
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", plain).strip("-")[:SLUG_LENGTH] or "chat"
    return f"{slug}-{_digest(name, HASH_LENGTH)}"


@cache
def _kernel() -> str:
    """A hash of the path of the connection file, which Jupyter names after the kernel; random outside of a kernel."""
    app = Application.instance() if Application.initialized() else None
    file = str(getattr(app, "abs_connection_file", "") or "")
    return _digest(file or uuid.uuid4().hex, KERNEL_LENGTH)


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]
