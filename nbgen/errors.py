"""Every error that nbgen shows to a person, with the HTTP status it answers.

NbgenError
├── InvalidRequest      400  the request can never work as it stands
├── Unauthorized        401  no token or key, or a wrong one
├── Forbidden           403  known, but not allowed
├── NotFound            404  no such run, model, route
├── MethodNotAllowed    405  the route exists, not for this method
├── Conflict            409  an id that is in use
├── BodyTooLarge        413  more bytes than the route takes
├── UnsupportedMedia    415  a content type the route does not read
├── ModelError          422  the model cannot be loaded
├── InternalError       500  a fault of nbgen's own: fixed words, details in the log
├── Unsupported         501  part of the protocol, but not of this server
├── Unavailable         503  not now: queue full, stopping, engine down; may be tried again
│   └── EngineStopped   503  the engine process ended while the request was in it
├── ServerNotFound      503  (in the kernel) no nbgen server answers
└── InvalidAnswer       502  (in the kernel) the answer is not what its schema asks for

Messages are written for the person who sent the request: what came, what the limit is, what to do. They never
hold the text of a foreign exception. This module knows no protocol's shape for an error.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import TypeVar

E = TypeVar("E", bound="NbgenError")
R = TypeVar("R", bound="InvalidRequest")
#: Matches a whole quoted text, or a word.
_WORDS = re.compile(r"""(?<!\w)(?:'(?:\\.|[^\\'])*'|"(?:\\.|[^\\"])*")(?!\w)|\w+""", re.DOTALL)


class NbgenError(Exception):
    """An error with words meant for the user.

    `field` names the offending part of the request as the user wrote it; `code` is the name by which clients know the
    error, if they do; `retryable` says that the same request may succeed later.
    """

    status = 500
    retryable = False

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.code = code


class InvalidRequest(NbgenError):
    """The request can never work as it stands."""

    status = 400


class Unauthorized(NbgenError):
    """No token or key came with the request, or a wrong one."""

    status = 401


class Forbidden(NbgenError):
    """The caller is known but may not do this."""

    status = 403


class NotFound(NbgenError):
    """There is no such run, model or route."""

    status = 404


class MethodNotAllowed(NbgenError):
    """The route exists, but not for this HTTP method."""

    status = 405


class Conflict(NbgenError):
    """The id is in use."""

    status = 409


class BodyTooLarge(NbgenError):
    """The body has more bytes than the route takes."""

    status = 413


class UnsupportedMedia(NbgenError):
    """The content type is one the route does not read."""

    status = 415


class ModelError(NbgenError):
    """The model cannot be loaded; the message says why and what would help."""

    status = 422


class InternalError(NbgenError):
    """A fault of nbgen's own. The details are in the log under the id in the message."""


class Unsupported(NbgenError):
    """Part of the protocol, but not of this server."""

    status = 501


class Unavailable(NbgenError):
    """Not now; the same request may be sent again."""

    status = 503
    retryable = True


class EngineStopped(Unavailable):
    """The engine process ended while the request was in it."""


class ServerNotFound(NbgenError):
    """No nbgen server answers from where this kernel runs."""

    status = 503


class InvalidAnswer(NbgenError):
    """The answer is not what its schema asks for: it was cut off, or the server does not hold models to schemas."""

    status = 502


def from_status(status: int, message: str, field: str | None = None, code: str | None = None) -> NbgenError:
    """The error of `status`, as a client rebuilds it from an answer."""
    known = {cls.status: cls for cls in NbgenError.__subclasses__() if cls not in (ServerNotFound, InvalidAnswer)}
    kind = known.get(status, InvalidRequest if 400 <= status < 500 else InternalError)
    return kind(message, field=field, code=code)


def anew(error: E) -> E:
    """A copy of a stored error, to be raised: raising adds a traceback, which keeps all objects of its frames alive."""
    return copy.copy(error)


def renamed(error: R, names: Mapping[str, str]) -> R:
    """The error with names replaced by the reader's, except in quotes. Without `field`, the first word is the field."""
    words = _WORDS.sub(lambda found: names.get(found[0], found[0]), error.message)
    field = error.field or re.split(r"\W", error.message, maxsplit=1)[0]
    return type(error)(words, field=names.get(field, error.field), code=error.code)


def writable(words: str) -> str:
    """Escape lone surrogates, which text from a foreign file or a client may hold and no encoder accepts."""
    return words.encode(errors="backslashreplace").decode()


def in_words(error: BaseException) -> str:
    """An error as one line of a table. A foreign exception begins with its type."""
    return str(error) if isinstance(error, NbgenError) else f"{type(error).__name__}: {error}"


def place_of(words: str) -> tuple[str, str]:
    """msgspec's message without the place at its end, and that place: "messages[0].role", or ""."""
    what, _, path = words.partition(" - at `$.")
    return what, path.rstrip("`")


def no_character(error: UnicodeEncodeError) -> InvalidRequest:
    """The refusal of a text with a lone surrogate."""
    half = error.object[error.start]
    return InvalidRequest(f"the text has {half!r}, half of a surrogate pair, which is no character: take it out")
