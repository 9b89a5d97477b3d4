"""Large numbers and files on their way between processes: cut into `TensorPiece`s, and put together again.

What is large goes ahead of the message it belongs to, piece by piece, so that no frame holds up what is behind it; so
do log-probabilities, in messages of the same kind. Knows no sockets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from nbgen.messages import GenerateOutput, GenerateRequest, Media, Tensor, TensorPiece

#: Bytes of a tensor that travel in one frame, so that none holds up what is behind it.
PIECE_BYTES = 2**21
#: Likewise, and what their reader makes of each costs more than its bytes.
PIECE_LOGPROBS = 2**16


def cut(rid: str, name: str, data: memoryview) -> tuple[list[TensorPiece], memoryview]:
    """The pieces of all but the end of `data`, and its end."""
    starts = range(0, len(data) - PIECE_BYTES, PIECE_BYTES)
    pieces = [TensorPiece(rid=rid, name=name, data=data[at : at + PIECE_BYTES]) for at in starts]
    return pieces, data[len(pieces) * PIECE_BYTES :]


def cut_tensor(rid: str, tensor: Tensor) -> tuple[list[TensorPiece], Tensor]:
    """The same of one of a message's tensors."""
    pieces, end = cut(rid, tensor.name, tensor.data)
    return pieces, msgspec.structs.replace(tensor, data=end)


def cut_request(request: GenerateRequest) -> tuple[list[TensorPiece], GenerateRequest]:
    """The pieces that go ahead of a request, and what is left of it."""
    pieces: list[TensorPiece] = []

    def shorten(name: str, data: memoryview) -> memoryview:
        ahead, end = cut(request.rid, name, data)
        pieces.extend(ahead)
        return end

    return pieces, _each(request, shorten)


def cut_output(output: GenerateOutput) -> list[GenerateOutput]:
    """The output, after others that have all of the prompt's log-probabilities but the last."""
    rows = output.prompt_logprobs
    widest = max((1 + len(row.top or ()) + len(row.chosen or ()) for row in rows[-1:]), default=1)
    step = max(1, PIECE_LOGPROBS // widest)
    ahead = [
        GenerateOutput(rid=output.rid, index=output.index, prompt_logprobs=rows[at : at + step])
        for at in range(0, len(rows) - step, step)
    ]
    return [*ahead, msgspec.structs.replace(output, prompt_logprobs=rows[len(ahead) * step :])]


class Pieces:
    """Those that have arrived, until the message comes that they belong to."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, list[memoryview]]] = defaultdict(lambda: defaultdict(list))

    def add(self, piece: TensorPiece) -> None:
        """Keep a piece."""
        self._kept[piece.rid][piece.name].append(piece.data)

    def drop(self, rid: str) -> None:
        """Forget a message's pieces: it will not come."""
        self._kept.pop(rid, None)

    def complete(self, request: GenerateRequest) -> GenerateRequest:
        """The request, whole again."""
        kept = self._kept.pop(request.rid, None)
        return request if kept is None else _each(request, lambda name, end: _join(kept, name, end))

    def complete_tensors(self, rid: str, tensors: list[Tensor]) -> list[Tensor]:
        """A message's tensors, whole again."""
        kept = self._kept.pop(rid, None)
        if kept is None:
            return tensors
        return [msgspec.structs.replace(tensor, data=_join(kept, tensor.name, tensor.data)) for tensor in tensors]


def _join(kept: dict[str, list[memoryview]], name: str, end: memoryview) -> memoryview:
    return memoryview(b"".join((*kept[name], end))) if name in kept else end


def _each(request: GenerateRequest, change: Callable[[str, memoryview], memoryview]) -> GenerateRequest:
    """The request with each of its large parts, which have names here, as `change` makes it."""

    def tensor(name: str, given: Tensor) -> Tensor:
        return msgspec.structs.replace(given, data=change(name, given.data))

    def media(at: int, given: Media) -> Media:
        tensors = [tensor(f"media.{at}.{each.name}", each) for each in given.tensors]
        return msgspec.structs.replace(given, data=change(f"media.{at}", given.data), tensors=tensors)

    embeds = request.input_embeds
    return msgspec.structs.replace(
        request,
        input_embeds=None if embeds is None else tensor("input_embeds", embeds),
        media=[media(at, each) for at, each in enumerate(request.media)],
    )
