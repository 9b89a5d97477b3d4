"""Texts as arrays: embeddings, and a model's hidden state of each token.

Follows OpenAI's embeddings API, and SGLang's `/generate` for hidden states.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from nbgen.errors import InvalidRequest, renamed
from nbgen.notebook import session
from nbgen.notebook.client import Client
from nbgen.notebook.data_frames import values
from nbgen.notebook.display import ProgressLine
from nbgen.notebook.remote import RemoteClient
from nbgen.notebook.request import Prompt, of_adapter
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.tokens import tokenize

T = TypeVar("T")
#: Most texts of one call, and of one call that is answered by the hidden states of all their tokens.
MOST = 256
MOST_STATES = 8
POOLS = {"mean": lambda states: states.mean(axis=0), "last": lambda states: states[-1]}
HIDDEN_STATES = {"sampling_params": {"max_new_tokens": 0}, "return_hidden_states": True}


@short_traceback
def embed(texts: str | Sequence[str], *, pooling: str | None = None, adapter: str = "") -> np.ndarray:
    """The embeddings of texts, float32 `[texts, width]`; of one text `[width]`. Needs an embedding model.

    With any other language model, `pooling` makes them of its hidden states: "mean" is the mean over each text's
    tokens, "last" the state of its last token, neither of them normalised. `adapter` then names a loaded LoRA adapter.
    Needs a server of nbgen or SGLang.
    """
    several = [texts] if isinstance(texts, str) else _listed(texts)
    if not several:
        return np.empty((0, 0), np.float32)
    if "" in several:
        which = "" if isinstance(texts, str) else f" number {several.index('')}, counted from 0,"
        raise InvalidRequest(f"texts: the text{which} is empty", field="texts")
    if pooling not in (None, *POOLS):
        raise InvalidRequest(f"pooling is {' or '.join(map(repr, POOLS))}, got {pooling!r}", field="pooling")
    if adapter and pooling is None:
        words = "adapter goes with a pooling, of any other language model: embedding models take no adapters"
        raise InvalidRequest(words, field="adapter")
    client = session.default_client()
    with _adapter_named():
        if pooling is None or isinstance(client, Client):
            answers = (client.embeddings(body) for body in bodies(several, pooling, adapter))
            found = array([*_watched(answers, len(several), MOST)])
        else:
            states = _watched(_states_of_texts(client, several, adapter), len(several), 1)
            found = np.array([POOLS[pooling](each) for each in states])
    return found[0] if isinstance(texts, str) else found


@short_traceback
def hidden_states(prompt: Prompt, *, adapter: str = "") -> np.ndarray:
    """The hidden state of each token of a text after the model's last layer and norm, float32 `[tokens, width]`.

    A text is taken as it stands; chat messages go through the chat template. `adapter` names a loaded LoRA adapter.
    Needs a server of nbgen or SGLang.
    """
    asked = {"text": prompt} if isinstance(prompt, str) else {"input_ids": tokenize(prompt)}
    with _adapter_named():
        return _states(session.default_client().generate({**asked, **HIDDEN_STATES, **of_adapter(adapter)}))


@contextmanager
def _adapter_named() -> Iterator[None]:
    """Around a call: an error about SGLang's `lora_path` names our option, `adapter`, instead."""
    try:
        yield
    except InvalidRequest as error:
        raise renamed(error, {"lora_path": "adapter"}) from None


def _listed(texts: Any) -> list[str]:
    """The texts as a list. Raises InvalidRequest, which names the first item that is no text."""
    if hasattr(texts, "columns"):  # a DataFrame, which iterates over its columns or their names
        raise InvalidRequest("texts are one column of a DataFrame: choose it, frame[…]", field="texts")
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise InvalidRequest(f"texts are a text or a list of texts, got {type(texts).__name__}", field="texts")
    several = values(texts)
    for place, text in enumerate(several):
        if not isinstance(text, str):
            raise InvalidRequest(f"texts are texts; number {place}, counted from 0, is {text!r:.80}", field="texts")
    return several


def _states_of_texts(client: RemoteClient, texts: Sequence[str], adapter: str) -> Iterator[np.ndarray]:
    """The hidden states of each text, from a server that cannot pool them."""
    for start in range(0, len(texts), MOST_STATES):
        body = {"text": list(texts[start : start + MOST_STATES]), **HIDDEN_STATES, **of_adapter(adapter)}
        yield from map(_states, client.generate(body))


def _watched(found: Iterable[T], texts: int, step: int) -> Iterator[T]:
    """What is found for `step` texts after another. A line shows the progress where there are more than one call's."""
    line = ProgressLine() if texts > MOST else None
    try:
        for count, answer in enumerate(itertools.chain([None], found)):
            if line is not None:
                done = min(count * step, texts)
                line.show(f"{done} of {texts} texts", done / texts)
            if answer is not None:
                yield answer
    finally:
        if line is not None:
            line.clear()


def _states(answer: Any) -> np.ndarray:
    return np.array(answer["meta_info"]["hidden_states"][0], dtype=np.float32)


def bodies(texts: Sequence[str], pooling: str | None = None, adapter: str = "") -> Iterator[dict[str, Any]]:
    """Calls for all texts, in order."""
    pooled = {} if pooling is None else {"pooling": pooling, **of_adapter(adapter)}
    for start in range(0, len(texts), MOST):
        yield {"input": list(texts[start : start + MOST]), "encoding_format": "base64", **pooled}


def array(answers: Sequence[dict[str, Any]]) -> np.ndarray:
    """Float32 `[texts, width]` of the calls' answers."""
    entries = [entry for answer in answers for entry in sorted(answer["data"], key=lambda entry: entry["index"])]
    return np.array([_vector(entry["embedding"]) for entry in entries], dtype=np.float32)


def _vector(written: str | list[float]) -> np.ndarray:
    if isinstance(written, str):
        return np.frombuffer(base64.b64decode(written), "<f4")
    return np.asarray(written, dtype=np.float32)
