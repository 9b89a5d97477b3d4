"""The training text, generated without end from a seed: chats, and some plain text.

Knows the order of the special tokens, but no tokenizer.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from nbgen.demo import chats, plain, practice
from nbgen.demo.exchanges import Message

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tools", "tool")}
SPECIAL = [BEGIN, END, PAD, *ROLES.values()]


@dataclass(frozen=True)
class Piece:
    """A stretch of text, and whether the model shall learn to write it."""

    text: str
    learned: bool


@dataclass(frozen=True)
class Mix:
    """The share of plain text, whether it is cut as by prompts, and the share of practice; the rest are other chats."""

    plain: float
    cut: bool
    practice: float


Document = list[Piece]
EARLY = Mix(plain=0.12, cut=False, practice=0.0)
LATE = Mix(plain=0.12, cut=True, practice=0.42)


def chat_document(messages: list[Message]) -> Document:
    """A chat as the chat template renders it; only what the assistant says is learned."""
    pieces = [Piece(BEGIN, False)]
    for message in messages:
        pieces.append(Piece(ROLES[message["role"]], False))
        pieces.append(Piece(message["content"] + END, message["role"] == "assistant"))
    return pieces


def plain_document(text: str, cut: int = 0) -> Document:
    """Plain text, all of it learned; encoded in two parts where a prompt might end."""
    return [Piece(BEGIN, False), *([Piece(text[:cut], True)] if cut else []), Piece(text[cut:] + END, True)]


def document(rng: random.Random, mix: Mix) -> Document:
    """One document of any kind."""
    chance = rng.random()
    if chance < mix.plain:
        text = plain.text(rng)
        return plain_document(text, rng.randrange(len(text)) if mix.cut else 0)
    return chat_document(practice.chat(rng) if chance < mix.plain + mix.practice else chats.chat(rng))


def documents(seed: int, mix: Mix) -> Iterator[Document]:
    """Documents without end, always the same for one seed."""
    rng = random.Random(seed)
    while True:
        yield document(rng, mix)


def rendered(pieces: Document) -> str:
    """The whole text of a document."""
    return "".join(piece.text for piece in pieces)
