"""Query strings of OpenAI's responses and conversations: pages of items, and how a response is retrieved.

Knows neither items nor responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec

from nbgen.errors import InvalidRequest, place_of
from nbgen.protocols.responses_body import check_names

Q = TypeVar("Q")


class Page(msgspec.Struct, kw_only=True):
    """A page of a list of items: at most `limit` of them, after the item with the id `after`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str = ""


class Retrieval(msgspec.Struct, kw_only=True):
    """How a response is retrieved: whole, or as a `stream` of the events after the number `starting_after`."""

    stream: bool = False
    starting_after: int = -1
    include_obfuscation: bool = False


def parse_query(arguments: Mapping[str, list[bytes]], kind: type[Q]) -> Q:
    """The options in a query; unknown ones are ignored. Raises InvalidRequest."""
    check_included(arguments)
    given = {name: values[-1].decode("utf-8", "replace") for name, values in arguments.items()}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        what, place = place_of(str(error))
        raise InvalidRequest(f"{place} in the query: {what}", field=place) from None


def check_included(arguments: Mapping[str, list[bytes]]) -> None:
    """Raise InvalidRequest for unknown values of `include` in a query."""
    given = [*arguments.get("include", ()), *arguments.get("include[]", ())]
    check_names([name.decode("utf-8", "replace") for name in given])
