"""A model's input and output tensors: names, datatypes and dimensions, in KServe v2's terms.

Knows neither wires nor torch; server, protocols and engine all use it.
"""

from __future__ import annotations

import msgspec

#: Bytes of one element; a BYTES element has a length of its own.
ELEMENT_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
    "BF16": 2,
    "BYTES": 0,
}
VARIABLE = -1


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input or output. `dims` are without the batch dimension; -1 is a dimension of any size.

    `reshape` is the shape that the module itself takes or returns (None: `dims`); `also` are further datatypes that
    are accepted. `labels` name the elements of an output, by flat index. An input with `several` may have more than its
    one element; each is then answered like a request of its own.
    """

    name: str
    datatype: str
    dims: tuple[int, ...] = ()
    optional: bool = False
    reshape: tuple[int, ...] | None = None
    format: str = "FORMAT_NONE"
    labels: tuple[str, ...] = ()
    label_filename: str = ""
    also: tuple[str, ...] = ()
    several: bool = False


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's interface. With a `max_batch_size` above 0 every tensor has a leading batch dimension of 1 to that.

    At least `required` inputs must be given, even if all are optional; `undeclared` inputs are accepted but not shown.
    `max_queue_delay_us` is how long a request may wait for others to be batched with.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    version: str = "1"
    max_batch_size: int = 0
    decoupled: bool = False
    max_queue_delay_us: int = 0
    undeclared: tuple[TensorSpec, ...] = ()
    required: int = 0
    platform: str = ""
    backend: str = "nbgen"

    @property
    def num_required(self) -> int:
        """How many inputs a request must have at least."""
        return max(self.required, sum(not spec.optional for spec in self.inputs))

    def input(self, name: str) -> TensorSpec | None:
        """The input of this name, shown or not."""
        return next((spec for spec in (*self.inputs, *self.undeclared) if spec.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        return next((spec for spec in self.outputs if spec.name == name), None)

    def shape(self, spec: TensorSpec) -> list[int]:
        """The tensor's shape on the wire: with the batch dimension, if there is one."""
        return ([VARIABLE] if self.max_batch_size else []) + list(spec.dims)
