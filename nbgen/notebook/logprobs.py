"""The log-probability of each token of a text: as a table, as plain values and as a heat map.

Reads the lists of SGLang's `/generate`. Knows nothing of how they were fetched.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import Any, NamedTuple

from nbgen.errors import NbgenError
from nbgen.notebook.data_frames import import_pandas
from nbgen.notebook.shared_characters import BROKEN, completed
from nbgen.notebook.shown_text import counted, visible
from nbgen.notebook.table import NO_MATHS

#: Largest mean surprise whose exponential, the perplexity, is still a finite float.
MOST_SURPRISE = 700.0
#: Most tokens of a heat map: a page takes long to draw more.
MOST_SHOWN = 4000

#: What a heat map shows for a token without text of its own.
THIN = "\u2009"
#: Most lists of ids that one call of `/detokenize` takes.
MOST = 256
#: Calls `/detokenize` with a body, and returns its answer.
Detokenize = Callable[[dict[str, Any]], dict[str, Any]]


class Alternative(NamedTuple):
    """One of the likeliest tokens at a place. Several may have the same text, but not the same id."""

    text: str
    id: int
    logprob: float

    @property
    def probability(self) -> float:
        """0 to 1."""
        return math.exp(self.logprob)


class Token(NamedTuple):
    """One token. `logprob` is a natural logarithm, None for the first; `top` are the likeliest tokens at its place.

    `piece` takes the place of `text` where tokens share a character, which comes with the last of these tokens.
    """

    text: str
    id: int
    logprob: float | None
    generated: bool
    top: list[Alternative]
    piece: str | None = None

    @property
    def written(self) -> str:
        """The token's part of the whole text."""
        return self.text if self.piece is None else self.piece

    @property
    def probability(self) -> float | None:
        """0 to 1."""
        return None if self.logprob is None else math.exp(self.logprob)


class Logprobs(Sequence[Token]):
    """The tokens of a prompt and of its continuation, in order."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens

    @classmethod
    def read(cls, answer: dict[str, Any], generated: bool, detokenize: Detokenize) -> Logprobs:
        """From an answer of `/generate`, with the tokens that it `generated` or without."""
        meta = answer["meta_info"]
        tokens = [*_tokens(meta, "input", False), *(_tokens(meta, "output", True) if generated else ())]
        with suppress(NbgenError):  # servers of other kinds may not have it
            tokens = _with_pieces(tokens, detokenize)
        return cls(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, place: Any) -> Any:
        return Logprobs(self._tokens[place]) if isinstance(place, slice) else self._tokens[place]

    @property
    def text(self) -> str:
        """The text of all tokens."""
        return "".join(token.written for token in self)

    @property
    def generated(self) -> Logprobs:
        """Only what the model wrote."""
        return Logprobs([token for token in self if token.generated])

    @property
    def total(self) -> float:
        """The log-probability of the text given its first token."""
        return sum(token.logprob for token in self if token.logprob is not None)

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability: 1 for a text of which the model was certain."""
        counted = [token.logprob for token in self if token.logprob is not None]
        surprise = -sum(counted) / len(counted) if counted else math.nan
        return math.inf if surprise > MOST_SURPRISE else math.exp(surprise)

    def to_df(self) -> Any:
        """A pandas DataFrame with a row for each token; `top` holds (text, id, probability) of the likeliest tokens."""
        pandas = import_pandas("to_df")
        rows = [
            {
                "token": token.text,
                "id": token.id,
                "logprob": token.logprob,
                "probability": token.probability,
                "generated": token.generated,
                "top": [(other.text, other.id, other.probability) for other in token.top],
            }
            for token in self
        ]
        columns = ["token", "id", "logprob", "probability", "generated", "top"]
        return pandas.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'token')}, log-probability {self.total:.2f}, perplexity {self.perplexity:.2f}>"

    def _repr_html_(self) -> str:
        """The text, each token coloured by how likely it was, with the alternatives in its tooltip. A long text is cut
        off after `MOST_SHOWN` tokens.
        """
        spans = "".join(_span(token) for token in self._tokens[:MOST_SHOWN])
        scale = "".join(
            f'<span style="{_colour(share)}">&nbsp;{share:.0%}&nbsp;</span>' for share in (1, 0.5, 0.1, 0.01)
        )
        note = f"{counted(len(self), 'token')} · perplexity {self.perplexity:.2f} · probability {scale}"
        if len(self) > MOST_SHOWN:
            note = f"the first {MOST_SHOWN} of {note} · to_df() has all"
        return (
            f'<div class="{NO_MATHS}" style="line-height: 1.9; white-space: pre-wrap">{spans}</div>'
            f'<div style="opacity: 0.8; font-size: 85%">{note}</div>'
        )


def _tokens(meta: dict[str, Any], side: str, generated: bool) -> Iterator[Token]:
    entries = meta.get(f"{side}_token_logprobs") or []
    tops = meta.get(f"{side}_top_logprobs") or [None] * len(entries)
    for (logprob, id, text), top in zip(entries, tops, strict=True):
        alternatives = [
            Alternative(str(other), its_id, value) for value, its_id, other in top or () if value is not None
        ]
        yield Token(text or "", id, logprob, generated, alternatives)


def _with_pieces(tokens: list[Token], detokenize: Detokenize) -> list[Token]:
    """The tokens, each with its `piece` where several of them make a character together."""
    runs = [list(run) for broken, run in groupby(range(len(tokens)), lambda at: BROKEN in tokens[at].text) if broken]

    def decode(ids: list[list[int]]) -> list[str]:
        parts = [ids[start : start + MOST] for start in range(0, len(ids), MOST)]
        return [text for part in parts for text in detokenize({"tokens": part})["text"]]

    pieces = completed([[tokens[at].id for at in run] for run in runs], decode)
    found = dict(zip(chain.from_iterable(runs), chain.from_iterable(pieces), strict=True))
    return [token._replace(piece=found.get(at)) for at, token in enumerate(tokens)]


def _span(token: Token) -> str:
    named = {token.id: _shown(token.text)} | {other.id: _shown(other.text) for other in token.top}
    lines = [f"{_named(token.id, named)}: {_percent(token.probability)}"]
    lines += [f"{_named(other.id, named)}: {_percent(other.probability)}" for other in token.top]
    weight = "font-weight: 600; " if token.generated else ""
    title = html.escape("\n".join(lines))
    text = html.escape(visible(token.written) or THIN).replace("\n", "↵\n")
    return f'<span style="{weight}{_colour(token.probability)}" title="{title}">{text}</span>'


def _named(id: int, texts: dict[int, str]) -> str:
    """The token's text, with its id where others of these have the same text."""
    alike = list(texts.values()).count(texts[id]) > 1
    return f"{texts[id]} (id {id})" if alike else texts[id]


def _colour(probability: float | None) -> str:
    """From clear (certain) to red (surprising), by surprise in bits; readable on a light and a dark page."""
    bits = 0.0 if probability is None else -math.log2(max(probability, 1e-9))
    return f"background: rgba(225, 87, 60, {min(bits / 8, 1) * 0.75:.2f}); border-radius: 3px"


def _shown(text: str) -> str:
    return repr(visible(text))


def _percent(probability: float | None) -> str:
    return "?" if probability is None else f"{probability:.1%}"
