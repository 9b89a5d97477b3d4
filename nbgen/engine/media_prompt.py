"""A prompt with images, sounds or videos: its ids with every placeholder expanded, and what its media become.

Plain Python, no tensors of its own making. Knows no model.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbgen.messages import Media


@dataclass(eq=False)
class MediaPrompt:
    """What the samples of one request share.

    `inputs` are the tensors that the model's forward takes besides `ids`; `features` are embeddings that replace
    placeholders as they are, `[tokens, width]` for each modality. `keys` are the ids that a prefix cache sees: where a
    medium stands, they tell its content. The rest is known only after encoding: `encoded` is the encoder's result,
    `shift` is by how much a position of the answer differs from its index, and `blocks` (`start`, `stop`) are tokens
    that see each other in both directions: in all layers, or if `windowed` in those with a sliding window, within it.
    """

    ids: list[int]
    keys: list[int]
    inputs: dict[str, Any]
    features: dict[str, Any] = field(default_factory=dict)
    encoded: Any = None
    shift: int = 0
    blocks: tuple[tuple[int, int], ...] = ()
    windowed: bool = False
    #: How many of the ids stand for media, by their type.
    tokens: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        ids: list[int],
        media: Sequence[Media],
        type_of: Callable[[int], str | None],
        inputs: dict[str, Any],
        features: dict[str, Any] | None = None,
    ) -> "MediaPrompt":
        """The prompt of `ids` with these media; `type_of` gives the type of an id that is a placeholder."""
        tokens = Counter(kind for kind in map(type_of, ids) if kind is not None)
        return cls(ids, keys_of(ids, media, type_of), inputs, features or {}, tokens=dict(tokens))


def keys_of(ids: Sequence[int], media: Sequence[Media], type_of: Callable[[int], str | None]) -> list[int]:
    """The ids, with negative numbers, made from a medium's content, in place of its placeholders (`type_of`).

    Media of a type get a run of placeholders each. Where there are more runs (an image in tiles), each stands for all
    media of that type. Where a type has none (a video whose frames are images), each run of any type stands for all.
    """
    kinds: set[str] = {each.type for each in media}
    digests = {kind: [_digest(each) for each in media if each.type == kind] for kind in kinds}
    runs = [(kind, list(run)) for kind, run in itertools.groupby(range(len(ids)), lambda i: type_of(ids[i]))]
    counts = Counter(kind for kind, _ in runs if kind is not None)
    if not digests.keys() <= counts.keys():
        digests, counts = {kind: [*map(_digest, media)] for kind in counts}, Counter()
    keys, seen = list(ids), dict.fromkeys(digests, 0)
    for kind, run in runs:
        if kind is None or kind not in digests:
            continue
        own = digests[kind]
        content = own[seen[kind]] if counts[kind] == len(own) else hashlib.sha256(b"".join(own)).digest()
        first = int.from_bytes(hashlib.sha256(content + bytes([counts[kind] == len(own)])).digest()[:12])
        seen[kind] += 1
        # Each key tells the run's length as well: in a bidirectional block each token sees the last.
        for offset, index in enumerate(run):
            keys[index] = -1 - ((first << 64) + (len(run) << 32) + offset)
    return keys


def _digest(media: Media) -> bytes:
    """A hash of all that decides what the medium becomes."""
    content = hashlib.sha256(repr((media.type, media.format, sorted(media.options.items()))).encode())
    content.update(media.data)
    for tensor in media.tensors:
        content.update(repr((tensor.name, tensor.datatype, tensor.shape)).encode())
        content.update(tensor.data)
    return content.digest()
