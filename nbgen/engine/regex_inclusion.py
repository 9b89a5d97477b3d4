"""Whether a regex is found in every text that another matches: walks through the automata of both together.

Of lookaround it knows only lookaheads at the beginning of the outer regex. Plain Python.
"""

from __future__ import annotations

from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from typing import Any

from nbgen.engine.grammar import GrammarError
from nbgen.engine.json_regex import BEGINS, ENDLESS, ENDS, LAST, REPEATS, SETS, Item, Ranges, characters_of, parsed

#: Limits beyond which the answer is not plain: an automaton's states, and states visited in a walk, each visit counted.
#: The walk then takes some tenths of a second.
MOST, MOST_VISITED = 5000, 200_000
_ANYTHING: Ranges = [(0, LAST)]


class _Unclear(Exception):
    """Whether one regex is within the other is not plain."""


@lru_cache(64)
def within(inner: str, outer: str) -> bool:
    """Whether it is plain that `outer` is found in each text that `inner`, with anchors at both ends, matches."""
    try:
        return _Walk(inner, outer).all_found()
    except (_Unclear, GrammarError):
        return False


class _Automaton:
    """A nondeterministic automaton. Its states are numbers from 0, where a text begins, to `end`."""

    def __init__(self, items: list[Item], flags: int) -> None:
        self._flags = flags
        self.steps: list[list[tuple[Ranges, int]]] = [[]]
        self._empty: list[list[int]] = [[]]
        ends = [self._whole(each) for each in _choices(items)]
        self.end = self._new()
        for end in ends:
            self._empty[end].append(self.end)

    def reached(self, states: set[int]) -> frozenset[int]:
        """The states and all that can be reached from them without a character."""
        found, new = set(states), list(states)
        while new:
            further = set(self._empty[new.pop()]) - found
            found |= further
            new += further
        return frozenset(found)

    def after(self, states: frozenset[int], code: int) -> frozenset[int]:
        """The states after a character."""
        steps = (step for state in states for step in self.steps[state])
        return self.reached({target for over, target in steps if any(low <= code <= high for low, high in over)})

    def _new(self) -> int:
        if len(self.steps) >= MOST:
            raise _Unclear
        self.steps.append([])
        self._empty.append([])
        return len(self.steps) - 1

    def _whole(self, items: list[Item]) -> int:
        """Add one choice. Anything may come before it, and after it, where it has no anchor."""
        begin = self._new()
        self._empty[0].append(begin)
        if items and items[0][0] is sre.AT and items[0][1] in BEGINS:
            items = items[1:]
        else:
            self.steps[begin].append((_ANYTHING, begin))
        open_ended = not (items and items[-1][0] is sre.AT and items[-1][1] in ENDS)
        end = self._sequence(items if open_ended else items[:-1], begin)
        if open_ended:
            self.steps[end].append((_ANYTHING, end))
        return end

    def _sequence(self, items: Any, state: int) -> int:
        for operation, details in items:
            state = self._item(operation, details, state)
        last = self._new()
        self._empty[state].append(last)
        return last

    def _item(self, operation: Any, details: Any, state: int) -> int:
        if operation in SETS:
            target = self._new()
            self.steps[state].append((characters_of(operation, details, self._flags), target))
            return target
        if operation is sre.BRANCH:
            ends = [self._sequence(each, state) for each in details[1]]
            target = self._new()
            for end in ends:
                self._empty[end].append(target)
            return target
        if operation is sre.SUBPATTERN and not details[1] and not details[2]:
            return self._sequence(details[3], state)
        if operation in REPEATS:
            low, high, body = details
            return self._repeated(low, high, body, state)
        raise _Unclear

    def _repeated(self, low: int, high: int, body: Any, state: int) -> int:
        for _ in range(low):
            state = self._sequence(body, state)
        begin = self._new()
        self._empty[state].append(begin)
        if high >= ENDLESS:
            self._empty[self._sequence(body, begin)].append(begin)
            return begin
        left = [begin]
        for _ in range(high - low):
            left.append(self._sequence(body, left[-1]))
        target = self._new()
        for each in left:
            self._empty[each].append(target)
        return target


class _Walk:
    """A walk through the inner regex, the outer one, and the outer one's lookaheads, positive and negative."""

    def __init__(self, inner: str, outer: str) -> None:
        self._inner = _Automaton(*parsed(inner))
        items, flags = parsed(outer)
        self._asked: list[tuple[bool, _Automaton]] = []
        while len(items) > 1 and items[0][1] in BEGINS and items[1][0] in (sre.ASSERT, sre.ASSERT_NOT):
            operation, (direction, body) = items[1]
            if direction != 1:
                raise _Unclear
            self._asked.append((operation is sre.ASSERT, _Automaton([items[0], *body], flags)))
            items = [items[0], *items[2:]]
        self._asked.append((True, _Automaton(items, flags)))
        self._codes = {0} | {
            code
            for each in (self._inner, *(asked for _, asked in self._asked))
            for steps in each.steps
            for over, _ in steps
            for low, high in over
            for code in (low, high + 1)
        }

    def all_found(self) -> bool:
        automata = [self._inner, *(asked for _, asked in self._asked)]
        first = tuple(each.reached({0}) for each in automata)
        seen, new, visited = {first}, [first], 0
        while new:
            at = new.pop()
            if self._inner.end in at[0] and not self._found(at[1:]):
                return False
            for code in self._codes:
                then = tuple(each.after(states, code) for each, states in zip(automata, at, strict=True))
                visited += sum(map(len, at + then))
                if then[0] and then not in seen:
                    seen.add(then)
                    new.append(then)
                if visited > MOST_VISITED:
                    raise _Unclear
        return True

    def _found(self, at: tuple[frozenset[int], ...]) -> bool:
        return all((each.end in states) is wanted for (wanted, each), states in zip(self._asked, at, strict=True))


def _choices(items: list[Item]) -> list[list[Item]]:
    """The alternatives, if the regex ends with a choice: each may have an anchor at its end."""
    if items and items[-1][0] is sre.BRANCH:
        return [[*items[:-1], *each] for each in items[-1][1][1]]
    return [items]
