"""What is cut on one side of the channel is whole on the other."""

import random

from nbgen.messages import GenerateRequest, Media, Tensor
from nbgen.pieces import PIECE_BYTES, Pieces, cut_request

LARGE = memoryview(random.Random(1).randbytes(2 * PIECE_BYTES + 5))


def embeds(data: memoryview) -> Tensor:
    return Tensor(name="input_embeds", datatype="FP32", shape=(len(data) // 4, 1), data=data)


def request() -> GenerateRequest:
    pixels = Tensor(name="pixel_values", datatype="FP32", shape=(1,), data=LARGE[1:])
    grid = Tensor(name="image_grid_thw", datatype="INT64", shape=(1, 3), data=memoryview(b"\1" * 24))
    media = [
        Media(type="image", data=LARGE),
        Media(type="image", format="processor_output", tensors=[pixels, grid]),
        Media(type="audio", data=LARGE[: PIECE_BYTES + 1], options={"rate": 3}),
    ]
    return GenerateRequest(rid="r", input_embeds=embeds(LARGE[:-1]), media=media)


def test_a_cut_request_is_completed_by_its_pieces_in_any_company() -> None:
    asked, kept = request(), Pieces()
    pieces, rest = cut_request(asked)
    assert all(len(piece.data) == PIECE_BYTES for piece in pieces)
    assert len(rest.media[0].data) == 5
    for piece in pieces:
        kept.add(piece)
        kept.add(cut_request(GenerateRequest(rid="other", media=asked.media))[0][0])
    assert kept.complete(rest) == asked


def test_pieces_of_exactly_the_size_stay_with_their_request() -> None:
    small = GenerateRequest(rid="r", media=[Media(type="image", data=LARGE[:PIECE_BYTES])])
    assert cut_request(small) == ([], small)


def test_dropped_pieces_are_gone() -> None:
    kept, (pieces, rest) = Pieces(), cut_request(request())
    for piece in pieces:
        kept.add(piece)
    kept.drop("r")
    assert kept.complete(rest) == rest
