"""Chats that must be read closely, since their answers copy or compute; the late part of the training has many."""

import random

from nbgen.demo import arithmetic, chats, extraction, facts, function_chats, stories, tasks
from nbgen.demo.arithmetic import Exchange
from nbgen.demo.exchanges import Message, messages, typed
from nbgen.demo.words import any_name, made_up_word, words

REMEMBERED = 0.12
CALLS = 0.25
LONGEST = 25


def long_echo(rng: random.Random) -> Exchange:
    """Many words repeated as they are, most of them made up."""
    pool = words.common + words.names + words.emoji + [any_name(rng) for _ in range(9)]
    pool += [made_up_word(rng) for _ in range(150)] + [str(rng.randrange(1000)) for _ in range(40)]
    text = " ".join(rng.choices(pool, k=rng.randrange(4, LONGEST)))
    return rng.choice(tasks.say.echo).format(text), text


MAKERS = [
    (arithmetic.exchange, 8), (extraction.json_extraction, 4), (long_echo, 3), (tasks.reversal, 1), (tasks.spelling, 1),
    (tasks.upper_case, 0.7), (facts.fact, 2), (stories.exchange, 2),
]  # fmt: skip


def chat(rng: random.Random) -> list[Message]:
    """One such chat."""
    chance = rng.random()
    if chance < REMEMBERED:
        return chats.remembered(rng)
    if chance < REMEMBERED + CALLS:
        return function_chats.chat(rng)
    makers, shares = zip(*MAKERS, strict=True)
    return messages([typed(rng.choices(makers, shares)[0](rng), rng)])
