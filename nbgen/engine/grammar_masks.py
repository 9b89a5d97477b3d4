"""The masks of a step: which tokens each constrained sequence may take, filled while the model computes.

Sequences without a grammar are never touched, and a batch that has none costs nothing.
"""

import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Literal

import numpy as np
import torch

from nbgen.engine.backends import has_kernels
from nbgen.engine.sequence import Sequence
from nbgen.engine.upload import upload

#: Tokens to a word of a bitmask.
WORD = 32

log = logging.getLogger(__name__)


class GrammarMasks:
    """Fills masks in a thread of its own between `start` and `apply`; matchers release the GIL meanwhile."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._constrained: list[Sequence] = []
        self._filled: Future[torch.Tensor] | None = None

    def start(self, sequences: list[Sequence]) -> None:
        """Begin to fill the masks of the sequences that the step samples."""
        self._constrained = [sequence for sequence in sequences if sequence.matcher is not None]
        if self._constrained:
            self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="grammar-masks")
            self._filled = self._pool.submit(_fill, self._constrained)

    def close(self) -> None:
        """End the thread, if it ever began."""
        if self._pool is not None:
            self._pool.shutdown()

    @torch.inference_mode()
    def apply(self, scores: torch.Tensor, sequences: list[Sequence]) -> None:
        """Set float32 `scores` `[rows, vocab]` to -inf where a row's grammar forbids the token, in place.

        Masks of guesses that were not computed after all have no row, and are left out.
        """
        if not self._constrained:
            return
        assert self._filled is not None
        places = {sequence: row for row, sequence in enumerate(sequences)}
        kept = [index for index, sequence in enumerate(self._constrained) if sequence in places]
        rows = [places[self._constrained[index]] for index in kept]
        filled = self._filled.result()
        _apply(scores, upload(filled if len(kept) == len(filled) else filled[kept], scores.device), rows)

    def forget(self) -> None:
        """Wait until masks that nobody will apply are filled, and let go of them and their sequences."""
        if self._filled is not None:
            wait([self._filled])
        self._constrained, self._filled = [], None


def _fill(sequences: list[Sequence]) -> torch.Tensor:
    """Bitmasks `[sequences, words]`, the rows in order."""
    matchers = [sequence.matcher for sequence in sequences if sequence.matcher is not None]
    bitmask = torch.zeros((len(sequences), matchers[0].num_words), dtype=torch.int32)
    for row, (sequence, matcher) in enumerate(zip(sequences, matchers, strict=True)):
        try:
            matcher.fill(bitmask, row, sequence.guessed)
            if sequence.unsaid:
                bitmask[row] &= _said(sequence.unsaid, matcher.num_words)
        except Exception:  # whatever a back end raises is this request's alone: it may take no token
            log.exception("request %s: its grammar allows nothing", sequence.rid)
            bitmask[row] = 0
    return bitmask


@lru_cache(maxsize=64)
def _said(unsaid: frozenset[int], num_words: int) -> torch.Tensor:
    """The bitmask `[words]` of all other tokens."""
    said = np.ones(num_words * WORD, dtype=bool)
    said[list(unsaid)] = False
    return torch.from_numpy(np.packbits(said, bitorder="little").view(np.int32))


def _apply(scores: torch.Tensor, bitmask: torch.Tensor, rows: list[int]) -> None:
    from xgrammar import apply_token_bitmask_inplace  # its kernels serve the masks of every back end

    known = min(scores.shape[-1], bitmask.shape[-1] * WORD)
    full = torch.zeros((len(scores), bitmask.shape[-1]), dtype=torch.int32, device=bitmask.device)
    places = upload(rows, scores.device)
    full[places] = bitmask
    apply_token_bitmask_inplace(scores, full, vocab_size=known, indices=rows, backend=_backend(scores.device))
    scores[:, known:].index_fill_(0, places, float("-inf"))


def _backend(device: torch.device) -> Literal["auto", "torch_native"]:
    """The xgrammar kernel to use: xgrammar itself would choose Triton on a GPU, which does not run on every GPU."""
    return "torch_native" if device.type == "cuda" and not has_kernels(device) else "auto"
