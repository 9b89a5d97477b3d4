"""Log-probabilities in OpenAI's two shapes: a chat's tokens with their bytes, a completion's with their text offsets.

Follows OpenAI's API reference. Knows nothing of streams.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping
from typing import Any

from nbgen.messages import Logprob, TokenLogprobs

#: Most characters that a tokenizer may drop between two tokens of a prompt, such as the space before a word.
DROPPED = 8
#: OpenAI's value for an impossible token: its clients take numbers only, and JSON has no infinity.
IMPOSSIBLE = -9999.0


def chat_logprobs(entries: Iterable[TokenLogprobs]) -> dict[str, Any]:
    """For a chat's tokens. `bytes` is None for a part of a character, unless the vocabulary tells its bytes."""
    return {
        "content": [
            {**_token(e.token, e.raw), "top_logprobs": [_token(t, e.raw) for t in _possible(e)]} for e in entries
        ]
    }


def completion_logprobs(entries: list[TokenLogprobs], offsets: list[int]) -> dict[str, Any]:
    """For a completion's tokens, with the offset of each in its text."""
    return {
        "text_offset": offsets,
        "tokens": [entry.token[2] for entry in entries],
        "token_logprobs": [_number(entry.token[0]) for entry in entries],
        "top_logprobs": [_top(entry) if entry.top else None for entry in entries],
    }


def prompt_offsets(text: str, entries: list[TokenLogprobs]) -> list[int]:
    """Offsets of the prompt's tokens in its text.

    All parts of a character have its offset. Tokens that are not in the text have no length: those that the tokenizer
    added, and special ones that the text leaves out.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    end, offsets = 0, []
    for entry in entries:
        _, id, own = entry.token
        written = entry.raw.get(id) or (own or "").encode()
        if written and not 0x80 <= written[0] < 0xC0:  # it begins a character, so one before it stays incomplete
            end += len(decoder.decode(b"", final=True))
        word = decoder.decode(written)
        begin = text.find(word, end, end + len(word) + DROPPED) if word else -1
        offsets.append(end if begin < 0 else begin)
        end = end if begin < 0 else begin + len(word)
    return offsets


def _token(logprob: Logprob, raw: Mapping[int, bytes]) -> dict[str, Any]:
    value, id, text = logprob
    own = raw.get(id) if "\ufffd" in (text or "") else (text or "").encode()
    return {"token": text, "bytes": None if own is None else list(own), "logprob": _number(value)}


def _top(entry: TokenLogprobs) -> dict[str | None, float | None]:
    """Log-probabilities by token text: of the likeliest tokens, and of the actual one, which need not be among them.

    Parts of characters share one text. It gets the highest value, so that no other token seems to be the best.
    """
    value, _, own = entry.token
    found: dict[str | None, float | None] = {}
    for number, _, text in _possible(entry):
        found.setdefault(text, number)
    found.setdefault(own, _number(value))
    return found


def _possible(entry: TokenLogprobs) -> list[Logprob]:
    """The likeliest tokens without those that a grammar or another option makes impossible."""
    return [each for each in entry.top or () if each[0] is not None and math.isfinite(each[0])]


def _number(value: float | None) -> float | None:
    """The value as OpenAI has it; None stays, for a token that nothing precedes."""
    return None if value is None else max(IMPOSSIBLE, value)
