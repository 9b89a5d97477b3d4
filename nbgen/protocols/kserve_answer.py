"""KServe v2 over HTTP, answers: renders an `InferenceResponse` or an error as JSON, with tensors inside or appended.

Follows Triton 2.73: compact JSON, outputs in the model's order, data flat. Bodies are iterators of bytes, so that a
large one can be rendered in a worker thread and sent piece by piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from nbgen.errors import InvalidRequest, NbgenError
from nbgen.protocols.classification import classified
from nbgen.protocols.inference import Inference, InferenceResponse, OutputTensor, RequestedOutput
from nbgen.protocols.tensors import BINARY_ONLY, Binary, to_json
from nbgen.tensor_spec import ModelSpec

JSON = "application/json"
BINARY = "application/octet-stream"
ENCODINGS = ("identity", "gzip", "deflate")
#: zlib's `wbits` for a gzip header and trailer.
_GZIP = 16 + zlib.MAX_WBITS
#: Size of the sample that decides whether a body is worth compressing.
SAMPLE_BYTES = 2**15


class Answer(NamedTuple):
    """A body to send, of `size` bytes. `json_length` is that of its JSON part if binary tensors follow, else None."""

    body: Iterator[bytes]
    size: int
    json_length: int | None

    @property
    def content_type(self) -> str:
        return JSON if self.json_length is None else BINARY


def error_body(error: NbgenError) -> bytes:
    """The body of any error of Triton's routes."""
    return msgspec.json.encode({"error": error.message})


def shown(response: InferenceResponse, inference: Inference, spec: ModelSpec) -> list[tuple[OutputTensor, bool]]:
    """The outputs to send in the model's order, classified if asked for, each with whether it is sent as bytes."""
    asked = {output.name: output for output in inference.outputs}
    found = {output.name: output for output in response.outputs if not asked or output.name in asked}
    default = RequestedOutput("", inference.binary_outputs)
    chosen = []
    for declared in spec.outputs:
        if (output := found.get(declared.name)) is None:
            continue
        request = asked.get(declared.name, default)
        if request.classes:
            output = classified(output, declared, request.classes, batched=spec.max_batch_size > 0)
        chosen.append((output, request.binary))
    return chosen


def infer_answer(response: InferenceResponse, inference: Inference, spec: ModelSpec) -> Answer:
    """The answer to `infer`. Raises InvalidRequest for an output that cannot be sent in the format asked for."""
    outputs = shown(response, inference, spec)
    for output, binary in outputs:
        if not binary and output.datatype in BINARY_ONLY:
            raise InvalidRequest(
                f"output '{output.name}' is {output.datatype}, which JSON cannot carry: ask for it as binary data"
            )
    blobs = [output.data for output, binary in outputs if binary and len(output.data)]
    json = _json(response, inference, outputs)
    if not blobs:
        return Answer(json, _estimate(outputs), None)
    head = b"".join(json)
    return Answer(_framed(head, blobs), len(head) + sum(map(len, blobs)), len(head))


def _estimate(outputs: list[tuple[OutputTensor, bool]]) -> int:
    """Roughly the bytes of JSON, enough to tell small answers from large ones."""
    return 512 + 4 * sum(len(output.data) for output, binary in outputs if not binary)


def _framed(head: bytes, blobs: list[Binary]) -> Iterator[bytes]:
    yield head
    for blob in blobs:
        for piece in blob.pieces:
            yield bytes(piece)


def _json(
    response: InferenceResponse, inference: Inference, outputs: list[tuple[OutputTensor, bool]]
) -> Iterator[bytes]:
    fields: dict[str, Any] = {"id": inference.id} if inference.id else {}
    fields |= {"model_name": response.model_name, "model_version": response.model_version}
    yield msgspec.json.encode(fields)[:-1] + b',"outputs":['
    for index, (output, binary) in enumerate(outputs):
        yield b"," if index else b""
        yield from _output(output, binary=binary)
    yield b"]}"


def _output(output: OutputTensor, *, binary: bool) -> Iterator[bytes]:
    fields: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
    if binary:
        yield msgspec.json.encode({**fields, "parameters": {"binary_data_size": len(output.data)}})
        return
    yield msgspec.json.encode(fields)[:-1] + b',"data":'
    yield from to_json(output.data, output.datatype)
    yield b"}"


# --- compression


def accepted_encoding(header: str) -> str:
    """The encoding for an answer: that of identity, gzip and deflate with the highest q-value, or the first such."""
    best, heaviest = "identity", 0.0
    for part in header.split(","):
        name, _, options = part.strip().partition(";")
        weight = _weight(options.strip())
        if name.strip() in ENCODINGS and weight is not None and weight > heaviest:
            best, heaviest = name.strip(), weight
    return best


def _weight(options: str) -> float | None:
    if not options:
        return 1.0
    name, _, number = options.partition("=")
    try:
        return float(number) if name.strip() == "q" else None
    except ValueError:
        return None


def compressed(body: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """The body in gzip's or zlib's format, piece by piece; uncompressed inside it if its beginning hardly shrinks."""
    first = _beginning(body)
    level = zlib.Z_BEST_SPEED if _shrinks(first) else zlib.Z_NO_COMPRESSION
    packer = zlib.compressobj(level, wbits=_GZIP if encoding == "gzip" else zlib.MAX_WBITS)
    for part in chain((first,), body):
        if packed := packer.compress(part):
            yield packed
    yield packer.flush()


def _beginning(body: Iterator[bytes]) -> bytes:
    parts, size = [], 0
    while size < SAMPLE_BYTES and (part := next(body, None)) is not None:
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _shrinks(data: bytes) -> bool:
    """Whether compression saves an eighth. Floating-point numbers seldom do, and cost zlib 25 ms a megabyte."""
    sample = data[-SAMPLE_BYTES:]
    return len(sample) < SAMPLE_BYTES or len(zlib.compress(sample, zlib.Z_BEST_SPEED)) < len(sample) * 7 / 8


def decompressed(body: memoryview, limit: int) -> memoryview:
    """Decompress gzip's or zlib's format, whichever it is. Raises InvalidRequest, as for more than `limit` bytes."""
    if not len(body):
        raise InvalidRequest("the compressed body is empty")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        data = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise InvalidRequest("the body is neither in gzip's nor in zlib's format") from None
    if len(data) > limit:
        raise InvalidRequest(f"the decompressed body exceeds the maximum allowed size of {limit} bytes")
    if not unpacker.eof:
        raise InvalidRequest("the compressed body is cut short")
    if unpacker.unused_data:
        raise InvalidRequest(
            f"{len(unpacker.unused_data)} bytes follow the compressed body's end: compress all of it as one stream"
        )
    return memoryview(data)
