"""Guesses a sequence's next tokens: those that followed an earlier occurrence of its newest tokens.

So an answer that repeats its prompt, or itself, gains several tokens a step (prompt lookup, Saxena 2023; checked as in
Leviathan et al. 2023). Knows neither how guesses are checked nor which were accepted: the length of a match predicts
well enough how long it will go on. `python -m benchmarks.drafts` tries that on real texts.
"""

#: Fewest tokens that must match an earlier place, and most that are compared to find the place with the longest match.
PAIR, LONGEST = 2, 16
#: Most earlier places that are compared, the newest first.
PLACES = 16


class Drafts:
    """The guesses for one sequence, which only grows."""

    def __init__(self) -> None:
        #: The place after each pair's last occurrence; for each place, the one after the occurrence before it; 0: none.
        self._last: dict[tuple[int, int], int] = {}
        self._before = [0] * PAIR

    def guess(self, ids: list[int], most: int) -> list[int]:
        """Tokens that may follow `ids`, `most` at most."""
        for place in range(len(self._before), len(ids)):
            pair = ids[place - 2], ids[place - 1]
            self._before.append(self._last.get(pair, 0))
            self._last[pair] = place
        place, alike = self._most_alike(ids)
        if not place:
            return []
        distance = len(ids) - place  # further tokens repeat the guess
        return [ids[place + i % distance] for i in range(min(most, max(1, alike - PAIR)))]

    def _most_alike(self, ids: list[int]) -> tuple[int, int]:
        """The place after the longest match with the end of `ids`, and the length of the match; place 0 if none."""
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
