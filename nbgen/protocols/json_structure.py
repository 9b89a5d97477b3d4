"""Counts the objects, lists and strings of a large JSON body before it is parsed.

No parser releases the GIL before its end, and each list, object and string costs far more than its bytes: a few
megabytes of brackets would block all other requests for seconds. Counting uses numpy, slice by slice. Knows no
protocol's fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import numpy as np

from nbgen.errors import InvalidRequest

#: Bytes of a body that is parsed too quickly to matter.
SMALL = 2**17
#: Bytes of a body that are searched at once: meanwhile no other thread runs.
SLICE = 2**20
#: Limits for one body, not counting characters inside strings.
MAX_OBJECTS, MAX_LISTS, MAX_QUOTES = 2**16, 2**19, 2**20
#: Most values that are decoded in one call.
MAX_VALUES_AT_ONCE = 2**20
NOT_UTF8 = "a text in it is not UTF-8"


def check_structure(body: memoryview, *, values: int | None = None) -> None:
    """Raise InvalidRequest for too many objects, lists or strings or, if `values` limits them, values."""
    if len(body) <= SMALL:
        return
    limits = {"{": MAX_OBJECTS, "[": MAX_LISTS, '"': MAX_QUOTES} | ({",": values} if values else {})
    limits = {each: limit for each, limit in limits.items() if count(body, ord(each)) > limit}
    found = dict.fromkeys(limits, 0)
    for part in _without_contents(body) if limits else ():
        for character, limit in limits.items():
            found[character] += int(np.count_nonzero(part == ord(character)))
            if found[character] > limit:
                raise InvalidRequest(
                    f"the request JSON has more than {limit} times {character!r}: send less in one request, or what is "
                    "large as binary data"
                )


def why_malformed(body: memoryview, error: msgspec.DecodeError | RecursionError | UnicodeDecodeError) -> str:
    """msgspec's message for malformed JSON, or a better one, as for NaN, which Python's json module writes."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in str(error):  # msgspec's own error since 0.23
        return NOT_UTF8
    place = re.search(r"\(byte (\d+)\)", str(error))
    near = body[max(0, int(place[1]) - 2) : int(place[1]) + 8] if place else b""
    if word := re.search(rb"-?(NaN|Infinity)", near):
        return f"{word[0].decode()} is not a finite number: send the tensor as binary data"
    return str(error)


def count(body: memoryview, character: int) -> int:
    """How often a byte occurs."""
    return sum(int(np.count_nonzero(part == character)) for part in _slices(body))


def depth(body: memoryview) -> int:
    """How deep the lists of a body without strings are nested."""
    level = deepest = 0
    for part in _slices(body):
        steps = np.cumsum((part == ord("[")).astype(np.int8) - (part == ord("]")).astype(np.int8), dtype=np.int32)
        deepest, level = max(deepest, level + int(steps.max())), level + int(steps[-1])
    return deepest


def _without_contents(body: memoryview) -> Iterator[np.ndarray]:
    """The slices of a body without the contents of strings; the quotes stay."""
    inside, backslashes = False, 0  # state at the last slice's end: inside a string, and number of trailing backslashes
    for part in _slices(body):
        quotes, backslashes = _bare_quotes(part, backslashes)
        content = np.logical_xor.accumulate(np.concatenate(([inside], quotes)))
        inside = bool(content[-1])
        yield part[~content[:-1] | quotes]


def _bare_quotes(part: np.ndarray, backslashes: int) -> tuple[np.ndarray, int]:
    """A mask of the unescaped quotes (after an even number of backslashes), and the number of backslashes at the end.

    `backslashes` is the number directly before the part.
    """
    places = np.arange(len(part), dtype=np.int32)
    others = np.where(part == ord("\\"), -1 - backslashes, places)
    before = np.maximum.accumulate(np.concatenate(([-1 - backslashes], others)))  # place of the last other character
    runs = np.arange(-1, len(part), dtype=np.int32) - before
    return (part == ord('"')) & (runs[:-1] % 2 == 0), int(runs[-1])


def _slices(body: memoryview) -> Iterator[np.ndarray]:
    array = np.frombuffer(body, np.uint8)
    return (array[start : start + SLICE] for start in range(0, len(array), SLICE))
