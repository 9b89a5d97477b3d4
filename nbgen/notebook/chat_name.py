"""The id under which a chat of any name is kept, on the server and in the notebook. Knows neither."""

import hashlib
import re
import unicodedata

from nbgen.identifiers import IDENTIFIER

#: Ids that are steps in a path.
STEPS = (".", "..")
SLUG_LENGTH = 80
HASH_LENGTH = 12


def chat_id(name: str) -> str:
    """The name itself where it is an id; else what can be read of it and a hash of all, the same for the same name."""
    if IDENTIFIER.fullmatch(name) and name not in STEPS:
        return name
    name = unicodedata.normalize("NFC", name)
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", plain).strip("-")[:SLUG_LENGTH] or "chat"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{slug}-{digest[:HASH_LENGTH]}"
