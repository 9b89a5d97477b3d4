"""The frames of all messages between processes: four bytes of length (big-endian), then one msgpack object.

Each object is tagged with its struct's name. Knows no sockets.
"""

from __future__ import annotations

import msgspec

from nbgen.commands import AdapterCommand, AdapterState, Command, MemoryState
from nbgen.engine_state import EngineFailed, EngineReady, EngineStatus, LoadModel, LoadProgress
from nbgen.messages import EmbedOutput, EmbedRequest, GenerateRequest, StepOutputs, TensorPiece
from nbgen.tensor_messages import InferOutput, InferRequest, LoadModule, ModuleState, ServeTensors, UnloadModule
from nbgen.tokenizer_messages import DetokenizeRequest, ParseRequest, TokenizerAnswer, TokenizeRequest

FRAME_HEADER = 4
MAX_FRAME = 256 * 2**20


class Unreadable(msgspec.Struct, frozen=True, tag=True):
    """The request or the answer of `rid` could not be decoded. `error` says why: which value has a wrong type, say."""

    rid: str
    error: str
    status: int = 400


#: Messages with an `rid` of their own, under which they are answered.
Request = GenerateRequest | TokenizeRequest | DetokenizeRequest | ParseRequest | EmbedRequest
#: Messages to the process that runs plain modules.
ToModules = ServeTensors | LoadModule | UnloadModule | InferRequest | TensorPiece
ToEngine = LoadModel | Request | TensorPiece | Command | AdapterCommand | ToModules
FromEngine = (
    LoadProgress
    | EngineReady
    | EngineFailed
    | StepOutputs
    | TokenizerAnswer
    | EmbedOutput
    | EngineStatus
    | MemoryState
    | AdapterState
    | ModuleState
    | InferOutput
    | TensorPiece
    | Unreadable
)


class _Question(msgspec.Struct):
    rid: str = ""


class _Answer(_Question):
    outputs: list[_Question] = []


_encoder = msgspec.msgpack.Encoder()
to_engine_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
from_engine_decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode_frame(message: ToEngine | FromEngine) -> bytes:
    """The message with its length in front. Raises ValueError for one that is too large for a frame."""
    body = _encoder.encode(message)
    _check(len(body))
    return len(body).to_bytes(FRAME_HEADER, "big") + body


def read_by_engine(body: bytes) -> ToEngine | Unreadable:
    """A frame's message, or Unreadable for one with wrong values. Raises msgspec's DecodeError if it is no message."""
    try:
        return to_engine_decoder.decode(body)
    except msgspec.ValidationError as error:
        return Unreadable(rid=msgspec.msgpack.decode(body, type=_Question).rid, error=str(error))


def read_by_server(body: bytes) -> list[FromEngine]:
    """A frame's message; without the memory for it, an Unreadable for each of its requests. Raises DecodeError."""
    try:
        return [from_engine_decoder.decode(body)]
    except MemoryError:
        answer = msgspec.msgpack.decode(body, type=_Answer)
        error = "no memory is left for this answer: ask for less beside its text, or again later"
        rids = dict.fromkeys(each.rid for each in (answer, *answer.outputs) if each.rid)
        return [Unreadable(rid=rid, error=error, status=503) for rid in rids]


def frame_length(header: bytes | bytearray) -> int:
    """Bytes that follow a frame's header. Raises ValueError for a length that no peer of ours sends."""
    length = int.from_bytes(header, "big")
    _check(length)
    return length


def _check(length: int) -> None:
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes; the limit is {MAX_FRAME}")
