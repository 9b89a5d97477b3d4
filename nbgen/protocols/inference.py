"""An inference in the form common to all Triton dialects: tensors and parameters in, named tensors out.

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
    """An output named in a request: as bytes or JSON; whole, or its `classes` largest elements if that is not 0."""

    name: str
    binary: bool = False
    classes: int = 0


class Inference(msgspec.Struct, kw_only=True):
    """A request. Without `outputs` it gets the model's default ones, as bytes if `binary_outputs`.

    A request that has not started after `timeout_us` microseconds fails (0: no limit). If `whole`, its wire can carry
    only one response.
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

    `pieces` counts the outputs joined in it: a faster reader would have got each as a response of its own.
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
    """The request was aborted by another call. Triton's clients see it as an error of the request (400)."""


class PinnedError(InternalError):
    """The request is at fault, but Triton answers it with an internal error, and so do we."""
