"""Small tasks with one right answer: lists, spelling, echo and the like, each drawn with its answer.

Numbers are in `arithmetic.py`, facts in `facts.py`, JSON in `extraction.py`, sentiment in `reviews.py`.
"""

import random

from nbgen.demo.arithmetic import Exchange
from nbgen.demo.extraction import json_extraction
from nbgen.demo.facts import fact, yes_or_no
from nbgen.demo.reviews import sentiment
from nbgen.demo.wording import wording
from nbgen.demo.words import KINDS, bullets, made_up_word, words

say = wording("tasks")


def known_list(rng: random.Random) -> Exchange:
    """A list that everybody knows."""
    name = rng.choice(list(words.lists))
    return rng.choice(say.lists).format(name), bullets(words.lists[name])


def some_of_a_kind(rng: random.Random) -> Exchange:
    """The first few of a kind."""
    kind, n = rng.choice(list(KINDS)), rng.randrange(2, 6)
    number = rng.choice([str(n), say.numerals[n]])
    return rng.choice(say.some).format(n=number, kind=kind), bullets(KINDS[kind][:n])


def neighbour(rng: random.Random) -> Exchange:
    """The day, month or letter before or after another."""
    kind, items = rng.choice([("day", words.days), ("month", words.months), ("letter", words.alphabet)])
    at = rng.randrange(len(items) - 1)
    if rng.random() < 0.6:
        return rng.choice(say.after).format(items[at], kind=kind), f"{items[at + 1]} comes after {items[at]}."
    return rng.choice(say.before).format(items[at + 1], kind=kind), f"{items[at]} comes before {items[at + 1]}."


def spelling(rng: random.Random) -> Exchange:
    """A word letter by letter."""
    word = rng.choice(words.common + words.animals + words.fruits)
    return rng.choice(say.spell).format(word), "-".join(word)


def reversal(rng: random.Random) -> Exchange:
    """A short list backwards."""
    items = rng.sample(words.common + words.fruits + words.colours, rng.randrange(2, 6))
    return rng.choice(say.reverse).format(", ".join(items)), ", ".join(reversed(items))


def upper_case(rng: random.Random) -> Exchange:
    """A word or two in capitals."""
    text = " ".join(rng.sample(words.common + words.animals, rng.randrange(1, 3)))
    return rng.choice(say.capital_letters).format(text), text.upper()


def echo(rng: random.Random) -> Exchange:
    """Some words repeated as they are."""
    pool = words.common + words.names + words.colours + words.emoji + [made_up_word(rng) for _ in range(60)]
    text = " ".join(rng.choices(pool, k=rng.randrange(1, 7)))
    return rng.choice(say.echo).format(text), text


MAKERS = [
    (known_list, 1),
    (some_of_a_kind, 1),
    (neighbour, 1),
    (spelling, 1.2),
    (reversal, 1.5),
    (upper_case, 1),
    (echo, 3),
    (fact, 2.5),
    (yes_or_no, 1),
    (json_extraction, 4),
    (sentiment, 2.5),
]


def exchange(rng: random.Random) -> Exchange:
    """One task with its answer."""
    makers, shares = zip(*MAKERS, strict=True)
    return rng.choices(makers, shares)[0](rng)
