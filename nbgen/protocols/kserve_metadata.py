"""KServe v2's metadata: of the server, of a model and its configuration, and of the repository.

Follows Triton 2.73's names and defaults; gRPC says the same. Knows no route.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from nbgen.errors import InvalidRequest, Unsupported
from nbgen.protocols.json_body import MalformedBody, parse_object
from nbgen.tensor_spec import ModelSpec, TensorSpec

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
ModelState = Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]


def server_metadata(name: str, version: str) -> dict[str, Any]:
    """`GET v2`. The name is configurable, since Triton's own examples insist on "triton"."""
    return {"name": name, "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(spec: ModelSpec) -> dict[str, Any]:
    """`GET v2/models/M`: shapes include the batch dimension, as on the wire."""

    def tensor(item: TensorSpec) -> dict[str, Any]:
        return {"name": item.name, "datatype": item.datatype, "shape": spec.shape(item)}

    return {
        "name": spec.name,
        "versions": [spec.version],
        "platform": spec.platform or spec.backend,
        "inputs": [tensor(item) for item in spec.inputs],
        "outputs": [tensor(item) for item in spec.outputs],
    }


def model_config(spec: ModelSpec, device: str) -> dict[str, Any]:
    """`GET v2/models/M/config`: dimensions without the batch dimension."""
    gpu = device.startswith("cuda")
    config: dict[str, Any] = {
        "name": spec.name,
        "platform": spec.platform,
        "backend": spec.backend,
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": spec.max_batch_size,
        "input": [_config_input(item) for item in spec.inputs],
        "output": [_config_output(item) for item in spec.outputs],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [
            {
                "name": f"{spec.name}_0",
                "kind": "KIND_GPU" if gpu else "KIND_CPU",
                "count": 1,
                "gpus": [int(device.partition(":")[2] or 0)] if gpu else [],
                "secondary_devices": [],
                "profile": [],
                "passive": False,
                "host_policy": "",
            }
        ],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": spec.decoupled},
    }
    if spec.max_batch_size:
        config["dynamic_batching"] = _batching(spec)
    return config


def _batching(spec: ModelSpec) -> dict[str, Any]:
    return {
        "preferred_batch_size": [spec.max_batch_size],
        "max_queue_delay_microseconds": spec.max_queue_delay_us,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    }


def _config_tensor(item: TensorSpec) -> dict[str, Any]:
    kind = "STRING" if item.datatype == "BYTES" else item.datatype
    config: dict[str, Any] = {"name": item.name, "data_type": f"TYPE_{kind}", "dims": list(item.dims)}
    return config | ({"reshape": {"shape": list(item.reshape)}} if item.reshape is not None else {})


def _config_input(item: TensorSpec) -> dict[str, Any]:
    return _config_tensor(item) | {
        "format": item.format,
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": item.optional,
        "is_non_linear_format_io": False,
    }


def _config_output(item: TensorSpec) -> dict[str, Any]:
    return _config_tensor(item) | {
        "label_filename": item.label_filename or ("labels.txt" if item.labels else ""),
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }


# --- repository


def parse_index(body: bytes) -> bool:
    """Whether the body asks for ready models only. Raises InvalidRequest."""
    words = "Invalid value for 'ready': expected a boolean"
    try:
        ready = parse_object(body).get("ready", False)
    except MalformedBody:
        raise InvalidRequest(words if b'"ready"' in body else "failed to parse the request JSON buffer") from None
    if not isinstance(ready, bool):
        raise InvalidRequest(words)
    return ready


def index_entry(spec: ModelSpec, state: ModelState, reason: str) -> dict[str, str]:
    """One model of the repository; one that was never loaded has only a name."""
    if state == "UNAVAILABLE" and not reason:
        return {"name": spec.name}
    entry = {"name": spec.name, "version": spec.version, "state": state}
    return entry | ({"reason": reason} if reason else {})


def check_repository(name: str) -> None:
    """Raise Unsupported for a repository's name: the only repository has none."""
    if name:
        raise Unsupported(f"a repository by name is not supported: '{name[:200]}'")


def check_load(parameters: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for any parameter of a load: models are loaded as they are configured."""
    if parameters:
        raise InvalidRequest(
            f"failed to load: the parameter '{next(iter(parameters))[:80]}' would override what this server is "
            "configured with, which it does not take over the network"
        )


def check_unload(parameters: Mapping[str, Any]) -> None:
    """Check the only option of an unload, which has no effect here: no model depends on another."""
    if not isinstance(parameters.get("unload_dependents", False), bool):
        raise InvalidRequest("Unable to parse 'unload_dependents': expected a boolean")


def parse_parameters(body: bytes) -> dict[str, Any]:
    """The parameters in the body of a load or an unload."""
    parameters = parse_object(body).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("'parameters' must be a JSON object")
    return parameters
