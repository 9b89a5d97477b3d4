"""Checks that a model takes the tensors of a request: names, datatypes, shapes, batch sizes, with Triton's messages.

More lenient than Triton, so that its own examples work: extra leading dimensions of size 1 are dropped.
"""

from __future__ import annotations

import math

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.messages import Tensor
from nbgen.protocols.inference import Inference
from nbgen.tensor_spec import VARIABLE, ModelSpec, TensorSpec


def checked(inference: Inference, spec: ModelSpec) -> Inference:
    """The inference with every tensor in a shape that the model declares. Raises InvalidRequest."""
    fitted = {}
    for name, tensor in inference.inputs.items():
        declared = spec.input(name)
        if declared is None:
            raise InvalidRequest(f"{_who(inference)}unexpected inference input '{name[:200]}' for model '{spec.name}'")
        fitted[name] = _fitted(inference, tensor, declared, spec)
    _check_number(inference, spec)
    _check_batch(inference, fitted, spec)
    for output in inference.outputs:
        if spec.output(output.name) is None:
            raise InvalidRequest(
                f"{_who(inference)}unexpected inference output '{output.name[:200]}' for model '{spec.name}'"
            )
    return msgspec.structs.replace(inference, inputs=fitted)


def batch_size(inference: Inference, spec: ModelSpec) -> int:
    """The number of inferences in the request."""
    first = next(iter(inference.inputs.values()), None)
    return first.shape[0] if spec.max_batch_size and first is not None else 1


def _who(inference: Inference) -> str:
    return f"[request id: {inference.id[:128] or '<id_unknown>'}] "


def _check_number(inference: Inference, spec: ModelSpec) -> None:
    """Raise InvalidRequest for missing inputs. The message names a range only if some inputs are optional."""
    found, declared, required = len(inference.inputs), len(spec.inputs), spec.num_required
    missing = [item.name for item in spec.inputs if not item.optional and item.name not in inference.inputs]
    if not missing and found >= required:
        return
    if required < declared:
        words = f"expected number of inputs between {required} and {declared} but got {found} inputs"
    else:
        words = f"expected {declared} inputs but got {found} inputs"
    raise InvalidRequest(f"{_who(inference)}{words} for model '{spec.name}'. {_naming(missing, spec)}")


def _naming(missing: list[str], spec: ModelSpec) -> str:
    names = missing or [item.name for item in spec.inputs[: spec.num_required + 1]]
    return f"{'Missing' if missing else 'Give one of'}: {', '.join(names)}"


def _fitted(inference: Inference, tensor: Tensor, declared: TensorSpec, spec: ModelSpec) -> Tensor:
    if tensor.datatype not in (declared.datatype, *declared.also):
        raise InvalidRequest(
            f"{_who(inference)}inference input '{tensor.name}' data-type is '{tensor.datatype}', but model "
            f"'{spec.name}' expects '{declared.datatype}'"
        )
    expected, shape = spec.shape(declared), list(tensor.shape)
    if declared.several and (count := math.prod(shape)):
        return msgspec.structs.replace(tensor, shape=(count,))
    while len(shape) > len(expected) and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != len(expected) or any(
        want not in (VARIABLE, got) for want, got in zip(expected, shape, strict=True)
    ):
        raise InvalidRequest(
            f"{_who(inference)}unexpected shape for input '{tensor.name}' for model '{spec.name}'. Expected "
            f"{_dimensions(expected)}, got {_dimensions(tensor.shape)}"
        )
    return msgspec.structs.replace(tensor, shape=tuple(shape))


def _check_batch(inference: Inference, inputs: dict[str, Tensor], spec: ModelSpec) -> None:
    if not spec.max_batch_size:
        return
    sizes = {tensor.shape[0] for tensor in inputs.values()}
    if len(sizes) > 1:
        raise InvalidRequest(
            f"{_who(inference)}inputs have different batch sizes ({', '.join(map(str, sorted(sizes)))}) for model "
            f"'{spec.name}'"
        )
    for size in sizes:
        if not 1 <= size <= spec.max_batch_size:
            raise InvalidRequest(
                f"{_who(inference)}inference request batch-size must be <= {spec.max_batch_size} for '{spec.name}' and "
                f"at least 1, got {size}"
            )


def _dimensions(shape: object) -> str:
    return str(list(shape)).replace(" ", "")  # type: ignore[call-overload]
