"""The queries of OpenAI's responses and conversations: which items, which events, what beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.protocols.responses_body import check_names

Q = TypeVar("Q")


class Page(msgspec.Struct, kw_only=True):
    """Which items of a list are wanted: so many after the one of that id."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str = ""


class Again(msgspec.Struct, kw_only=True):
    """How a response is to be told again: as it is, or as the events after the one of that number."""

    stream: bool = False
    starting_after: int = -1
    include_obfuscation: bool = False


def parse_query(arguments: Mapping[str, list[bytes]], kind: type[Q]) -> Q:
    """The options in a query; those that are not known are left out. Raises InvalidRequest."""
    check_included(arguments)
    given = {name: values[-1].decode("utf-8", "replace") for name, values in arguments.items()}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"in the query: {error}") from None


def check_included(arguments: Mapping[str, list[bytes]]) -> None:
    """Raise InvalidRequest for what a query cannot include."""
    given = [*arguments.get("include", ()), *arguments.get("include[]", ())]
    check_names([name.decode("utf-8", "replace") for name in given])
