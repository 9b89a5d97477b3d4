"""Log-probabilities as a request asked for them, from rows of logits.

Those of output tokens are from the logits that were sampled from (after penalties, bias and temperature, before top-k
and top-p); those of prompt tokens are from the model's own. So does SGLang 0.5.23. Those of output tokens come to the
host with the tokens. Knows no protocols.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import torch

from nbgen.engine.detokenizer import REPLACEMENT
from nbgen.engine.draws import temperature
from nbgen.engine.sequence import LOGPROB_CHUNK, Sequence
from nbgen.engine.tokenizer import Tokenizer
from nbgen.engine.upload import upload
from nbgen.messages import Logprob, LogprobOptions, TokenLogprobs


class Numbers(NamedTuple):
    """Log-probabilities of positions' own tokens `[n]`, of the likeliest ones and of chosen ones `[n, tokens]`."""

    own: torch.Tensor
    top: torch.Tensor | None
    top_ids: torch.Tensor | None
    chosen: torch.Tensor | None

    @classmethod
    def of(cls, scores: torch.Tensor, tokens: torch.Tensor, options: LogprobOptions) -> "Numbers":
        """From `scores` `[n, vocab]` for `tokens` `[n]`; a negative token's own log-probability is meaningless."""
        logprobs = torch.log_softmax(scores.float(), dim=-1)
        own = logprobs.gather(-1, tokens.clamp(min=0)[:, None])[:, 0]
        top, top_ids = logprobs.topk(min(options.top, logprobs.shape[-1]), dim=-1) if options.top else (None, None)
        chosen = logprobs[:, upload(options.token_ids, logprobs.device)] if options.token_ids else None
        return cls(own, top, top_ids, chosen)

    def sent(self) -> "Numbers":
        """The same on the host, once the device has made the copy, which is not waited for."""
        return Numbers._make(each if each is None else each.to("cpu", non_blocking=True) for each in self)

    def at(self, i: int, top: int) -> "Numbers":
        """Those of position `i` alone, with the `top` likeliest tokens."""
        part = slice(i, i + 1)
        values = None if self.top is None or not top else self.top[part, :top]
        ids = None if self.top_ids is None or not top else self.top_ids[part, :top]
        return Numbers(self.own[part], values, ids, None if self.chosen is None else self.chosen[part])


def output_numbers(sequences: list[Sequence], scores: torch.Tensor, tokens: torch.Tensor) -> list[Numbers | None]:
    """For each sequence that asks: those of its token of `tokens` `[rows]`, sampled from adjusted `scores`.

    `scores` is `[rows, vocab]`. The numbers are on their way to the host, and there before any tensor sent later.
    """
    found: list[Numbers | None] = [None] * len(sequences)
    for rows in _alike(sequences):
        asked = [sequences[row].logprobs or LogprobOptions() for row in rows]
        together = LogprobOptions(top=max(options.top for options in asked), token_ids=asked[0].token_ids)
        own, chosen = scores, tokens
        if len(rows) < len(sequences):
            places = upload(rows, scores.device)
            own, chosen = scores[places], tokens[places]
        numbers = Numbers.of(_scaled(own, [sequences[row] for row in rows]), chosen, together).sent()
        for i, (row, options) in enumerate(zip(rows, asked, strict=True)):
            found[row] = numbers.at(i, options.top)
    return found


def _alike(sequences: list[Sequence]) -> Iterator[list[int]]:
    """Groups of rows that ask for the same chosen tokens, `LOGPROB_CHUNK` rows at a time."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, sequence in enumerate(sequences):
        if sequence.logprobs is not None:
            rows.setdefault(tuple(sequence.logprobs.token_ids), []).append(row)
    for own in rows.values():
        yield from (own[first : first + LOGPROB_CHUNK] for first in range(0, len(own), LOGPROB_CHUNK))


def _scaled(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """`scores` divided by the temperature of each row's sequence."""
    divisors = [1.0 if s.params.greedy else temperature(s) for s in sequences]
    if set(divisors) == {1.0}:
        return scores
    return scores / upload(divisors, scores.device, scores.dtype)[:, None]


class Logprobs:
    """Makes the messages that describe positions' log-probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def output(self, sequence: Sequence, token: int, numbers: Numbers | None) -> list[TokenLogprobs]:
        """The log-probabilities of a sampled token; empty if the request did not ask."""
        if (options := sequence.logprobs) is None or numbers is None:
            return []
        if options.start == sequence.num_prompt - 1 and not sequence.prompt_logprobs:  # for which nothing is computed
            sequence.prompt_logprobs.append(self._unknown(sequence.prompt_ids[-1], options))
        (found,) = self._describe(numbers, [token], options)
        return [msgspec.structs.replace(found, offset=sequence.detokenizer.place(token)) if options.text else found]

    def prompt(self, sequence: Sequence, position: int, scores: torch.Tensor) -> None:
        """Add those of the prompt tokens after `position`, from the model's `scores` `[rows, vocab]` from there on.

        Rows before the first that the request asks for were computed for something else, and are skipped.
        """
        options, skipped = sequence.logprobs, max(0, sequence.next_logprob_row - position)
        if options is None or skipped >= len(scores):
            return
        position, scores = position + skipped, scores[skipped:]
        if not sequence.prompt_logprobs:
            sequence.prompt_logprobs.append(self._unknown(sequence.prompt_ids[position], options))
        following = sequence.prompt_ids[position + 1 : position + 1 + len(scores)]
        numbers = Numbers.of(scores, upload(following, scores.device, torch.long), options)
        sequence.prompt_logprobs += self._describe(numbers, following, options)

    def _unknown(self, token: int, options: LogprobOptions) -> TokenLogprobs:
        return self._described((None, token, self._text(token, options)), None, None)

    def _describe(self, numbers: Numbers, tokens: list[int], options: LogprobOptions) -> list[TokenLogprobs]:
        top = self._rows(numbers.top, None if numbers.top_ids is None else numbers.top_ids.tolist(), options)
        chosen = self._rows(numbers.chosen, [options.token_ids] * len(tokens), options)
        return [
            self._described((value, token, self._text(token, options)), _at(top, i), _at(chosen, i))
            for i, (value, token) in enumerate(zip(numbers.own.tolist(), tokens, strict=True))
        ]

    def _rows(
        self, values: torch.Tensor | None, ids: list[list[int]] | None, options: LogprobOptions
    ) -> list[list[Logprob]] | None:
        if values is None or ids is None:
            return None
        return [self._entries(*row, options) for row in zip(values.tolist(), ids, strict=True)]

    def _entries(self, values: list[float], ids: list[int], options: LogprobOptions) -> list[Logprob]:
        return [(value, token, self._text(token, options)) for value, token in zip(values, ids, strict=True)]

    def _text(self, token: int, options: LogprobOptions) -> str | None:
        return self._tokenizer.token_text(token) if options.text else None

    def _described(self, token: Logprob, top: list[Logprob] | None, chosen: list[Logprob] | None) -> TokenLogprobs:
        if token[2] is None:
            return TokenLogprobs(token, top, chosen)
        parts = {id for _, id, text in (token, *(top or ()), *(chosen or ())) if REPLACEMENT in (text or "")}
        known = {id: found for id in parts if (found := self._tokenizer.token_bytes(id)) is not None}
        return TokenLogprobs(token, top, chosen, raw=known)


def _at(rows: list[list[Logprob]] | None, i: int) -> list[Logprob] | None:
    return rows[i] if rows else None
