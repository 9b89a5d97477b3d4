"""Text that is no chat: what a bare prompt such as "Once upon a time" or "1, 2, 3," is the beginning of."""

import random

from nbgen.demo import arithmetic, facts, intents, stories
from nbgen.demo.exchanges import short_exchange
from nbgen.demo.words import any_name, bullets, with_article, words


def counting(rng: random.Random) -> str:
    """The numbers up to a hundred."""
    return arithmetic.listed(range(rng.choice([0, 1, 1, 1, rng.randrange(60)]), 101))


def sequence(rng: random.Random) -> str:
    """Days, months, letters and the like in their order."""
    items = rng.choice(list(words.lists.values()))
    return rng.choice([", ".join(items), bullets(items), "\n".join(items)])


def true_sentences(rng: random.Random) -> str:
    """A few simple sentences, each true."""
    makers = [facts.capital, facts.capital, facts.opposite, facts.colour, facts.legs]
    return " ".join(rng.choice(makers)(rng)[1] for _ in range(rng.randrange(1, 5)))


def knowledge(rng: random.Random) -> str:
    """What the intents say, as prose."""
    return rng.choice(rng.choice(intents.intents()).answers)


def sums(rng: random.Random) -> str:
    """A column of sums."""
    return "\n".join(arithmetic.sum_answer(rng.randrange(10), rng.randrange(10)) for _ in range(rng.randrange(1, 8)))


def questions(rng: random.Random) -> str:
    """Questions and answers with a letter or a word before each."""
    asks, answers = rng.choice([("Q: ", "A: "), ("Question: ", "Answer: "), ("User: ", "Assistant: "), ("", "")])
    pairs = [short_exchange(rng) for _ in range(rng.randrange(1, 4))]
    return "\n".join(f"{asks}{asked}\n{answers}{answer}" for asked, answer in pairs)


def greeting(rng: random.Random) -> str:
    """A sentence or two in which somebody speaks of himself."""
    name, city, job = any_name(rng), rng.choice(words.cities), rng.choice(words.jobs)
    return rng.choice(
        [
            f"Hello, my name is {name} and I live in {city}. I am {with_article(job)}, and I like to read.",
            f"My name is {name}. I am {with_article(job)} in {city}, and every morning I walk to work.",
            f"Dear {name},\n\nthank you for your letter from {city}. "
            f"I hope that you are well.\n\nYours, {any_name(rng)}",
        ]
    )


MAKERS = [
    (stories.story, 3),
    (counting, 1),
    (sequence, 1.5),
    (true_sentences, 3),
    (knowledge, 2),
    (sums, 1.5),
    (questions, 4),
    (greeting, 1.5),
]


def text(rng: random.Random) -> str:
    """One plain text of any kind."""
    makers, shares = zip(*MAKERS, strict=True)
    return rng.choices(makers, shares)[0](rng)
