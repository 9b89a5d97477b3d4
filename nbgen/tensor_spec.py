"""What a model takes and gives as tensors: names, datatypes and dimensions, in KServe v2's words.

Knows neither wires nor torch; server, protocols and engine all read it.
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

    `reshape` is what the module itself sees or gives (None: `dims`); `also` are datatypes that are taken as well.
    `labels` name the elements of an output, by flat index. `several` inputs of one element take more, each of which
    is then answered as a request of its own would be.
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
    """A model's interface. With `max_batch_size` above 0 every tensor has a leading batch dimension of 1 to that.

    `required` inputs of those that are optional must be given; `undeclared` inputs are taken but not shown.
    `max_queue_delay_us` is how long a request may wait for others to be computed with it.
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
