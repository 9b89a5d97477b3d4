"""Arrays as the tensors of KServe v2, and back: numbers as bytes after the JSON, texts within it.

Follows the Open Inference Protocol and its binary tensor data extension (row-major, little-endian), which can carry
every number, also NaN. Knows nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from nbgen.bytes_elements import pack_bytes, unpack_bytes
from nbgen.errors import InvalidRequest, NbgenError
from nbgen.notebook import session
from nbgen.notebook.arrays import as_array
from nbgen.notebook.connection import Call
from nbgen.notebook.remote import AnyClient
from nbgen.notebook.request import in_json
from nbgen.notebook.short_traceback import short_traceback

_DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}
#: By the kind of a declared datatype: the kinds of numbers that are converted to it, if none of them is changed.
_BECOMES = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}
_KINDS = {datatype: np.dtype(name) for name, datatype in _DATATYPES.items()} | {"BYTES": np.dtype(object)}


@short_traceback
def infer(
    model: str, inputs: Mapping[str, Any], *, outputs: str | Sequence[str] = (), **parameters: Any
) -> dict[str, Any]:
    """KServe v2's infer: arrays in, arrays out, by name. `outputs` selects some; `parameters` are sent along.

    Python's numbers and lists get the datatype that the model declares; arrays keep their own.
    """
    if not isinstance(model, str):
        raise InvalidRequest(f"model is the name of one that the server has, got {type(model).__name__}", field="model")
    client = session.default_client()
    tensors, numbers = to_tensors(inputs, _declared(client, model, inputs))
    names = [outputs] if isinstance(outputs, str) else outputs
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in names]
    body = {"inputs": tensors, "parameters": {**in_json(parameters, "parameters"), "binary_data_output": True}}
    try:
        answer, data = client.infer(model, body | ({"outputs": wanted} if wanted else {}), numbers)
    except InvalidRequest as error:
        raise _in_words(error) from None
    return from_tensors(answer["outputs"], data)


def _declared(client: AnyClient, model: str, inputs: Any) -> dict[str, str]:
    """The datatypes of a model's inputs, needed if some are given as Python's types; {} if the server has none."""
    if not isinstance(inputs, Mapping) or all(hasattr(value, "dtype") for value in inputs.values()):
        return {}
    try:
        known = client.fields(Call("GET", f"v2/models/{quote(model, safe='')}"))
        return {each["name"]: each["datatype"] for each in known.get("inputs", ())}
    except NbgenError:  # the call that follows has the better error
        return {}


def _in_words(error: InvalidRequest) -> InvalidRequest:
    """A refusal in Triton's words, without the id that nobody gave, and with numpy's name for the type."""
    words = re.sub(r"^\[request id: .*?\] ", "", error.message)
    if found := re.search(r"input '(.*)' data-type is '.*', but model '.*' expects '(\w+)'", words):
        name, expected = found[1], _KINDS.get(found[2])
        words += f': {name}.astype("{expected.name}")' if expected is not None and expected.kind != "O" else ""
    return InvalidRequest(words, field=error.field)


def to_tensors(
    arrays: Mapping[str, Any], declared: Mapping[str, str] | None = None
) -> tuple[list[dict[str, Any]], bytes]:
    """The tensor of each array, and the bytes of those that are no texts; texts and bytes become BYTES.

    torch's tensors may require gradients; bfloat16, which numpy lacks, becomes float32. A value that is no array yet
    becomes one of the datatype `declared` for it. Raises InvalidRequest for a type that KServe lacks.
    """
    if not isinstance(arrays, Mapping):
        kind = type(arrays).__name__
        raise InvalidRequest(f"inputs are arrays by their names, {{'x': …}}, got {kind}", field="inputs")
    tensors, parts = [], []
    for name, value in arrays.items():
        tensor, data = _tensor(name, _array(name, value, _KINDS.get((declared or {}).get(name, ""))))
        tensors.append(tensor)
        parts.append(data)
    return tensors, b"".join(parts)


def from_tensors(tensors: list[dict[str, Any]], data: bytes = b"") -> dict[str, Any]:
    """The arrays of an answer by name, from the bytes after the JSON or from the JSON; BYTES become str."""
    arrays, rest = {}, memoryview(data)
    for tensor in tensors:
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            flat = np.asarray(tensor["data"], _KINDS[tensor["datatype"]])
        else:
            flat, rest = _from_bytes(rest[:size], tensor["datatype"]), rest[size:]
        arrays[tensor["name"]] = flat.reshape(tensor["shape"])
    return arrays


def _array(name: str, value: Any, kind: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    try:
        array = as_array(value)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", field=name) from None
    if hasattr(value, "dtype") or kind is None or array.dtype.kind not in _BECOMES.get(kind.kind, ""):
        return array
    cast = array.astype(kind)
    if kind.kind != "f" and (cast != array).any():
        raise InvalidRequest(f"{name} has numbers that {kind.name} has not", field=name)
    return cast


def _tensor(name: str, array: np.ndarray[Any, Any]) -> tuple[dict[str, Any], bytes]:
    fields = {"name": name, "shape": list(array.shape)}
    if _holds(array, "U", str):
        return {**fields, "datatype": "BYTES", "data": array.ravel().tolist()}, b""
    if _holds(array, "S", bytes):
        packed = bytes(pack_bytes(array.ravel().tolist()))
        return {**fields, "datatype": "BYTES", "parameters": {"binary_data_size": len(packed)}}, packed
    datatype = _DATATYPES.get(array.dtype.name)
    if datatype is None:
        raise InvalidRequest(
            f"{name} is an array of {array.dtype.name}, which no tensor has: use {', '.join(_DATATYPES)} or texts",
            field=name,
        )
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return {**fields, "datatype": datatype, "parameters": {"binary_data_size": len(data)}}, data


def _holds(array: np.ndarray[Any, Any], code: str, kind: type) -> bool:
    """Whether all elements are of this type: by the array's dtype, or each one in an array of objects."""
    return array.dtype.kind == code or (array.dtype == object and all(isinstance(item, kind) for item in array.flat))


def _from_bytes(data: memoryview, datatype: str) -> np.ndarray[Any, Any]:
    """A tensor's elements as a flat array with memory of its own."""
    if datatype == "BYTES":
        return np.array([item.decode(errors="replace") for item in unpack_bytes(data)], dtype=object)
    if datatype == "BF16":  # the upper halves of float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, _KINDS[datatype].newbyteorder("<")).astype(_KINDS[datatype])
