"""Guesses at a sequence's next tokens: those that followed when its newest tokens stood there before.

So an answer that repeats its prompt, or itself, gains several tokens a step (prompt lookup, Saxena 2023; checked as in
Leviathan et al. 2023). Knows nothing of how guesses are checked, and learns nothing of what became of them: how many
tokens are alike says well enough how many more will be. `python -m benchmarks.drafts` tries that on real texts.
"""

#: Tokens that must have stood there before, and as many as are looked at to find the place that is most alike.
PAIR, LONGEST = 2, 16
#: Places that are looked at, the last ones first.
PLACES = 16


class Drafts:
    """Of one sequence, which only grows."""

    def __init__(self) -> None:
        #: Where what follows two tokens began the last time, and for each such place the one before it; 0: none.
        self._last: dict[tuple[int, int], int] = {}
        self._before = [0] * PAIR

    def guess(self, ids: list[int], most: int) -> list[int]:
        """What may follow `ids`, at most so many tokens."""
        for place in range(len(self._before), len(ids)):
            pair = ids[place - 2], ids[place - 1]
            self._before.append(self._last.get(pair, 0))
            self._last[pair] = place
        place, alike = self._most_alike(ids)
        if not place:
            return []
        distance = len(ids) - place  # what comes later than that is guessed itself
        return [ids[place + i % distance] for i in range(min(most, max(1, alike - PAIR)))]

    def _most_alike(self, ids: list[int]) -> tuple[int, int]:
        """The place after the most tokens that are the last ones of `ids`, and how many; 0 if there is none."""
        best, longest, looked = 0, PAIR - 1, 0
        place = self._last.get((ids[-2], ids[-1]), 0) if len(ids) > PAIR else 0
        while place and longest < LONGEST and looked < PLACES:
            alike = PAIR
            while alike < min(place, LONGEST) and ids[place - 1 - alike] == ids[-1 - alike]:
                alike += 1
            if alike > longest:
                best, longest = place, alike
            place, looked = self._before[place], looked + 1
        return best, longest
