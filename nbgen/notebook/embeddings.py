"""Embeddings as arrays: the calls that ask for them, and what they answer. Follows OpenAI's embeddings API."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

#: Texts of one call.
MOST = 256


def bodies(texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Calls for all texts, in order."""
    for start in range(0, len(texts), MOST):
        yield {"input": list(texts[start : start + MOST]), "encoding_format": "base64"}


def array(answers: Sequence[dict[str, Any]]) -> np.ndarray:
    """Float32 `[texts, width]` of the calls' answers."""
    entries = [entry for answer in answers for entry in sorted(answer["data"], key=lambda entry: entry["index"])]
    return np.array([_vector(entry["embedding"]) for entry in entries], dtype=np.float32)


def _vector(written: str | list[float]) -> np.ndarray:
    if isinstance(written, str):
        return np.frombuffer(base64.b64decode(written), "<f4")
    return np.asarray(written, dtype=np.float32)
