"""Server-sent events: both ends of one wire format.

Follows the WHATWG HTML standard, section 9.2.6 (event stream interpretation). Knows nothing of what the data mean.
"""

from __future__ import annotations

import codecs
from typing import NamedTuple

#: A comment, which clients must ignore. No empty line follows it: some clients take that for an event without data.
KEEP_ALIVE = b": keep-alive\n"
#: Two empty lines, as between events, for clients that do not know comments, such as SGLang's own.
EMPTY = b"\n\n"
#: Characters that JSON need not escape, but that Python's `splitlines` (in httpx and requests) takes for line ends.
LINE_ENDS = {end.encode(): b"\\u%04x" % ord(end) for end in "\x85\u2028\u2029"}


class Event(NamedTuple):
    """One dispatched event. `id` is the last id seen on the stream, as in the standard."""

    data: str
    event: str = "message"
    id: str = ""


def encode(data: bytes, *, event: str | None = None, id: str | None = None) -> bytes:
    """One event as bytes. `data` is one line (JSON without raw line breaks)."""
    for end, escaped in () if data.isascii() else LINE_ENDS.items():
        data = data.replace(end, escaped)
    name = b"event: %s\n" % event.encode() if event else b""
    identifier = b"id: %s\n" % id.encode() if id else b""
    return b"%s%sdata: %s\n\n" % (identifier, name, data)


#: The last event of a stream in OpenAI's and SGLang's dialects.
DONE = encode(b"[DONE]")


class Decoder:
    """Decodes events from bytes that may be cut anywhere. It keeps an incomplete event for the next `feed`."""

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        #: Pieces of an incomplete line. They are joined only at its end, since there may be thousands.
        self._rest: list[str] = []
        self._after_return = False
        self._data: list[str] = []
        self._event = ""
        self._id = ""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes."""
        if text := self._text.decode(chunk):
            text, self._after_return = text.removeprefix("\n" * self._after_return), text.endswith("\r")
        *whole, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if whole:
            whole[0] = "".join((*self._rest, whole[0]))
            self._rest.clear()
        self._rest.append(rest)
        return [event for line in whole if (event := self._line(line)) is not None]

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> Event | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return Event("\n".join(data), event or "message", self._id) if data else None
