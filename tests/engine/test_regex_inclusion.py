"""A regex is said to be within another only where each of its texts is found by the other."""

import itertools
import random
import re

import pytest

from nbgen.date_patterns import OF_FORMATS
from nbgen.engine.regex_inclusion import within
from tests.soak import TIMES

TEXTS = ["".join(letters) for length in range(6) for letters in itertools.product("ab.", repeat=length)]


def drawn(chance: random.Random, depth: int = 3) -> str:
    if depth == 0:
        return chance.choice(["a", "b", r"\.", ".", "[ab]", "[^a]", r"\w", ""])
    kind = chance.randrange(6)
    first, second = (drawn(chance, depth - 1) for _ in range(2))
    if kind == 0:
        return f"(?:{first}|{second})"
    if kind == 1:
        return f"(?:{first}){chance.choice(['*', '+', '?', '{2}', '{1,3}', '{2,}'])}"
    return first + second


def test_of_any_two_it_is_said_only_where_it_is_so() -> None:
    chance, said, so = random.Random(0), 0, 0
    for _ in range(400 * TIMES):
        inner = f"^(?:{drawn(chance)})$"
        outer = f"{chance.choice(['^', ''])}{chance.choice(['', '', '(?!b)', '(?=.b)'])}{drawn(chance)}"
        outer += chance.choice(["$", "", "|^a"])
        found = all(re.search(outer, text) for text in TEXTS if re.search(inner, text))
        assert found or not within(inner, outer), (inner, outer)
        said, so = said + within(inner, outer), so + found
    assert said > 0.2 * so > 0, "and often where it is so"


@pytest.mark.parametrize("outer", ["(", "(?<=a)a", r"(a)\1", r"\ba", "a$b", "(?i:a)", "^(?:a(?=b))", "a{9999}"])
def test_what_is_not_plain_is_not_said(outer: str) -> None:
    assert not within("^a$", outer)


def test_what_takes_seconds_to_tell_is_not_said() -> None:
    assert within("^a*$", ".*" * 4)
    assert not within(OF_FORMATS["date-time"], ".*" * 400)
