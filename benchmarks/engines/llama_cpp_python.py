"""llama.cpp through llama-cpp-python's low-level calls: all prompts as sequences of one context, greedy.

Every prompt is computed whole: llama.cpp keeps prefixes per slot of its server, not between sequences that arrive
together.
"""

import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import numpy

from benchmarks.child import Generate, serve
from benchmarks.engines import gguf_file

BATCH_TOKENS, MICRO_BATCH_TOKENS = 2048, 512
SEQUENCES = 16
CONTEXT_TOKENS = 20_480


class Row(NamedTuple):
    """A token of a sequence, and whether its scores are wanted."""

    sequence: int
    position: int
    token: int
    scored: bool


class Context:
    """One model with a cache for `SEQUENCES` sequences."""

    def __init__(self, file: Path, threads: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max, settings.kv_unified = CONTEXT_TOKENS, SEQUENCES, True
        settings.n_batch, settings.n_ubatch = BATCH_TOKENS, MICRO_BATCH_TOKENS
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def decode(self, rows: Iterable[Row]) -> dict[int, int]:
        """Compute all rows; the likeliest next token of each sequence with a scored row."""
        rows, chosen = iter(rows), {}
        while chunk := list(islice(rows, BATCH_TOKENS)):
            self._fill(chunk)
            if llama_cpp.llama_decode(self._context, self._batch):
                raise RuntimeError("llama_decode failed")
            for index, row in enumerate(chunk):
                if row.scored:
                    chosen[row.sequence] = self._likeliest(index)
        return chosen

    def _fill(self, rows: list[Row]) -> None:
        batch: Any = self._batch
        batch.n_tokens = len(rows)
        for index, row in enumerate(rows):
            batch.token[index], batch.pos[index], batch.logits[index] = row.token, row.position, row.scored
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, row.sequence

    def _likeliest(self, index: int) -> int:
        scores = llama_cpp.llama_get_logits_ith(self._context, index)
        return int(numpy.ctypeslib.as_array(scores, shape=(self._vocab,)).argmax())


def load(folder: Path, threads: int) -> Generate:
    context = Context(gguf_file.converted(folder, sys.argv[3]), threads)

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        context.clear()
        length = len(prompts[0])
        tokens = context.decode(
            Row(index, position, token, position == length - 1)
            for index, ids in enumerate(prompts)
            for position, token in enumerate(ids)
        )
        answers = [[tokens[index]] for index in range(len(prompts))]
        for position in range(length, length + new - 1):
            tokens = context.decode(Row(index, position, token, True) for index, token in tokens.items())
            for index, token in tokens.items():
                answers[index].append(token)
        return answers

    return generate


if __name__ == "__main__":
    serve(load)
