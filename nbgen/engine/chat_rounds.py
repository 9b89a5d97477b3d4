"""Drops a long chat's oldest rounds, so that the rest fits into the context. Plain Python.

A round begins with a user's message; after the last of these, with each of the model's turns. A tool's result belongs
to the round of its call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from nbgen.messages import ChatMessage, GenerateRequest


def shortened(request: GenerateRequest, holds: Callable[[GenerateRequest], bool]) -> GenerateRequest:
    """The request without its oldest rounds, as few as it takes until the context `holds` it.

    The leading system messages, the last question and the last round always stay, even if the context does not hold
    these.
    """
    if request.messages is None or holds(request):
        return request
    rounds = _droppable(request.messages)
    counts = range(1, len(rounds))  # dropping all is not tested: nothing shorter is left
    found = bisect_left(counts, True, key=lambda count: holds(_without(request, rounds[:count])))
    return _without(request, rounds[: found + 1]) if rounds else request


def _droppable(messages: Sequence[ChatMessage]) -> list[range]:
    """The message indices of each round that may be dropped, oldest first."""
    first = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    question = max((place for place, message in enumerate(messages) if message.role == "user"), default=-1)
    begins = [
        place
        for place in range(first, len(messages))
        if place == first or messages[place].role == ("assistant" if place > question else "user")
    ]
    rounds = [range(*ends) for ends in zip(begins, [*begins[1:], len(messages)], strict=True)]
    return [each for each in rounds[:-1] if question not in each]


def _without(request: GenerateRequest, rounds: Sequence[range]) -> GenerateRequest:
    """The request without these rounds and the media in them."""
    dropped = {place for each in rounds for place in each}
    media, given = [], iter(request.media)
    for place, message in enumerate(request.messages or ()):
        parts = message.content if isinstance(message.content, list) else ()
        own = list(islice(given, sum(part.type != "text" for part in parts)))
        media += [] if place in dropped else own
    messages = [message for place, message in enumerate(request.messages or ()) if place not in dropped]
    return msgspec.structs.replace(request, messages=messages, media=media)
