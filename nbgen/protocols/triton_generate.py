"""Triton's generate extension: parses flat JSON into an `Inference`; renders an `InferenceResponse` as flat JSON.

There is no fixed list of fields: a member named like an input of the model becomes that tensor, any other a parameter,
in the order of the body. Follows Triton 2.73, section "Generate Extension"; knows no model.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from nbgen import sse
from nbgen.errors import InvalidRequest, NbgenError
from nbgen.messages import Tensor
from nbgen.protocols import tensors
from nbgen.protocols.inference import Inference, InferenceResponse, OutputTensor
from nbgen.protocols.json_body import MAX_KEYS, MalformedBody, check_surrogates
from nbgen.protocols.json_structure import MAX_VALUES_AT_ONCE, check_structure
from nbgen.protocols.kserve import LIMIT_WORDS, MAX_INPUT_BYTES, check_json_size, parameter
from nbgen.protocols.triton_options import as_number
from nbgen.tensor_spec import ELEMENT_BYTES, VARIABLE, ModelSpec, TensorSpec

PARAMETERS = "parameters"


class Members(list[tuple[str, Any]]):
    """A JSON object with the order and repetitions of its members kept."""

    @property
    def firsts(self) -> dict[str, Any]:
        """The first value of each name."""
        return dict(reversed(self))


def parse_generate(body: memoryview, spec: ModelSpec) -> Inference:
    """Parse a body for the model `spec`. Raises InvalidRequest."""
    check_json_size(len(body))
    members = _parse(body)
    inference, firsts = Inference(id=_id(members), parameters={}, inputs={}), members.firsts
    for name, _ in members:
        value = firsts[name]
        if name == PARAMETERS:
            _map_parameters(inference, value, spec)
        else:
            _map(inference, name, value, spec)
    return inference


def _parse(body: memoryview) -> Members:
    check_structure(body, values=MAX_VALUES_AT_ONCE)
    try:
        value = json.loads(str(body, "utf-8-sig"), object_pairs_hook=Members, parse_float=_float, parse_constant=_float)
        check_surrogates(body, value)
    except RecursionError:
        raise MalformedBody("failed to parse the request JSON buffer: nested too deep") from None
    except json.JSONDecodeError as error:
        why = f"not JSON: {error.msg} (character {error.pos})"
        raise MalformedBody(f"failed to parse the request JSON buffer: {why}") from None
    except UnicodeDecodeError as error:
        raise MalformedBody(f"failed to parse the request JSON buffer: not UTF-8 (byte {error.start})") from None
    except ValueError:  # more digits than Python reads
        raise MalformedBody("failed to parse the request JSON buffer: a number is too long") from None
    if not isinstance(value, Members):
        raise MalformedBody("failed to parse the request JSON buffer: it is not an object")
    if len(value) > MAX_KEYS:
        raise InvalidRequest(f"the request has {len(value)} members; at most {MAX_KEYS}")
    return value


def _float(text: str) -> float:
    """A finite double. Raises InvalidRequest for any other number."""
    if not math.isfinite(number := float(text)):
        raise InvalidRequest(f"failed to parse the request JSON buffer: {text[:80]} is no number that a double holds")
    return number


def _id(members: Members) -> str:
    value = members.firsts.get("id", "")
    if not isinstance(value, str):
        raise InvalidRequest("Unable to parse 'id': attempt to access JSON non-string as string")
    return value


def _map_parameters(inference: Inference, value: Any, spec: ModelSpec) -> None:
    if not isinstance(value, Members):
        raise InvalidRequest("Expected JSON object for keyword: 'parameters'")
    firsts = value.firsts
    for name, _ in value:
        try:
            _map(inference, name, firsts[name], spec)
        except InvalidRequest as error:
            raise InvalidRequest(f"Converting keyword: 'parameters': {error.message}") from None


def _map(inference: Inference, name: str, value: Any, spec: ModelSpec) -> None:
    declared = spec.input(name)
    if declared is None or (isinstance(value, bool) and declared.datatype == "BYTES" and declared in spec.undeclared):
        inference.parameters[name] = parameter(name, value)
        return
    if name in inference.inputs:
        raise InvalidRequest(f"input '{name[:200]}' already exists in request")
    if declared.optional and _is_nothing(value, declared):
        return
    inference.inputs[name] = _tensor(declared, value, spec)


def _is_nothing(value: Any, declared: TensorSpec) -> bool:
    """Whether it counts as not given: an empty list, or an empty text for a list."""
    return (_is_list(value) and not value) or (value == "" and declared.dims == (VARIABLE,))


def _tensor(declared: TensorSpec, value: Any, spec: ModelSpec) -> Tensor:
    count = len(value) if _is_list(value) else 1
    shape = _shape(spec.shape(declared), count, declared.name)
    scalars = tensors.flat(value) if _is_list(value) else [_as_number(value, declared)]
    datatype = _wide_enough(scalars, declared)
    with tensors.naming(declared.name):
        data = tensors.from_values(scalars, datatype)
    if len(scalars) != count:
        raise InvalidRequest(f"can not convert {len(scalars)} elements to the shape {list(shape)} of '{declared.name}'")
    size = len(data) if datatype == "BYTES" else count * ELEMENT_BYTES[datatype]
    if size > MAX_INPUT_BYTES:
        raise InvalidRequest(
            f"input '{declared.name}' of {size} bytes exceeds the maximum allowed input size of {MAX_INPUT_BYTES} "
            f"bytes. {LIMIT_WORDS}"
        )
    return Tensor(name=declared.name, datatype=datatype, shape=shape, data=data)


def _wide_enough(scalars: list[Any], declared: TensorSpec) -> str:
    """The declared datatype, or INT64 if a number needs it and the model also takes that."""
    wide = declared.datatype == "INT32" and "INT64" in declared.also
    return "INT64" if wide and any(type(each) is int and abs(each) >= 2**31 for each in scalars) else declared.datatype


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and not isinstance(value, Members)


def _as_number(value: Any, declared: TensorSpec) -> Any:
    """The number in a text, as vLLM's clients send it; any other value unchanged."""
    if not isinstance(value, str) or declared.datatype in ("BYTES", "BOOL"):
        return value
    try:
        number = float(as_number(value)) if declared.datatype.startswith("FP") else int(as_number(value))
        return number if math.isfinite(number) else value
    except (ValueError, OverflowError):
        return value


def _shape(dims: list[int], count: int, name: str) -> tuple[int, ...]:
    """The declared shape for `count` elements: the innermost variable dimension takes what is left, others are 1."""
    left, shape = count, list(dims)
    for size in (size for size in reversed(dims) if size != VARIABLE):
        if size <= 0 or left % size:
            raise InvalidRequest(f"input '{name}' can not convert {count} elements to the shape {dims}")
        left //= size
    for position in (place for place in range(len(dims) - 1, -1, -1) if dims[place] == VARIABLE):
        shape[position], left = left, 1
    if left != 1:
        raise InvalidRequest(f"input '{name}' can not convert {count} elements to the shape {dims}")
    return tuple(shape)


# --- answers


def response_body(response: InferenceResponse, id: str) -> bytes:
    """The JSON object of a response. Raises InvalidRequest for a datatype that JSON cannot carry."""
    fields: dict[str, Any] = {"id": id} if id else {}
    fields |= {"model_name": response.model_name, "model_version": response.model_version}
    body = msgspec.json.encode(fields)[:-1]
    return body + b"".join(b',"%b":%b' % (_name(output), _value(output)) for output in response.outputs) + b"}"


def _name(output: OutputTensor) -> bytes:
    return msgspec.json.encode(output.name)[1:-1]


def _value(output: OutputTensor) -> bytes:
    if output.datatype in tensors.BINARY_ONLY:
        raise InvalidRequest(f"output '{output.name}' is {output.datatype}, which JSON cannot carry")
    listed = b"".join(tensors.to_json(output.data, output.datatype))
    return listed[1:-1] if math.prod(output.shape) == 1 else listed


def error_event(error: NbgenError) -> bytes:
    """An error as the last event of a stream."""
    return sse.encode(msgspec.json.encode({"error": error.message}))


def load_metrics(wanted: str, utilization: float, capacity: int) -> str | None:
    """ORCA's `endpoint-load-metrics` header about the KV cache in the `wanted` format; None for an unknown one."""
    values = {"kv_cache_utilization": utilization, "max_token_capacity": capacity}
    match wanted:
        case "json":
            return "JSON " + msgspec.json.encode({"named_metrics": values}).decode()
        case "text":
            named = f"named_metrics.kv_cache_utilization={utilization:f}"
            return f"TEXT {named}, named_metrics.max_token_capacity={capacity}"
        case _:
            return None


def not_one(responses: str) -> InvalidRequest:
    """The refusal by `generate` of a request that has several responses, or none."""
    return InvalidRequest(
        f"generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        f"number of responses (this one gave {responses})"
    )
