"""Questions that the demo model does not know, and its honest answer to them."""

import random
import re

from nbgen.demo import intents, phrasing
from nbgen.demo.wording import wording

say = wording("unknown")


def filled(template: str, rng: random.Random) -> str:
    """The template with a word in each slot."""
    return re.sub(r"\{(\w+)\}", lambda slot: rng.choice(say.slots[slot[1]]), template)


def exchange(rng: random.Random) -> tuple[str, str]:
    """One such question in some wording, never of a held-out template."""
    while True:
        asked = phrasing.vary(filled(rng.choice(say.questions), rng), rng)
        if not intents.holds_held_out(asked):
            return asked, rng.choice(say.answers)


def held_out(rng: random.Random, each: int) -> list[tuple[str, tuple[str, ...]]]:
    """Questions of the held-out templates with their right answers."""
    return [(filled(template, rng), tuple(say.answers)) for template in say.held_out for _ in range(each)]
