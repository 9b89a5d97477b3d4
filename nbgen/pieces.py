"""Cuts large tensors and files into `TensorPiece`s to send between processes, and joins them again.

The pieces are sent before the message that they belong to, so that no large frame delays the messages behind it.
Log-probabilities likewise go ahead in outputs of their own. Knows no sockets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from nbgen.messages import GenerateOutput, GenerateRequest, Media, Tensor, TensorPiece

#: Bytes of a tensor in one frame, so that no frame delays the messages behind it.
PIECE_BYTES = 2**21
#: Log-probabilities in one frame, for the same reason; the reader's objects cost more than their bytes.
PIECE_LOGPROBS = 2**16


def cut(rid: str, name: str, data: memoryview) -> tuple[list[TensorPiece], memoryview]:
    """All but the end of `data` as pieces, and the end."""
    starts = range(0, len(data) - PIECE_BYTES, PIECE_BYTES)
    pieces = [TensorPiece(rid=rid, name=name, data=data[at : at + PIECE_BYTES]) for at in starts]
    return pieces, data[len(pieces) * PIECE_BYTES :]


def cut_tensor(rid: str, tensor: Tensor) -> tuple[list[TensorPiece], Tensor]:
    """As `cut`, for one of a message's tensors."""
    pieces, end = cut(rid, tensor.name, tensor.data)
    return pieces, msgspec.structs.replace(tensor, data=end)


def cut_request(request: GenerateRequest) -> tuple[list[TensorPiece], GenerateRequest]:
    """The pieces to send ahead of a request, and the rest of the request."""
    pieces: list[TensorPiece] = []

    def shorten(name: str, data: memoryview) -> memoryview:
        ahead, end = cut(request.rid, name, data)
        pieces.extend(ahead)
        return end

    return pieces, _each(request, shorten)


def cut_output(output: GenerateOutput) -> list[GenerateOutput]:
    """The output, preceded by others that hold the prompt's log-probabilities except the last ones."""
    rows = output.prompt_logprobs
    widest = max((1 + len(row.top or ()) + len(row.chosen or ()) for row in rows[-1:]), default=1)
    step = max(1, PIECE_LOGPROBS // widest)
    ahead = [
        GenerateOutput(rid=output.rid, index=output.index, prompt_logprobs=rows[at : at + step])
        for at in range(0, len(rows) - step, step)
    ]
    return [*ahead, msgspec.structs.replace(output, prompt_logprobs=rows[len(ahead) * step :])]


class Pieces:
    """Keeps the pieces that have arrived until the message comes that they belong to."""

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
    """The request, with each of its large parts replaced by `change(name of the part, its data)`."""

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
