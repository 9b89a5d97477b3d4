"""Documents as tensors: a step's documents sorted by length and padded in a few micro-batches.

Each document weighs as the root of what is to be learned of it, so that stories do not drown the short answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from tokenizers import Tokenizer

from nbgen.demo import corpus

DOCUMENTS = 96
PADDED_TOKENS = 1536
LONGEST = 1024


@dataclass(frozen=True)
class Sample:
    """The ids of one document, and which of them are learned."""

    ids: list[int]
    learned: list[bool]


@dataclass(frozen=True)
class MicroBatch:
    """Input ids [B, T], the places of the tokens to predict [N], those tokens [N] and their weights [N]."""

    ids: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


def sample(pieces: corpus.Document, tokenizer: Tokenizer) -> Sample:
    """One document as ids."""
    encoded = tokenizer.encode_batch([piece.text for piece in pieces], add_special_tokens=False)
    ids = [token for piece in encoded for token in piece.ids]
    learned = [piece.learned for piece, code in zip(pieces, encoded, strict=True) for _ in code.ids]
    return Sample(ids[:LONGEST], learned[:LONGEST])


def grouped(samples: list[Sample]) -> Iterator[list[Sample]]:
    """Samples of similar length, as many together as the padded size allows."""
    group: list[Sample] = []
    for each in sorted(samples, key=lambda one: len(one.ids)):
        if (len(group) + 1) * len(each.ids) > PADDED_TOKENS:
            yield group
            group = []
        group.append(each)
    yield group


def micro_batch(samples: list[Sample]) -> MicroBatch:
    """Samples padded to one length."""
    length = max(len(each.ids) for each in samples)
    ids = torch.zeros(len(samples), length, dtype=torch.long)
    weights = torch.zeros(len(samples), length)
    for row, each in enumerate(samples):
        ids[row, : len(each.ids)] = torch.tensor(each.ids)
        weights[row, : len(each.ids)] = torch.tensor(each.learned) / sum(each.learned) ** 0.5
    places = weights[:, 1:].flatten().nonzero().squeeze(1)
    return MicroBatch(ids[:, :-1], places, ids[:, 1:].flatten()[places], weights[:, 1:].flatten()[places])


def steps(seed: int, mix: corpus.Mix, tokenizer: Tokenizer) -> Iterator[list[MicroBatch]]:
    """The micro-batches of each optimizer step, without end."""
    documents = corpus.documents(seed, mix)
    while True:
        samples = [sample(pieces, tokenizer) for pieces in islice(documents, DOCUMENTS)]
        yield [micro_batch(group) for group in grouped(samples)]
