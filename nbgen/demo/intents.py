"""The questions that the demo model knows, read from the intent files, each split into trained and held-out phrasings.

Knows nothing of how a phrasing is varied in training, nor of the tasks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from nbgen.demo import phrasing
from nbgen.demo.wording import tables

TOPICS = ("nbgen", "jupyter", "code", "talk")
EVERY = 6
FRAMES = {"subjects": "what_is", "actions": "how_to", "tasks": "code"}


@dataclass(frozen=True)
class Intent:
    """One thing to know: the ways to ask for it and its right answers."""

    name: str
    topic: str
    trained: tuple[str, ...]
    held_out: tuple[str, ...]
    answers: tuple[str, ...]


def is_held_out_place(place: int) -> bool:
    """Every sixth question of an intent is kept out of training."""
    return place % EVERY == EVERY - 1


def filled(frames: list[str], fillers: list[str]) -> list[str]:
    """Every frame with every filler."""
    return [phrasing.capitalised(frame.format(filler)) for frame, filler in product(frames, fillers)]


def read_intent(name: str, topic: str, table: dict) -> Intent:
    """One table of an intent file, its phrasings split."""
    questions = table["questions"].strip().splitlines()
    trained = [text for place, text in enumerate(questions) if not is_held_out_place(place)]
    held_out = [text for place, text in enumerate(questions) if is_held_out_place(place)]
    for fillers, frames in FRAMES.items():
        trained += filled(getattr(phrasing.say, frames), table.get(fillers, []))
        held_out += filled(getattr(phrasing.say, f"{frames}_held_out"), table.get(fillers, [])[:1])
    return Intent(name, topic, tuple(trained), tuple(held_out), tuple(table["answers"]))


def read_topic(topic: str) -> Iterator[Intent]:
    """The intents of one file."""
    for name, table in tables(f"intents_{topic}").items():
        yield read_intent(name, topic, table)


@cache
def intents() -> tuple[Intent, ...]:
    """All intents; a trained phrasing that holds a held-out one is gone from them."""
    return tuple(
        replace(each, trained=tuple(text for text in each.trained if not holds_held_out(text)))
        for topic in TOPICS
        for each in read_topic(topic)
    )


@cache
def held_out_texts() -> frozenset[str]:
    """The normal form of every held-out phrasing."""
    return frozenset(phrasing.normal(text) for topic in TOPICS for each in read_topic(topic) for text in each.held_out)


@cache
def longest_held_out() -> int:
    """The words of the longest held-out phrasing."""
    return max(len(text.split()) for text in held_out_texts())


def holds_held_out(text: str) -> bool:
    """Whether a held-out phrasing stands anywhere in the text."""
    words, held_out = phrasing.normal(text).split(), held_out_texts()
    return any(
        " ".join(words[start:end]) in held_out
        for start in range(len(words))
        for end in range(start + 1, min(len(words), start + longest_held_out()) + 1)
    )


def weight(intent: Intent) -> float:
    """How often an intent is drawn: more, the more ways there are to ask for it."""
    return len(intent.trained) ** 0.3
