"""KServe v2 over HTTP, requests: parses a JSON body, with tensors inside it or appended to it, into an `Inference`.

Follows Triton 2.73 in what it accepts and in its error messages. `kserve_checks` decides whether a model takes such
tensors. Large bodies should be parsed in a worker thread: see `tensors`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from nbgen.bytes_elements import pack_bytes
from nbgen.errors import InvalidRequest
from nbgen.messages import Tensor
from nbgen.protocols import tensors
from nbgen.protocols.inference import RESERVED_PREFIX, Inference, Parameter, PinnedError, RequestedOutput
from nbgen.protocols.json_body import HIGHEST, MalformedBody, is_integer
from nbgen.protocols.json_structure import check_structure, why_malformed
from nbgen.tensor_spec import ELEMENT_BYTES, ModelSpec

#: Limit for the JSON part of a request, for one tensor in it, and for a request that is one tensor's raw bytes.
MAX_INPUT_BYTES = 64 * 2**20
MAX_TENSORS, MAX_RANK = 128, 32
MAX_ELEMENTS = 2**63 - 1
MAX_PARAMETERS = 256
#: Limits in bytes of JSON.
MAX_PARAMETERS_BYTES, MAX_SHAPE_BYTES = 2**20, 2**10
#: Triton's wording, which its clients look for.
LIMIT_WORDS = "Use --http-max-input-size to increase the limit. (An option of Triton's own server; here it is fixed.)"
LENGTH = "Inference-Header-Content-Length"
LENGTH_HINT = f" ({LENGTH} may be of another request: tritonclient leaves it in a headers= dictionary that calls share)"

T = TypeVar("T")

_STOI = re.compile(r"\s*([+-]?\d+)")
_INT32 = 2**31


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: msgspec.Raw
    data: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class _Output(msgspec.Struct):
    name: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class _Body(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    outputs: list[_Output] = []


_decoder = msgspec.json.Decoder(_Body)
_decode_shape = msgspec.json.Decoder(list[Any]).decode
_decode_parameters = msgspec.json.Decoder(dict[str, Any]).decode


def header_length(header: str | None, size: int) -> int:
    """Bytes of JSON at the beginning of a body of `size` bytes; 0 means that the body is the bytes of one tensor.

    The header is parsed like C++'s stoi: blanks, a sign, digits; what follows is ignored.
    """
    if header is None:
        return size
    number = _STOI.match(header)
    if number is None:
        raise InvalidRequest(f"Unable to parse {LENGTH}, got: {header[:80]}")
    length = int(number[1]) if len(number[1]) <= 12 else _INT32
    if not -_INT32 <= length < _INT32:
        raise InvalidRequest(f"Unable to parse {LENGTH}, out of range: {header[:80]}")
    if not 0 <= length <= size:
        raise InvalidRequest(f"inference header size should be in range (0, {size}), got: {length}{LENGTH_HINT}")
    return length


def parse_infer(body: memoryview, header: str | None, spec: ModelSpec) -> Inference:
    """Parse the body of an `infer` request to the model `spec`. Raises InvalidRequest, PinnedError."""
    length = header_length(header, len(body))
    if header is not None and length == 0:
        return _raw(body, spec)
    check_json_size(length)
    check_structure(body[:length])
    fields = _decode(body[:length], LENGTH_HINT if header is not None else "")
    parameters = parse_parameters(_parameters(fields.parameters))
    binary, timeout = parameters.pop("binary_data_output", False), parameters.pop("timeout", 0)
    rest = _Blobs(body[length:])
    inputs = by_name("input", fields.inputs, lambda item: _tensor(item, rest))
    rest.check_empty()
    return Inference(
        id=fields.id,
        parameters=parameters,
        inputs=inputs,
        outputs=list(by_name("output", fields.outputs, _output).values()),
        binary_outputs=bool(binary),
        timeout_us=min(int(timeout), HIGHEST),  # a double may round up to more than a message can hold
    )


def by_name(kind: str, items: Iterable[Any], make: Callable[[Any], T]) -> dict[str, T]:
    """`make(item)` of a request's inputs or outputs, by name. Raises InvalidRequest for a repeated name."""
    found: dict[str, T] = {}
    for item in items:
        if item.name in found:
            raise InvalidRequest(f"{kind} '{item.name[:200]}' already exists in request")
        found[item.name] = make(item)
    return found


def check_json_size(length: int) -> None:
    """Raise InvalidRequest for more JSON than is accepted."""
    if length > MAX_INPUT_BYTES:
        raise InvalidRequest(
            f"request JSON size of {length} bytes exceeds the maximum allowed input size of {MAX_INPUT_BYTES} bytes. "
            + LIMIT_WORDS
        )


def _decode(body: memoryview, hint: str) -> _Body:
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedBody(f"failed to parse the request JSON buffer: {why_malformed(body, error)}{hint}") from None
    if max(len(fields.inputs), len(fields.outputs)) > MAX_TENSORS:
        raise InvalidRequest(f"the request names more than {MAX_TENSORS} tensors")
    return fields


def _parameters(raw: msgspec.Raw) -> dict[str, Any]:
    return _part("parameters", raw, MAX_PARAMETERS_BYTES, _decode_parameters)


def _part(name: str, raw: msgspec.Raw, limit: int, decode: Callable[[msgspec.Raw], T]) -> T:
    """Decode a small part of the body, of at most `limit` bytes."""
    if (size := len(bytes(raw))) > limit:
        raise InvalidRequest(f"'{name}' has {size} bytes of JSON; at most {limit}")
    try:
        return decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedBody(f"failed to parse '{name}': {why_malformed(memoryview(raw), error)}") from None


# --- inputs


class _Blobs:
    """The bytes after the JSON, from which the binary inputs are taken in order."""

    def __init__(self, rest: memoryview) -> None:
        self._rest = rest

    def take(self, size: int, name: str) -> memoryview:
        if size > len(self._rest):
            raise InvalidRequest(
                f"unexpected size for input '{name}', expecting {size - len(self._rest)} additional bytes: "
                f"binary_data_size is {size}, and {len(self._rest)} bytes follow"
            )
        blob, self._rest = self._rest[:size], self._rest[size:]
        return blob

    def check_empty(self) -> None:
        if len(self._rest):
            raise InvalidRequest(f"unexpected additional input data: {len(self._rest)} bytes follow the last input")


def _tensor(item: _Input, blobs: _Blobs) -> Tensor:
    dimensions = _part("shape", item.shape, MAX_SHAPE_BYTES, _decode_shape)
    datatype, shape = check_datatype(item.datatype), parse_shape(dimensions, item.name)
    if datatype != "BYTES" and math.prod(shape) * ELEMENT_BYTES[datatype] > MAX_ELEMENTS:
        raise InvalidRequest(f"byte size overflow for input '{item.name[:200]}': {list(shape)} of {datatype}")
    parameters = _parameters(item.parameters)
    size, region = parameters.get("binary_data_size"), parameters.get("shared_memory_region")
    json = bytes(item.data)
    if (size is not None) + (region is not None) + bool(json) != 1:
        raise InvalidRequest(
            f"Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters' (input '{item.name[:200]}')"
        )
    if region is not None:
        raise no_region(region)
    if size is None:
        return Tensor(name=item.name, datatype=datatype, shape=shape, data=_listed(item.name, datatype, shape, json))
    if not is_integer(size, 0):
        raise InvalidRequest(f"Unable to parse 'binary_data_size' of '{item.name[:200]}': not an unsigned integer")
    tensor = Tensor(name=item.name, datatype=datatype, shape=shape, data=blobs.take(size, item.name[:200]))
    tensors.check_size(tensor)
    return tensor


def _listed(name: str, datatype: str, shape: tuple[int, ...], json: bytes) -> memoryview:
    """The bytes of a tensor whose elements are a JSON list."""
    expected = listed_elements(name, datatype, shape)
    with tensors.naming(name):
        data, found = tensors.from_json(json, datatype)
    if datatype == "BYTES" and found != expected:
        raise InvalidRequest(f"expected {expected} string elements for inference input '{name[:200]}', got {found}")
    if found < expected:
        raise InvalidRequest("Failed to parse 'data' field: shape does not match true shape")
    if found > expected:
        raise InvalidRequest("Unable to parse 'data': Shape does not match true shape of 'data' field")
    return data


def listed_elements(name: str, datatype: str, shape: tuple[int, ...]) -> int:
    """How many elements a tensor has that is sent as a list. Raises InvalidRequest for too many."""
    expected = math.prod(shape)
    tensors.check_strings(datatype, expected, name[:200])
    if expected * ELEMENT_BYTES[datatype] > MAX_INPUT_BYTES:
        raise InvalidRequest(
            f"input '{name[:200]}' has {expected} elements of {datatype}, which exceeds the maximum allowed value of "
            f"{MAX_INPUT_BYTES} bytes in a list: send it as binary data. {LIMIT_WORDS}"
        )
    return expected


def check_datatype(datatype: str) -> str:
    """The datatype. Raises InvalidRequest if KServe does not have it."""
    if datatype not in ELEMENT_BYTES:
        raise InvalidRequest(f"unknown datatype '{datatype[:80]}'; there are {', '.join(ELEMENT_BYTES)}")
    return datatype


def parse_shape(shape: Sequence[Any], name: str) -> tuple[int, ...]:
    """The dimensions of a tensor. Raises PinnedError for an invalid one, InvalidRequest for too many or too large."""
    if len(shape) > MAX_RANK:  # before multiplying them, which would take long
        raise InvalidRequest(f"input '{name[:200]}' has {len(shape)} dimensions; at most {MAX_RANK}")
    for size in shape:
        if not is_integer(size, 0):
            raise PinnedError(
                "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"
            )
    if math.prod(size or 1 for size in shape) > MAX_ELEMENTS:  # a 0 must not hide another size
        raise InvalidRequest(
            f"shape of input '{name[:200]}' causes total element count to exceed maximum size of {MAX_ELEMENTS}"
        )
    return tuple(shape)


def no_region(region: object) -> InvalidRequest:
    """The refusal of a tensor in shared memory."""
    error = InvalidRequest(f"Unable to find shared memory region: '{str(region)[:200]}'")
    error.status = 404
    return error


def _raw(body: memoryview, spec: ModelSpec) -> Inference:
    """The inference of a body that is the raw bytes of the model's only input."""
    if len(spec.inputs) != 1:
        raise InvalidRequest(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(spec.inputs)} inputs in "
            f"'{spec.name}' model configuration"
        )
    if len(body) > MAX_INPUT_BYTES:
        raise InvalidRequest(
            f"raw request of {len(body)} bytes exceeds the maximum allowed value of {MAX_INPUT_BYTES} bytes. "
            + LIMIT_WORDS
        )
    (only,) = spec.inputs
    if only.datatype == "BYTES":
        if only.dims != (1,):
            raise InvalidRequest(f"For BYTES datatype raw input '{only.name}', the model must have input shape [1]")
        body = pack_bytes([bytes(body)])
    shape = ((1,) if spec.max_batch_size else ()) + _raw_shape(only.name, only.dims, only.datatype, len(body))
    tensor = Tensor(name=only.name, datatype=only.datatype, shape=shape, data=body)
    tensors.check_size(tensor)
    return Inference(inputs={only.name: tensor}, binary_outputs=True)


def _raw_shape(name: str, dims: tuple[int, ...], datatype: str, size: int) -> tuple[int, ...]:
    if dims.count(-1) > 1:
        raise InvalidRequest(
            f"The shape of the raw input '{name}' can not be deduced because there are more than one variable-sized "
            "dimension"
        )
    fixed = math.prod(n for n in dims if n >= 0) * (ELEMENT_BYTES[datatype] or 1)
    return tuple(-(-size // max(1, fixed)) if n < 0 else n for n in dims)


# --- outputs


def _output(item: _Output) -> RequestedOutput:
    options = _parameters(item.parameters)
    if "shared_memory_region" in options:
        raise no_region(options["shared_memory_region"])
    binary, classes = options.get("binary_data", False), options.get("classification", 0)
    if not isinstance(binary, bool):
        raise InvalidRequest("Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean")
    if not _is_unsigned(classes):
        raise InvalidRequest(
            "Unable to parse 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer"
        )
    return RequestedOutput(item.name, binary, classes)


# --- parameters


def _is_unsigned(value: object) -> bool:
    return is_integer(value, 0, HIGHEST)


#: The protocol's own parameters, with a check and its words.
_RESERVED: dict[str, tuple[Callable[[object], bool], str]] = {
    "sequence_id": (lambda value: isinstance(value, str) or _is_unsigned(value), "unsigned integer or string"),
    "sequence_start": (lambda value: isinstance(value, bool), "boolean"),
    "sequence_end": (lambda value: isinstance(value, bool), "boolean"),
    "priority": (_is_unsigned, "unsigned integer"),
    "timeout": (_is_unsigned, "unsigned integer"),
    "binary_data_output": (lambda value: isinstance(value, bool), "boolean"),
}


def parse_parameters(parameters: Mapping[str, Any]) -> dict[str, Parameter]:
    """A request's parameters, including the protocol's own. Raises InvalidRequest."""
    if len(parameters) > MAX_PARAMETERS:
        raise InvalidRequest(f"the request has {len(parameters)} parameters; at most {MAX_PARAMETERS}")
    for name, value in parameters.items():
        if name.startswith(RESERVED_PREFIX):
            raise InvalidRequest(
                f"parameter keys starting with 'triton_' are reserved for Triton usage: '{name[:200]}'"
            )
        if name in _RESERVED and not _RESERVED[name][0](value):
            raise InvalidRequest(f"Unable to parse '{name}': expected {_RESERVED[name][1]}")
    return {name: parameter(name, value) for name, value in parameters.items()}


def parameter(name: str, value: object) -> Parameter:
    """A custom parameter's value: text, a 64-bit integer, a boolean, or else a double."""
    if isinstance(value, str | bool | float):
        return value
    if isinstance(value, int):
        try:
            return value if -(2**63) <= value < 2**63 else float(value)
        except OverflowError:
            raise InvalidRequest(f"parameter '{name[:200]}' is a number that no double holds") from None
    raise InvalidRequest(f"parameter '{name[:200]}' has invalid type. It should be either 'int', 'bool', or 'string'.")
