"""Whole chats: single exchanges, several in a row, follow-ups, things told and asked again, styled ones, calls."""

import random

from nbgen.demo import arithmetic, facts, function_chats, stories, styles
from nbgen.demo.arithmetic import Exchange
from nbgen.demo.exchanges import Message, any_exchange, messages, short_exchange
from nbgen.demo.wording import wording
from nbgen.demo.words import any_name, with_article, words

say = wording("chats")


def told_value(what: str, rng: random.Random) -> str:
    """Something that a user may tell of that kind."""
    pools = {"city": words.cities, "colour": words.colours, "pet": [with_article(animal) for animal in words.animals]}
    return rng.choice(pools[what]) if what in pools else any_name(rng)


def single(rng: random.Random) -> list[Message]:
    """One question, one answer."""
    return messages([any_exchange(rng)], rng.choice(say.helpful) if rng.random() < 0.12 else None)


def several(rng: random.Random) -> list[Message]:
    """Questions in a row that have nothing to do with each other."""
    turns = 12 if rng.random() < 0.06 else rng.randrange(2, 6)
    return messages(
        [short_exchange(rng) for _ in range(turns)], rng.choice(say.helpful) if rng.random() < 0.1 else None
    )


def follow_up(rng: random.Random) -> list[Message]:
    """A question, then one that can only be understood after it."""
    return messages(rng.choices([said_again, another_story, another_sum, another_capital], [3, 1, 2, 2])[0](rng))


def said_again(rng: random.Random) -> list[Exchange]:
    """The same answer once more."""
    asked, answer = short_exchange(rng)
    return [(asked, answer), (rng.choice(say.again), answer)]


def another_story(rng: random.Random) -> list[Exchange]:
    """A second story."""
    return [stories.exchange(rng), (rng.choice(say.another), stories.story(rng))]


def another_sum(rng: random.Random) -> list[Exchange]:
    """A second sum, of which only the numbers are said."""
    a, b = rng.randrange(10), rng.randrange(10)
    asked = rng.choice(say.another_sum).format(a, b)
    return [arithmetic.one_digit_sum(rng), (asked, arithmetic.sum_answer(a, b))]


def another_capital(rng: random.Random) -> list[Exchange]:
    """A second capital, of which only the country is said."""
    country, city = rng.choice(list(words.capitals.items()))
    asked = rng.choice(say.another_capital).format(country)
    return [facts.capital(rng), (asked, f"The capital of {country} is {city}.")]


def remembered(rng: random.Random) -> list[Message]:
    """Something told is asked for some turns later."""
    what = rng.choice(["name", "name", "name", "city", "colour", "pet"])
    told, value = say.told[what], told_value(what, rng)
    between = [short_exchange(rng) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
    before = [short_exchange(rng) for _ in range(rng.choice([0, 0, 0, 1]))]
    telling = (rng.choice(told["tell"]).format(value), told["reply"].format(value))
    return messages([*before, telling, *between, (rng.choice(told["ask"]), told["recall"].format(value))])


def not_told(rng: random.Random) -> list[Message]:
    """Something is asked for that was never told."""
    what = rng.choice(list(say.told))
    before = [short_exchange(rng) for _ in range(rng.choice([0, 0, 1]))]
    return messages([*before, (rng.choice(say.told[what]["ask"]), "I do not know; you have not told me yet.")])


MAKERS = [
    (single, 60), (several, 15), (follow_up, 4), (remembered, 6), (not_told, 1),
    (styles.told_by_system, 1.5), (styles.one_word, 4), (styles.styled, 6), (styles.named, 2),
    (function_chats.chat, 9),
]  # fmt: skip


def chat(rng: random.Random) -> list[Message]:
    """One chat of any kind."""
    makers, shares = zip(*MAKERS, strict=True)
    return rng.choices(makers, shares)[0](rng)
