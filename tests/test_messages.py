"""What crosses the process comes out as it went in, and nothing else comes out."""

import msgspec
import pytest

from nbgen.errors import (
    BodyTooLarge,
    Conflict,
    EngineStopped,
    Forbidden,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    ModelError,
    NbgenError,
    NotFound,
    Unauthorized,
    Unavailable,
    Unsupported,
    UnsupportedMedia,
    from_status,
    in_words,
)
from nbgen.frames import FRAME_HEADER, MAX_FRAME, encode_frame, frame_length, from_engine_decoder, to_engine_decoder
from nbgen.messages import ChatMessage, FinishReason, GenerateOutput, GenerateRequest, StepOutputs
from nbgen.sampling_params import SamplingParams


def test_a_request_and_its_outputs_survive_the_frame() -> None:
    request = GenerateRequest(
        rid="a",
        messages=[ChatMessage(role="user", content="é😀\0")],
        params=SamplingParams(stop=("x",), logit_bias={3: -1.5}, max_new_tokens=None),
    )
    frame = encode_frame(request)
    assert frame_length(frame[:FRAME_HEADER]) == len(frame) - FRAME_HEADER
    assert to_engine_decoder.decode(frame[FRAME_HEADER:]) == request
    output = GenerateOutput(rid="a", text="t", token_ids=(5,), finish_reason=FinishReason(type="stop", matched=5))
    assert from_engine_decoder.decode(encode_frame(StepOutputs(outputs=[output]))[FRAME_HEADER:]).outputs == [output]


def test_a_message_of_the_wrong_direction_is_no_message() -> None:
    with pytest.raises(msgspec.ValidationError):
        from_engine_decoder.decode(encode_frame(GenerateRequest(rid="a"))[FRAME_HEADER:])


def test_a_lying_length_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        frame_length(b"\xff\xff\xff\xff")
    assert frame_length(MAX_FRAME.to_bytes(4, "big")) == MAX_FRAME == 256 * 2**20
    with pytest.raises(ValueError, match="limit"):
        frame_length((MAX_FRAME + 1).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (405, MethodNotAllowed),
        (409, Conflict),
        (413, BodyTooLarge),
        (415, UnsupportedMedia),
        (422, ModelError),
        (500, InternalError),
        (501, Unsupported),
        (503, Unavailable),
        (418, InvalidRequest),
        (499, InvalidRequest),
        (502, InternalError),
        (399, InternalError),
    ],
)
def test_a_client_rebuilds_the_error_of_a_status(status: int, kind: type[NbgenError]) -> None:
    assert type(from_status(status, "words")) is kind


def test_an_error_in_a_table_says_what_it_is_unless_it_is_ours() -> None:
    assert in_words(InvalidRequest("no")) == "no"
    assert in_words(ValueError("no")) == "ValueError: no"


def test_what_may_be_tried_again_says_so() -> None:
    assert EngineStopped("x").retryable
    assert not InvalidRequest("x").retryable
