"""The messages between the server and the process that runs plain modules, besides `messages.TensorPiece`."""

from __future__ import annotations

import msgspec

from nbgen.engine_config import EngineConfig
from nbgen.messages import Struct, Tensor
from nbgen.tensor_spec import ModelSpec


class ServeTensors(Struct, frozen=True):
    """The first message to an engine process that runs plain modules instead of a language model.

    `exported`: a module that torch exports comes soon.
    """

    config: EngineConfig
    exported: bool = False


class LoadModule(Struct, frozen=True):
    """Load or reload the module in a version's folder of the model repository."""

    rid: str
    spec: ModelSpec
    folder: str


class UnloadModule(Struct, frozen=True):
    """Unload a module and free its memory."""

    name: str


class InferRequest(Struct, frozen=True):
    """Inputs for a module, checked against its interface, and the names of the wanted outputs.

    A request that still waits after `timeout_us` microseconds fails (0: no limit).
    """

    rid: str
    model: str
    inputs: list[Tensor]
    outputs: list[str]
    timeout_us: int = 0


class ModuleState(Struct, frozen=True):
    """The module of the load `rid` is loaded, or has failed to load: then `error` says why."""

    rid: str
    device: str = ""
    error: str | None = None


class InferOutput(Struct, frozen=True):
    """A module's answer to one request, or `error` with its `status`.

    Durations are in nanoseconds. `executed` batch entries were computed together; one of their requests `leads`.
    """

    rid: str
    outputs: list[Tensor] = msgspec.field(default_factory=list)
    error: str | None = None
    status: int = 500
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    executed: int = 1
    leads: bool = True
