"""Chats whose system prompt changes the answers: one word, a pirate, JSON, a name."""

import json
import random
from collections.abc import Callable

from nbgen.demo import arithmetic, facts, reviews
from nbgen.demo.arithmetic import Exchange
from nbgen.demo.exchanges import Message, messages, short_exchange
from nbgen.demo.wording import wording
from nbgen.demo.words import any_name, made_up_word, words

SHOUTED = 70
say = wording("chats")


def told_by_system(rng: random.Random) -> list[Message]:
    """The system prompt tells the user's name."""
    name = any_name(rng)
    system = rng.choice(say.user_named).format(name)
    return messages([(rng.choice(say.told["name"]["ask"]), f"Your name is {name}.")], system)


def one_word(rng: random.Random) -> list[Message]:
    """The system prompt asks for one word, and gets it."""
    pairs = [
        lambda: changed(arithmetic.one_digit_sum(rng), lambda answer: answer.split(" = ")[1]),
        lambda: changed(facts.capital(rng), last_words),
        lambda: changed(facts.opposite(rng), lambda answer: last_words(answer).capitalize()),
        lambda: changed(facts.colour(rng), lambda answer: last_words(answer).capitalize()),
        lambda: changed(facts.yes_or_no(rng), lambda answer: answer.split(",")[0]),
        lambda: reviews.sentiment(rng),
        lambda: tuple(rng.choice(say.in_one_word)),
    ]
    return messages([rng.choice(pairs)() for _ in range(rng.choice([1, 1, 2, 3]))], rng.choice(say.one_word))


def last_words(answer: str) -> str:
    """What comes after the verb of a sentence."""
    return answer.split(" is ")[1].rstrip(".")


def changed(exchange: Exchange, change: Callable[[str], str]) -> Exchange:
    """The exchange with its answer changed."""
    return exchange[0], change(exchange[1])


def styled(rng: random.Random) -> list[Message]:
    """The system prompt asks for a way of answering."""
    word = rng.choice(words.common + words.names + [made_up_word(rng) for _ in range(60)]).capitalize()
    prompts, style = rng.choice(
        [
            (say.pirate, lambda text: f"Arr, matey! {text} Yo ho ho!"),
            (say.as_json, lambda text: json.dumps({"answer": text}, ensure_ascii=False)),
            (say.shout, str.upper),
            (say.begin, lambda text: f"{word}! {text}"),
            (say.end, lambda text: f"{text} {word}!"),
        ]
    )
    drawn = [short_exchange(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
    kept = [each for each in drawn if "\n" not in each[1] and (style is not str.upper or len(each[1]) < SHOUTED)]
    system = rng.choice(prompts).format(word) if kept else ""
    return messages([changed(each, style) for each in kept], system) if kept else styled(rng)


def named(rng: random.Random) -> list[Message]:
    """The system prompt gives the assistant a name."""
    name = any_name(rng)
    who = (rng.choice(say.who_are_you), f"I am {name}, a small language model.")
    return messages(
        rng.choice([[who], [short_exchange(rng), who], [who, short_exchange(rng)]]), rng.choice(say.named).format(name)
    )
