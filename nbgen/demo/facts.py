"""Simple facts that everybody knows, each asked for in some words, with its answer."""

import random

from nbgen.demo.arithmetic import Exchange
from nbgen.demo.wording import wording
from nbgen.demo.words import KINDS, with_article, words

say = wording("facts")


def fact(rng: random.Random) -> Exchange:
    """A simple fact: a capital, an opposite, a colour, a number of legs or days."""
    return rng.choices([capital, opposite, colour, legs, how_many], [5, 3, 1, 1, 1])[0](rng)


def capital(rng: random.Random) -> Exchange:
    """The capital of a country."""
    country, city = rng.choice(list(words.capitals.items()))
    return rng.choice(say.capital).format(country), f"The capital of {country} is {city}."


def opposite(rng: random.Random) -> Exchange:
    """The opposite of a word."""
    word, other = rng.choice(list(words.opposites.items()))
    return rng.choice(say.opposite).format(word), f"The opposite of {word} is {other}."


def colour(rng: random.Random) -> Exchange:
    """The colour of a thing."""
    thing, tint = rng.choice(list(words.tints.items()))
    return rng.choice(say.colour).format(thing), f"{thing.capitalize()} is {tint}."


def legs(rng: random.Random) -> Exchange:
    """How many legs an animal has."""
    animal, number = rng.choice(list(words.legs.items()))
    question = rng.choice(say.legs)
    return question.format(with_article(animal)), f"{with_article(animal).capitalize()} has {number} legs."


def how_many(rng: random.Random) -> Exchange:
    """How many days a week has, and the like."""
    what, number = rng.choice(list(words.numbers.items()))
    noun, rest = what.split(" ", 1)
    verb, *owner = rest.split(" ", 1)
    if verb == "are":
        return f"How many {what}?", f"There are {number} {noun}."
    asked = rng.choice(
        [f"How many {noun} does {owner[0]} have?", f"How many {what}?", f"How many {noun} are there in {owner[0]}?"]
    )
    return asked, f"{owner[0].capitalize()} has {number} {noun}."


def yes_or_no(rng: random.Random) -> Exchange:
    """Whether a thing is of a kind."""
    kind = rng.choice(say.kinds)
    thing = rng.choice(KINDS[kind])
    asked = rng.choice([kind, rng.choice(say.kinds)])
    question = rng.choice(say.yes_or_no)
    answer = f"{'Yes' if asked == kind else 'No'}, {with_article(thing)} is {with_article(kind)}."
    return question.format(with_article(thing), with_article(asked)), answer
