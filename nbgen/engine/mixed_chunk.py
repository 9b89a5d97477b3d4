"""How many prompt tokens a step computes beside decodes, which they slow down. Plain Python."""

from typing import NamedTuple

#: More tokens than any prompt has.
WHOLE = 2**31
#: A piece of a prompt has at least this share of what it comes after, all of which it reads once more.
SHARE_OF_CONTEXT = 1 / 32


class MixedChunk(NamedTuple):
    """Prompt tokens of a step that has decodes: from `least` to `most`, more with more decodes or a longer context.

    Where several prompts come at once, second tokens wait for them for `patience` seconds at most.
    """

    least: int = WHOLE
    most: int = WHOLE
    for_each: float = 0.0
    patience: float = 0.0

    def tokens(self, decodes: int, context: int) -> int:
        """Beside so many decodes, after so many tokens of the prompt."""
        wanted = max(self.least + self.for_each * decodes, context * SHARE_OF_CONTEXT)
        return int(min(wanted, self.most))
