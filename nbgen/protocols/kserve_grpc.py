"""KServe v2 over gRPC: turns its messages into an `Inference`, and an `InferenceResponse` into its messages.

Follows Triton 2.73's `inference.GRPCInferenceService`. Callers pass in message objects, so this imports no protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nbgen.bytes_elements import pack_bytes
from nbgen.errors import InvalidRequest
from nbgen.messages import Tensor
from nbgen.protocols import kserve, kserve_answer, tensors
from nbgen.protocols.inference import Inference, InferenceResponse, Parameter, PinnedError, RequestedOutput
from nbgen.tensor_spec import ModelSpec

#: The fields of a ModelInferRequest and a ModelInferResponse that hold the bytes of tensors.
RAW_INPUTS, RAW_OUTPUTS = 7, 6
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"

#: The field of `contents` that holds the elements of each datatype.
FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def parse_infer(request: Any, contents: list[memoryview]) -> Inference:
    """The inference that a ModelInferRequest asks for; `contents` are its raw_input_contents. Raises InvalidRequest."""
    given = _parameters(request.parameters)
    raw = iter(contents)
    inputs = kserve.by_name("input", request.inputs, lambda item: _tensor(item, raw, bool(contents)))
    if next(raw, None) is not None:
        raise InvalidRequest("unexpected additional input data: there are more raw contents than inputs")
    parameters = kserve.parse_parameters(given)
    return Inference(
        id=request.id,
        timeout_us=int(parameters.pop("timeout", 0)),
        parameters=parameters,
        inputs=inputs,
        outputs=list(kserve.by_name("output", request.outputs, _output).values()),
        binary_outputs=True,
    )


def _parameters(given: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters except the one that asks for an empty final response, which is never needed here."""
    found = {name: parameter_value(name, value) for name, value in given.items()}
    if not isinstance(found.pop(EMPTY_FINAL, False), bool):
        raise InvalidRequest(f"invalid value for '{EMPTY_FINAL}' parameter, expected bool_param")
    for name in found:
        if name != "priority" and given[name].WhichOneof("parameter_choice") == "uint64_param":
            raise InvalidRequest(f"parameter '{name[:200]}' is a uint64_param, which only 'priority' may be")
    return found


def parameter_value(name: str, value: Any) -> Parameter:
    """The value of an InferParameter."""
    kind = value.WhichOneof("parameter_choice")
    if kind is None:
        raise InvalidRequest(f"parameter '{name[:200]}' has no value")
    found: Parameter = getattr(value, kind)
    return found


def _tensor(item: Any, raw: Iterator[memoryview], has_raw: bool) -> Tensor:
    datatype = kserve.check_datatype(item.datatype)
    try:
        shape = kserve.parse_shape(item.shape, item.name)
    except PinnedError as error:
        raise InvalidRequest(error.message) from None
    if "shared_memory_region" in item.parameters:
        raise kserve.no_region(item.parameters["shared_memory_region"].string_param)
    if item.HasField("contents"):
        if has_raw:
            raise InvalidRequest(
                f"contents field must not be specified when using raw_input_contents for '{item.name[:200]}'"
            )
        data = _typed(item, datatype, shape)
    else:
        data = _raw(item.name, raw)
    tensor = Tensor(name=item.name, datatype=datatype, shape=shape, data=data)
    tensors.check_size(tensor)
    return tensor


def _raw(name: str, raw: Iterator[memoryview]) -> memoryview:
    data = next(raw, None)
    if data is None:
        raise InvalidRequest(f"unable to find data for input tensor '{name[:200]}' in request")
    return data


def _typed(item: Any, datatype: str, shape: tuple[int, ...]) -> memoryview:
    wanted = FIELDS.get(datatype)
    filled = [field.name for field, _ in item.contents.ListFields()]
    if any(name != wanted for name in filled) or wanted is None:
        raise InvalidRequest(
            f"contents of input '{item.name[:200]}' of datatype {datatype} must be in {wanted or 'raw_input_contents'}"
        )
    elements = getattr(item.contents, wanted)
    expected = kserve.listed_elements(item.name, datatype, shape)
    if (found := len(elements)) != expected:  # checked before they are converted
        raise InvalidRequest(
            f"input byte size mismatch for input '{item.name[:200]}': its shape has {expected} elements, and {wanted} "
            f"{found}"
        )
    if datatype == "BYTES":
        return pack_bytes(elements)
    starts = range(0, len(elements), tensors.ELEMENT_SLICE)
    slices = (elements[start : start + tensors.ELEMENT_SLICE] for start in starts)
    return tensors.Binary(tensors.from_values(list(part), datatype) for part in slices).joined()


def _output(item: Any) -> RequestedOutput:
    if "shared_memory_region" in item.parameters:
        raise kserve.no_region(item.parameters["shared_memory_region"].string_param)
    return RequestedOutput(item.name, True, _classes(item.parameters))


def _classes(parameters: Mapping[str, Any]) -> int:
    if "classification" not in parameters:
        return 0
    value = parameters["classification"]
    if value.WhichOneof("parameter_choice") != "int64_param" or value.int64_param <= 0:
        raise InvalidRequest("invalid value for 'classification' parameter, expected int64_param above 0")
    return int(value.int64_param)


def fill(message: Any, response: InferenceResponse, inference: Inference, spec: ModelSpec) -> list[list[memoryview]]:
    """Fill `message`, a ModelInferResponse, except raw contents: returns those of its outputs, each in pieces."""
    message.model_name, message.model_version, message.id = response.model_name, response.model_version, inference.id
    outputs = [output for output, _ in kserve_answer.shown(response, inference, spec)]
    for output in outputs:
        message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
    return [output.data.pieces for output in outputs]
