"""An inference as every Triton dialect says it: tensors and parameters in, named tensors out, whatever the wire.

KServe's JSON and binary bodies, the generate extension and gRPC all become an `Inference`, and all answers are
`InferenceResponse`s. Knows no wire and no model.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from nbgen.errors import InternalError, InvalidRequest
from nbgen.messages import Tensor
from nbgen.protocols.tensors import Binary

Parameter = str | int | float | bool
RESERVED_PREFIX = "triton_"


class RequestedOutput(NamedTuple):
    """An output named in a request: as bytes or JSON, as it is or as its `classes` largest elements."""

    name: str
    binary: bool = False
    classes: int = 0


class Inference(msgspec.Struct, kw_only=True):
    """A request. No `outputs` means those that the model gives by default, as bytes if `binary_outputs`.

    A request that has not begun after `timeout_us` microseconds (0: any time) is given up. Its wire has room for one
    response if `whole`.
    """

    id: str = ""
    parameters: dict[str, Parameter] = {}
    inputs: dict[str, Tensor] = {}
    outputs: list[RequestedOutput] = []
    binary_outputs: bool = False
    timeout_us: int = 0
    whole: bool = False


class OutputTensor(NamedTuple):
    """A tensor of an answer."""

    name: str
    datatype: str
    shape: list[int]
    data: Binary


class InferenceResponse(msgspec.Struct, kw_only=True):
    """One response to a request; `final` is the last. A request that fails later ends with an exception instead.

    `pieces` counts what waited and was joined in it, each of which a quicker reader would have had as a response.
    """

    model_name: str
    model_version: str
    outputs: list[OutputTensor] = []
    final: bool = True
    pieces: int = 1

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(len(output.data) for output in self.outputs)


class Cancelled(InvalidRequest):
    """Somebody else has ended the request: a fault, to Triton's clients, of whoever sent it."""


class PinnedError(InternalError):
    """The request is at fault, but Triton's clients are told of an internal error."""
