"""Says one question in many ways: frames, openings, synonyms, slips of the finger.

Knows nothing of answers or of which phrasings are held out; `intents.py` draws that line.
"""

import random
import re

from nbgen.demo.wording import wording

say = wording("phrasing")
SYNONYM = re.compile(
    r"\b(" + "|".join(sorted(map(re.escape, say.synonyms), key=len, reverse=True)) + r")\b", re.IGNORECASE
)


def normal(text: str) -> str:
    """The words of a text alone, by which two phrasings are compared."""
    return " ".join(re.findall(r"[\w%/{}+*-]+", text.lower()))


def with_synonyms(text: str, rng: random.Random, share: float) -> str:
    """Some words of the text changed for others that mean the same."""

    def swap(match: re.Match) -> str:
        return rng.choice(say.synonyms[match[0].lower()]) if rng.random() < share else match[0]

    return capitalised(SYNONYM.sub(swap, text))


def capitalised(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def uncapitalised(text: str) -> str:
    """The text as it stands within a sentence."""
    return text if text.startswith("I ") or text[:2].isupper() else text[:1].lower() + text[1:]


def without_fillers(text: str, rng: random.Random) -> str:
    """The text as a hasty writer leaves it, with small words missing."""
    kept = [word for word in text.split() if word.lower().strip("?.,") not in say.fillers or rng.random() < 0.5]
    return " ".join(kept) if len(kept) > 1 else text


def without_a_word(text: str, rng: random.Random) -> str:
    """The text less one word of a longer question."""
    words = text.split()
    if len(words) > 4:
        del words[rng.randrange(len(words))]
    return " ".join(words)


def with_slip(text: str, rng: random.Random) -> str:
    """The text with one letter dropped, doubled or swapped."""
    if len(text) < 6:
        return text
    at = rng.randrange(1, len(text) - 2)
    middle = rng.choice(["", text[at] * 2, text[at + 1] + text[at]])
    return text[:at] + middle + text[at + (2 if len(middle) == 2 and middle[0] == text[at + 1] else 1) :]


def with_frame(text: str, rng: random.Random) -> str:
    """The text with an opening or a closing around it."""
    if rng.random() < 0.7:
        return rng.choice(say.openings) + uncapitalised(text)
    mark = text[-1] if text[-1] in "?.!" else ""
    closing = rng.choice(say.closings)
    return text + closing if closing.endswith(".") else text.rstrip("?.!") + closing + mark


def with_other_marks(text: str, rng: random.Random) -> str:
    """The text in another case or with other marks at its end."""
    if rng.random() < 0.6:
        text = text.rstrip("?.!") + rng.choice(["", "", "", "?", "??", "!", "."])
    chance = rng.random()
    return text.lower() if chance < 0.5 else text.upper() if chance < 0.53 else text


def vary(text: str, rng: random.Random) -> str:
    """The text as another person types it; one time in five as it stands."""
    if rng.random() < 0.2:
        return text
    for change, share in CHANGES:
        if rng.random() < share:
            text = change(text, rng)
    return text


def change_synonyms(text: str, rng: random.Random) -> str:
    """Synonyms with a share drawn for this text."""
    return with_synonyms(text, rng, rng.uniform(0.1, 0.6))


CHANGES = [
    (change_synonyms, 0.45),
    (without_fillers, 0.12),
    (without_a_word, 0.12),
    (with_frame, 0.3),
    (with_slip, 0.1),
    (with_other_marks, 0.5),
]
