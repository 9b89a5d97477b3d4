"""How many prompt tokens a step computes beside decodes, which they slow down. Plain Python."""

from typing import NamedTuple

#: More tokens than any prompt has.
WHOLE = 2**31
#: A prompt chunk has at least this share of the tokens before it, because it reads all their keys and values again.
SHARE_OF_CONTEXT = 1 / 32


class MixedChunk(NamedTuple):
    """Prompt tokens of a step that has decodes: from `least` to `most`, more with more decodes or a longer context.

    If several prompts come at once, sequences wait `patience` seconds at most for the others before their second token.
    """

    least: int = WHOLE
    most: int = WHOLE
    for_each: float = 0.0
    patience: float = 0.0

    def tokens(self, decodes: int, context: int) -> int:
        """Prompt tokens of a step beside so many decodes, after so many tokens of the prompt."""
        wanted = max(self.least + self.for_each * decodes, context * SHARE_OF_CONTEXT)
        return int(min(wanted, self.most))
