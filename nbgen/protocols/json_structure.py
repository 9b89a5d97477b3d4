"""How much there is in a large JSON body, counted before anything is made of it.

No parser lets go of the interpreter before its end, and each list, object and string costs far more than its bytes: a
few megabytes of brackets would hold up every other request for seconds. Counting is numpy's, in slices. Knows no
protocol's fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import numpy as np

from nbgen.errors import InvalidRequest

#: Bytes of a body whose parsing nobody notices.
SMALL = 2**17
SLICE = 2**20
#: Of one body; those inside of strings count as well.
MAX_OBJECTS, MAX_LISTS, MAX_QUOTES = 2**16, 2**19, 2**20
#: Values that are read in one go.
MAX_VALUES = 2**20


def check_structure(body: memoryview, *, values: int | None = None) -> None:
    """Raise InvalidRequest for more objects, lists, strings or, if there is a limit, values than are read in JSON."""
    if len(body) <= SMALL:
        return
    limits = {"{": MAX_OBJECTS, "[": MAX_LISTS, '"': MAX_QUOTES} | ({",": values} if values else {})
    for character, limit in limits.items():
        if (found := count(body, ord(character))) > limit:
            raise InvalidRequest(
                f"the request JSON has {found} times {character!r}; at most {limit}: send what is large as binary data"
            )


def why_malformed(body: memoryview, error: msgspec.DecodeError) -> str:
    """What msgspec says of JSON that is none; where a number is not finite, which Python's json writes, that."""
    place = int(found[1]) if (found := re.search(r"\(byte (\d+)\)", str(error))) else 0
    if word := re.search(rb"-?(NaN|Infinity)", body[max(0, place - 2) : place + 8]):
        return f"{word[0].decode()} is not a finite number: send the tensor as binary data"
    return str(error)


def count(body: memoryview, character: int) -> int:
    """How often a byte comes."""
    return sum(int(np.count_nonzero(part == character)) for part in _slices(body))


def depth(body: memoryview) -> int:
    """How deep the lists of a body without strings are nested."""
    level = deepest = 0
    for part in _slices(body):
        steps = np.cumsum((part == ord("[")).astype(np.int8) - (part == ord("]")).astype(np.int8), dtype=np.int32)
        deepest, level = max(deepest, level + int(steps.max())), level + int(steps[-1])
    return deepest


def _slices(body: memoryview) -> Iterator[np.ndarray]:
    array = np.frombuffer(body, np.uint8)
    return (array[start : start + SLICE] for start in range(0, len(array), SLICE))
