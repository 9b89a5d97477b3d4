"""One question with its answer, of any kind that the model is trained on; and such exchanges as messages of a chat."""

import random

from nbgen.demo import arithmetic, intents, phrasing, stories, tasks, unknown
from nbgen.demo.arithmetic import Exchange

Message = dict[str, str]
SHORT = 160


def messages(exchanges: list[Exchange], system: str | None = None) -> list[Message]:
    """Exchanges as the messages of one chat."""
    start = [{"role": "system", "content": system}] if system is not None else []
    turns = [
        [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}] for asked, answer in exchanges
    ]
    return start + [message for turn in turns for message in turn]


def intent_exchange(rng: random.Random) -> Exchange:
    """A question of the intent files in some wording, never a held-out one."""
    known = intents.intents()
    intent = rng.choices(known, [intents.weight(each) for each in known])[0]
    while True:
        asked = phrasing.vary(rng.choice(intent.trained), rng)
        if not intents.holds_held_out(asked):
            return asked, rng.choice(intent.answers)


def typed(exchange: Exchange, rng: random.Random) -> Exchange:
    """A task as another person types it, its material untouched."""
    asked, answer = exchange
    if rng.random() < 0.1:
        asked = rng.choice(phrasing.say.openings) + phrasing.uncapitalised(asked)
    return (asked.rstrip("?.") if rng.random() < 0.15 else asked), answer


def any_exchange(rng: random.Random) -> Exchange:
    """One question of any kind."""
    kind = rng.choices(["intent", "numbers", "task", "unknown", "story"], [55, 19, 17, 4, 5])[0]
    if kind == "intent":
        return intent_exchange(rng)
    if kind == "unknown":
        return unknown.exchange(rng)
    maker = {"numbers": arithmetic, "task": tasks, "story": stories}[kind]
    return typed(maker.exchange(rng), rng)


def short_exchange(rng: random.Random) -> Exchange:
    """One question of any kind but a story."""
    while True:
        exchange = any_exchange(rng)
        if len(exchange[1]) < SHORT:
            return exchange
