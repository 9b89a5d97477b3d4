"""The words from which tasks, stories and chats are made, and words that nobody has seen before."""

import random

from nbgen.demo.wording import wording

words = wording("words")
KINDS = {
    "animal": words.animals, "plant": words.plants, "tool": words.tools, "vehicle": words.vehicles,
    "fruit": words.fruits, "colour": words.colours, "planet": words.planets,
}  # fmt: skip


def made_up_word(rng: random.Random) -> str:
    """A word that nobody has seen before."""
    return "".join(rng.choices(words.syllables, k=rng.randrange(2, 4)))


def any_name(rng: random.Random) -> str:
    """A person's name, now and then an unheard one."""
    return rng.choice(words.names) if rng.random() < 0.6 else made_up_word(rng).capitalize()


def with_article(word: str) -> str:
    """The word with its article."""
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def bullets(items: list[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {item}" for item in items)
