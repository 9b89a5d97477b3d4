"""Sums, differences, products, comparisons and counting, as questions with their answers.

Of one-digit sums, one pair in six of every phrasing is kept out of training, and three phrasings altogether.
"""

import random
from collections.abc import Callable

from nbgen.demo.wording import wording

say = wording("arithmetic")
Exchange = tuple[str, str]


def is_held_out(a: int, b: int, place: int) -> bool:
    """Whether this pair is kept out of the training of this phrasing."""
    return (7 * a + 3 * b + 5 * place) % 6 == 0


def held_out_sums() -> list[Exchange]:
    """Each one-digit pair in the phrasings whose training it was kept out of."""
    return [
        (text.format(a, b), sum_answer(a, b))
        for place, text in enumerate(say.sums)
        for a in range(10)
        for b in range(10)
        if is_held_out(a, b, place)
    ]


def held_out_phrasings() -> list[Exchange]:
    """Each one-digit pair in the phrasings that training never shows."""
    return [(text.format(a, b), sum_answer(a, b)) for text in say.sums_held_out for a in range(10) for b in range(10)]


def sum_answer(a: int, b: int) -> str:
    """The answer to a sum."""
    return f"{a} + {b} = {a + b}"


def one_digit_sum(rng: random.Random) -> Exchange:
    """A sum of two one-digit numbers, never a held-out one."""
    while True:
        a, b, place = rng.randrange(10), rng.randrange(10), rng.randrange(len(say.sums))
        if not is_held_out(a, b, place):
            return say.sums[place].format(a, b), sum_answer(a, b)


def larger_sum(rng: random.Random) -> Exchange:
    """A sum with numbers of one or two digits, at least one of them two."""
    a, b = rng.randrange(10, 100), rng.choice([rng.randrange(10), rng.randrange(10, 100)])
    if rng.random() < 0.5:
        a, b = b, a
    return rng.choice(say.sums).format(a, b), sum_answer(a, b)


def difference(rng: random.Random) -> Exchange:
    """A difference that is not negative."""
    a = rng.choice([rng.randrange(11), rng.randrange(21), rng.randrange(100)])
    b = rng.randrange(min(a, 20) + 1)
    return rng.choice(say.differences).format(a, b), f"{a} - {b} = {a - b}"


def product(rng: random.Random) -> Exchange:
    """A product from the multiplication table up to twelve."""
    a, b = rng.randrange(13), rng.randrange(13)
    return rng.choice(say.products).format(a, b), f"{a} * {b} = {a * b}"


def larger(rng: random.Random) -> Exchange:
    """The larger of two different numbers."""
    a, b = rng.sample(range(rng.choice([10, 100])), 2)
    return rng.choice(say.larger).format(a, b), f"{max(a, b)} is larger than {min(a, b)}."


def listed(numbers: range) -> str:
    """Numbers with commas between them."""
    return ", ".join(map(str, numbers))


def count(rng: random.Random) -> Exchange:
    """Counting up from one number to another, now and then to a hundred."""
    start = rng.choice([1, 1, rng.randrange(0, 12), rng.randrange(0, 90)])
    end = rng.choice([start + rng.randrange(2, 12), start + rng.randrange(5, 31), 100 if start < 30 else start + 10])
    if start == 1 and rng.random() < 0.3:
        return rng.choice(say.counts_from_one).format(end), listed(range(1, end + 1))
    return rng.choice(say.counts).format(start, end), listed(range(start, end + 1))


def count_otherwise(rng: random.Random) -> Exchange:
    """Counting down, or by twos."""
    start = rng.randrange(0, 30)
    if rng.random() < 0.4:
        end = start + 2 * rng.randrange(2, 10)
        return rng.choice(say.counts_by_two).format(start, end), listed(range(start, end + 1, 2))
    end = start + rng.randrange(3, 16)
    return rng.choice(say.counts_down).format(end, start), listed(range(end, start - 1, -1))


MAKERS: list[tuple[Callable[[random.Random], Exchange], float]] = [
    (one_digit_sum, 4),
    (larger_sum, 3),
    (difference, 2.5),
    (product, 2),
    (larger, 0.7),
    (count, 2),
    (count_otherwise, 1),
]


def exchange(rng: random.Random) -> Exchange:
    """One question about numbers with its answer."""
    makers, shares = zip(*MAKERS, strict=True)
    return rng.choices(makers, shares)[0](rng)
