"""Server-sent events: both ends of one wire format.

Follows the WHATWG HTML standard, section 9.2.6 (event stream interpretation). Knows nothing of what the data mean.
"""

from __future__ import annotations

import codecs
from typing import NamedTuple

#: A comment that is no event, as clients must have it. No empty line follows: some take that for an event without data.
KEEP_ALIVE = b": keep-alive\n"
#: Two of the lines that part events, for clients that know no comments, as SGLang's own.
EMPTY = b"\n\n"
#: Of what JSON holds as it is, what Python's `splitlines`, and with it httpx and requests, takes for the end of a line.
LINE_ENDS = {end.encode(): b"\\u%04x" % ord(end) for end in "\x85\u2028\u2029"}


class Event(NamedTuple):
    """One dispatched event. `id` is the last id seen on the stream, as the standard has it."""

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


#: The last event of a stream of OpenAI's or SGLang's.
DONE = encode(b"[DONE]")


class Decoder:
    """Turns bytes, cut anywhere, into events. Feed it what arrives; it keeps what is not whole."""

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        #: Of a line that is not whole: joined once it is, since it may come in thousands of pieces.
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
