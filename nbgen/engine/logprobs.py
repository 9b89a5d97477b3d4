"""Log-probabilities as a request asked for them, from rows of scores.

Output tokens get those of the scores that were sampled from (penalties, bias and temperature in, top-k and top-p
not); prompt tokens the model's own. So does SGLang 0.5.23. Knows neither batches nor wires.
"""

from collections.abc import Callable

import torch

from nbgen.engine.sequence import Sequence
from nbgen.messages import Logprob, LogprobOptions, TokenLogprobs

DecodeToken = Callable[[int], str]


class Logprobs:
    """Describes positions; `decode` gives the text of one token."""

    def __init__(self, decode: DecodeToken) -> None:
        self._decode = decode

    def output(self, sequence: Sequence, scores: torch.Tensor, row: int, token: int) -> list[TokenLogprobs]:
        """Of a sampled token, from its row of the adjusted scores `[rows, vocab]`; empty if nobody asked."""
        if sequence.logprobs is None:
            return []
        temperature = 1.0 if sequence.params.greedy else float(sequence.params.temperature or 1.0)
        return self._describe(scores[row : row + 1] / temperature, [token], sequence.logprobs)

    def prompt(self, sequence: Sequence, position: int, scores: torch.Tensor) -> None:
        """Add those of the prompt tokens after `position` and on, from the model's scores `[rows, vocab]` there.

        Rows before the first that is asked for were computed for something else.
        """
        options, skipped = sequence.logprobs, max(0, sequence.next_logprob_row - position)
        if options is None or skipped >= len(scores):
            return
        position, scores = position + skipped, scores[skipped:]
        if not sequence.prompt_logprobs:
            sequence.prompt_logprobs.append(self._unknown(sequence.prompt_ids[position], options))
        following = sequence.prompt_ids[position + 1 : position + 1 + len(scores)]
        sequence.prompt_logprobs += self._describe(scores, following, options)

    def last_alone(self, sequence: Sequence) -> None:
        """Where only the prompt's last token is asked for, nothing is computed for it."""
        options = sequence.logprobs
        if options and options.start == sequence.num_prompt - 1 and not sequence.prompt_logprobs:
            sequence.prompt_logprobs.append(self._unknown(sequence.prompt_ids[-1], options))

    def _unknown(self, token: int, options: LogprobOptions) -> TokenLogprobs:
        return TokenLogprobs((None, token, self._text(token, options)))

    def _describe(self, scores: torch.Tensor, tokens: list[int], options: LogprobOptions) -> list[TokenLogprobs]:
        logprobs = torch.log_softmax(scores.float(), dim=-1)
        own = logprobs.gather(-1, torch.tensor(tokens, device=scores.device)[:, None])[:, 0].tolist()
        top, chosen = self._top(logprobs, options), self._chosen(logprobs, options)
        return [
            TokenLogprobs((value, token, self._text(token, options)), likeliest, picked)
            for value, token, likeliest, picked in zip(own, tokens, top, chosen, strict=True)
        ]

    def _top(self, logprobs: torch.Tensor, options: LogprobOptions) -> list[list[Logprob] | None]:
        if not options.top:
            return [None] * len(logprobs)
        values, ids = logprobs.topk(min(options.top, logprobs.shape[-1]), dim=-1)
        return [self._entries(*row, options) for row in zip(values.tolist(), ids.tolist(), strict=True)]

    def _chosen(self, logprobs: torch.Tensor, options: LogprobOptions) -> list[list[Logprob] | None]:
        if not options.token_ids:
            return [None] * len(logprobs)
        values = logprobs[:, options.token_ids].tolist()
        return [self._entries(row, options.token_ids, options) for row in values]

    def _entries(self, values: list[float], ids: list[int], options: LogprobOptions) -> list[Logprob]:
        return [(value, token, self._text(token, options)) for value, token in zip(values, ids, strict=True)]

    def _text(self, token: int, options: LogprobOptions) -> str | None:
        return self._decode(token) if options.text else None
