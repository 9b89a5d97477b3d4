"""One torch module behind a declared interface: bytes to tensors, one forward, tensors to bytes.

Inputs go to `forward` by name if its parameters have those names, else in the declared order, with the parameter's
default or None for an input that was not given. Outputs may be a tensor, a tuple in the declared order, or a dict by
name, which may leave some out; they are cast to their declared datatypes. BYTES inputs and outputs are numpy arrays of
objects.
"""

import inspect
import time
from collections.abc import Mapping
from itertools import accumulate, pairwise, zip_longest
from typing import Any

import numpy as np
import torch

from nbgen.engine import bytes_array, device, memory
from nbgen.engine.batcher import Computed
from nbgen.errors import InternalError
from nbgen.messages import Tensor
from nbgen.tensor_messages import InferRequest
from nbgen.tensor_spec import VARIABLE, ModelSpec, TensorSpec

DTYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}
#: Kinds of parameters that can be given by position.
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
#: A numpy array for BYTES, a tensor for all other datatypes.
Array = torch.Tensor | np.ndarray


class TensorModule:
    """Computes batches of requests whose tensors have been checked against `spec`."""

    def __init__(self, module: torch.nn.Module, spec: ModelSpec, device: torch.device) -> None:
        self.spec = spec
        self._module = module
        self._device = device
        parameters = inspect.signature(module.forward).parameters
        self._by_name = all(declared.name in parameters for declared in spec.inputs)
        places = [each for each in parameters.values() if each.kind in POSITIONAL][: len(spec.inputs)]
        self._defaults = [None if each.default is each.empty else each.default for each in places]
        #: How many positional parameters have no default and so must be filled.
        self._needed = sum(each.default is each.empty for each in places)

    @torch.inference_mode()
    def compute(self, requests: list[InferRequest]) -> Computed:
        """One forward for a batch. Its requests must have inputs of the same names, datatypes and inner shapes."""
        started = time.monotonic_ns()
        inputs = self._inputs(requests)
        loaded = time.monotonic_ns()
        given = self._module(**inputs) if self._by_name else self._module(*self._in_order(inputs))
        outputs = self._named(given)
        absent = [name for name in requests[0].outputs if name not in outputs]
        if absent and not isinstance(given, Mapping):
            raise InternalError(f"the module of {self.spec.name} declares {', '.join(absent)} and does not give it")
        wanted = [name for name in outputs if name in requests[0].outputs]
        arrays = {name: self._array(outputs[name], name) for name in wanted}
        computed = time.monotonic_ns()
        parts = self._split(arrays, [_entries(request) for request in requests])
        return Computed(parts, loaded - started, computed - loaded, time.monotonic_ns() - computed)

    def usable(self) -> bool:
        """Whether its device still computes."""
        return device.works(self._device)

    def release(self) -> None:
        """Give back the module's memory. It cannot compute afterwards."""
        del self._module
        memory.give_back(self._device)

    def _inputs(self, requests: list[InferRequest]) -> dict[str, Array]:
        """The inputs in the declared order, each joined over all requests."""
        stacked = {}
        for declared in self.spec.inputs:
            tensors = [tensor for request in requests for tensor in request.inputs if tensor.name == declared.name]
            if tensors:
                parts = [_tensor(tensor) for tensor in tensors]
                stacked[declared.name] = self._reshaped(_joined(parts), declared)
        return {
            name: value if isinstance(value, np.ndarray) else value.to(self._device) for name, value in stacked.items()
        }

    def _in_order(self, inputs: dict[str, Array]) -> list[Any]:
        """One argument for each declared input, up to the last that was given or has no default."""
        given = [place for place, declared in enumerate(self.spec.inputs, 1) if declared.name in inputs]
        some = max([*given, self._needed])
        places = zip_longest(self.spec.inputs[:some], self._defaults[:some])
        return [inputs.get(declared.name, default) for declared, default in places]

    def _reshaped(self, tensor: Array, declared: TensorSpec) -> Array:
        """The input in the shape that the module expects."""
        if declared.reshape is None:
            return tensor
        batch = tensor.shape[:1] if self.spec.max_batch_size else ()
        return tensor.reshape(*batch, *declared.reshape)

    def _named(self, given: Any) -> dict[str, Any]:
        names = [declared.name for declared in self.spec.outputs]
        if isinstance(given, Mapping):
            found = {name: given[name] for name in names if name in given}
        else:
            found = dict(zip(names, given if isinstance(given, tuple | list) else (given,), strict=False))
        of_bytes = {declared.name for declared in self.spec.outputs if declared.datatype == "BYTES"}
        if not found or not all(isinstance(found[name], torch.Tensor) for name in found.keys() - of_bytes):
            raise InternalError(f"the module of {self.spec.name} gave none of its declared outputs as a tensor")
        return found

    def _array(self, output: Any, name: str) -> Array:
        """The output on the CPU, in its declared datatype and shape."""
        declared = self.spec.output(name)
        assert declared is not None
        if declared.datatype == "BYTES":
            array = bytes_array.from_module(output, name)
        else:
            array = output.detach().to("cpu", DTYPES[declared.datatype]).contiguous()
        self._check_shape(list(array.shape), declared)
        if declared.reshape is None:
            return array
        batch = array.shape[:1] if self.spec.max_batch_size else ()
        return array.reshape(*batch, *declared.dims)

    def _check_shape(self, shape: list[int], declared: TensorSpec) -> None:
        dims = declared.dims if declared.reshape is None else declared.reshape
        expected = [VARIABLE] * bool(self.spec.max_batch_size) + list(dims)
        fits = len(shape) == len(expected) and all(map(lambda given, size: size in (given, VARIABLE), shape, expected))
        if not fits:
            words = f"gave {declared.name} of shape {shape}, where {expected} is declared"
            raise InternalError(f"the module of {self.spec.name} {words}")

    def _split(self, arrays: dict[str, Array], entries: list[int]) -> list[list[Tensor]]:
        """Each request's part of every output, row by row where there is a batch dimension."""
        if not self.spec.max_batch_size:
            return [[self._output(name, array) for name, array in arrays.items()]]
        for name, array in arrays.items():
            if not len(array.shape) or array.shape[0] != sum(entries):
                raise InternalError(
                    f"the module of {self.spec.name} gave {name} of shape {list(array.shape)} for {sum(entries)}"
                )
        places = list(accumulate(entries, initial=0))
        return [
            [self._output(name, array[start:end]) for name, array in arrays.items()] for start, end in pairwise(places)
        ]

    def _output(self, name: str, array: Array) -> Tensor:
        declared = self.spec.output(name)
        assert declared is not None
        if isinstance(array, np.ndarray):
            return Tensor(name=name, datatype="BYTES", shape=array.shape, data=bytes_array.to_wire(array))
        flat = array.reshape(-1).view(torch.uint8) if array.numel() else torch.empty(0, dtype=torch.uint8)
        data = flat.numpy().data.cast("B")
        return Tensor(name=name, datatype=declared.datatype, shape=tuple(array.shape), data=data)


def _joined(parts: list[Any]) -> Array:
    """The entries of several requests as one batch."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else torch.cat(parts)


def _tensor(tensor: Tensor) -> Array:
    return bytes_array.from_tensor(tensor) if tensor.datatype == "BYTES" else as_torch(tensor)


def as_torch(tensor: Tensor) -> torch.Tensor:
    """A copy, which the module may write into."""
    dtype = DTYPES[tensor.datatype]
    if not len(tensor.data):
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(tensor.shape)


def _entries(request: InferRequest) -> int:
    return request.inputs[0].shape[0] if request.inputs and request.inputs[0].shape else 1
