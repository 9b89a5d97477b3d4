"""Triton's model metrics, beside SGLang's at `/metrics`, with the names, labels and order that dashboards expect.

Formatted here, since `prometheus_client` would append `_total` to counters' names. Knows only Prometheus' text format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nbgen.server.served_model import ServedModel
from nbgen.server.statistics import COMPUTE

FAILURES = "nv_inference_request_failure"
Value = Callable[[ServedModel], float]

COUNTERS: dict[str, tuple[str, Value]] = {
    "nv_inference_request_success": (
        "Requests that were answered.",
        lambda model: model.statistics.duration("success").count,
    ),
    "nv_inference_count": ("Inferences, each entry of a batch for itself.", lambda model: model.statistics.inferences),
    "nv_inference_exec_count": ("Executions of the model.", lambda model: model.statistics.executions),
}
DURATIONS = {"request": "success", "queue": "queue"} | {name: name for name in COMPUTE}
GAUGES: dict[str, tuple[str, Value]] = {
    "nv_inference_pending_request_count": ("Requests that wait or run.", lambda model: model.statistics.pending),
    "nv_model_load_duration_secs": ("Seconds of the last load.", lambda model: model.load_seconds),
}


def text(models: Iterable[ServedModel]) -> bytes:
    """All counters and gauges of the models, in Prometheus' text format."""
    return "".join(_families(list(models))).encode()


def _families(models: list[ServedModel]) -> Iterator[str]:
    for kind, metrics in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name, (words, value) in metrics.items():
            yield _head(name, words, kind)
            yield from (f"{name}{{{_labels(model)}}} {value(model):.16g}\n" for model in models)
    for part, source in DURATIONS.items():
        name = f"nv_inference_{part}_duration_us"
        yield _head(name, f"Microseconds of answered requests in all: {source}.", "counter")
        for model in models:
            yield f"{name}{{{_labels(model)}}} {model.statistics.duration(source).ns // 1000}\n"
    yield _head(FAILURES, "Requests that failed.", "counter")
    for model in models:
        for reason, count in model.statistics.failures.items():
            labels = _labels(model, f'reason="{reason}",')
            yield f"{FAILURES}{{{labels}}} {count}\n"


def _head(name: str, words: str, kind: str) -> str:
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n"


def _labels(model: ServedModel, between: str = "") -> str:
    """A model's labels. Names and versions hold no character that needs an escape."""
    return f'model="{model.spec.name}",{between}version="{model.spec.version}"'
