"""SGLang's `/v1/loads`: the load of the engine, for balancers and monitors, as JSON or in Prometheus' text format.

Names follow SGLang 0.5.23. There is one rank, and what is not measured is left out. Knows neither HTTP nor the engine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from nbgen.engine_config import EngineConfig
from nbgen.engine_state import EngineStatus, ModelInfo
from nbgen.errors import InvalidRequest

#: The sections of an answer by the names that ask for them; "core" is always there.
SECTIONS = {"memory": "memory", "spec": "speculative", "disagg": "disaggregation", "queues": "queues"}
KNOWN = {"core", "all", "lora", *SECTIONS}
#: Sections whose metrics have another prefix than their name.
PREFIXES = {"speculative": "spec", "disaggregation": "disagg"}
FORMATS = ("json", "prometheus")


class Wanted(NamedTuple):
    """Which parts of the load a caller wants, and how."""

    sections: set[str]
    as_metrics: bool
    has_rank: bool


def parse_loads(include: str | None, rank: str | None, form: str | None) -> Wanted:
    """A query string: sections by name, the number of a rank, the format. Raises InvalidRequest."""
    names = {name.strip() for name in include.split(",")} if include else {"all"}
    if unknown := sorted(names - KNOWN):
        raise InvalidRequest(
            f"include names {unknown[0]!r:.80}; it may name {', '.join(sorted(KNOWN))}", field="include"
        )
    if form not in (None, *FORMATS):
        raise InvalidRequest(f"format must be {' or '.join(FORMATS)}, got {form!r:.80}", field="format")
    if rank is not None and not rank.removeprefix("-").isdecimal():
        raise InvalidRequest(f"dp_rank must be an integer, got {rank!r:.80}", field="dp_rank")
    return Wanted(names, form == "prometheus", rank is None or int(rank[:9]) == 0)


class Load(NamedTuple):
    """The engine's present load; `hit_rate` is the share of the latest prompts that was cached."""

    config: EngineConfig
    model: ModelInfo | None
    status: EngineStatus
    hit_rate: float


def loads(load: Load, wanted: Wanted, now: float) -> list[dict[str, Any]]:
    """The load of the only rank, unless another one is wanted; `now` is in seconds since 1970."""
    if not wanted.has_rank:
        return []
    sections = {
        "memory": _memory(load),
        "speculative": _speculative(load.status),
        "disaggregation": {"mode": "null"},
        "queues": {"waiting": load.status.waiting},
    }
    asked = SECTIONS if "all" in wanted.sections else wanted.sections & SECTIONS.keys()
    shown = {SECTIONS[name]: sections[SECTIONS[name]] for name in SECTIONS if name in asked}
    return [{"timestamp": now, **_core(load), **{name: section for name, section in shown.items() if section}}]


def json_body(found: list[dict[str, Any]], load: Load, version: str, now: float) -> bytes:
    """The answer as JSON."""
    device = load.model.device if load.model else "cpu"
    answer = {
        "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
        "version": version,
        "accelerator": None,
        "num_accelerators": 0 if device == "cpu" else 1,
        "loads": found,
    }
    return msgspec.json.encode(answer)


def metrics_body(found: list[dict[str, Any]]) -> bytes:
    """The answer as gauges of Prometheus."""
    lines = [line for load in found for name, value in load.items() for line in _gauges(name, value, load["dp_rank"])]
    return "".join(f"{line}\n" for line in lines).encode()


def _gauges(name: str, value: Any, rank: int) -> list[str]:
    if isinstance(value, dict):
        prefix = PREFIXES.get(name, name)
        return [line for inner, number in value.items() for line in _gauges(f"{prefix}_{inner}", number, rank)]
    if name == "dp_rank" or not isinstance(value, int | float):
        return []
    return [f"# TYPE sglang_{name} gauge", f'sglang_{name}{{dp_rank="{rank}"}} {value}']


def _core(load: Load) -> dict[str, Any]:
    status = load.status
    total = status.used_tokens + status.waiting_tokens
    return {
        "dp_rank": 0,
        "num_running_reqs": status.running,
        "num_waiting_reqs": status.waiting,
        "num_waiting_uncached_tokens": status.waiting_tokens,
        "num_used_tokens": status.used_tokens,
        "num_total_tokens": total,
        "num_active_tokens": total,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": status.kv_tokens,
        "max_running_requests": (load.model and load.model.max_running) or load.config.max_running,
        "token_usage": round(status.usage, 4),
        "gen_throughput": round(status.throughput, 2),
        "cache_hit_rate": round(load.hit_rate, 4),
    }


def _memory(load: Load) -> dict[str, Any]:
    weights = load.model.weight_bytes if load.model else 0
    return {"weight_gb": round(weights / 2**30, 3), "token_capacity": load.status.kv_tokens}


def _speculative(status: EngineStatus) -> dict[str, Any]:
    if not status.draft_steps:
        return {}
    return {"accept_length": status.accept_length, "accept_rate": status.accept_rate}
