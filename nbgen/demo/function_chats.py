"""Chats in which the model may call functions: it calls the right one, and says what came of it."""

import random

from nbgen.demo import functions
from nbgen.demo.exchanges import Message, short_exchange, typed
from nbgen.demo.functions import Function
from nbgen.demo.wording import wording

MOST_OFFERED = 4
FAILURES = 0.06
UNASKED = 0.15
TWO_CALLS = 0.1
AGAIN = 0.2
SYSTEM = 0.1
say, helpful = functions.say.answers, wording("chats").helpful


def offered(rng: random.Random) -> list[Function]:
    """Some functions, no two of one name, nor asked for in the same words."""
    drawn = [functions.any_function(rng) for _ in range(rng.choices(range(1, MOST_OFFERED + 1), [5, 3, 2, 1])[0])]
    return distinct(drawn)


def distinct(some: list[Function]) -> list[Function]:
    """Those of which none has the name or the questions of one before."""
    found: list[Function] = []
    for function in some:
        if all(function.name != each.name and not {*function.asks} & {*each.asks} for each in found):
            found.append(function)
    return found


def listing(some: list[Function]) -> Message:
    """What the chat template says of them."""
    return {"role": "tools", "content": "\n".join(function.signature for function in some)}


def chat(rng: random.Random) -> list[Message]:
    """A chat that begins with functions."""
    some = offered(rng)
    system = [{"role": "system", "content": rng.choice(helpful)}] if rng.random() < SYSTEM else []
    turns = exchange(some, rng)
    if rng.random() < AGAIN:
        turns += exchange(some, rng)
    return [listing(some), *system, *turns]


def exchange(some: list[Function], rng: random.Random) -> list[Message]:
    """A question and all that follows it."""
    if rng.random() < UNASKED:
        asked, answer = short_exchange(rng)
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    function = rng.choice(some)
    return two_calls(function, rng) if rng.random() < TWO_CALLS else one_call(function, rng)


def one_call(function: Function, rng: random.Random) -> list[Message]:
    """A question that takes one call."""
    asked, call = typed(functions.asked(function, rng), rng)
    if rng.random() < FAILURES:
        result = functions.failure(rng)
        answer = say["failed"].format(result)
    else:
        result, told = functions.result(function, rng)
        answer = say["one"].format(told) if told else say["nothing"]
    return turns(asked, call, [result], answer)


def two_calls(function: Function, rng: random.Random) -> list[Message]:
    """Two questions in one, for the same function."""
    (first, call), (second, other) = (functions.asked(function, rng) for _ in range(2))
    results, told = zip(*(functions.result(function, rng) for _ in range(2)), strict=True)
    answer = say["several"].format(" and ".join(told)) if all(told) else say["nothing"]
    joint = " And " + second[:1].lower() + second[1:] if first.endswith((".", "?")) else f" and {second}"
    return turns(first + joint, call + other, list(results), answer)


def turns(asked: str, calls: str, results: list[str], answer: str) -> list[Message]:
    """The turns of a question with calls."""
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": calls},
        *({"role": "tool", "content": result} for result in results),
        {"role": "assistant", "content": answer},
    ]
