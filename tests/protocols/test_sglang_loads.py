"""What balancers are told of the engine's load: names, sections and formats."""

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nbgen.engine_config import EngineConfig
from nbgen.engine_state import EngineStatus
from nbgen.errors import InvalidRequest
from nbgen.protocols.sglang_loads import Load, json_body, loads, metrics_body, parse_loads
from tests.protocols.test_sglang_info import MODEL

STATUS = EngineStatus(
    running=2,
    waiting=3,
    waiting_tokens=70,
    blocks_total=10,
    blocks_free=6,
    throughput=1.25,
    drafted_tokens=8,
    accepted_tokens=4,
    draft_steps=2,
)
LOAD = Load(EngineConfig(model="m"), MODEL, STATUS, hit_rate=0.5)


def told(include: str | None = None, rank: str | None = None, load: Load = LOAD) -> list[dict[str, Any]]:
    return loads(load, parse_loads(include, rank, None), 9.5)


def test_the_load_is_that_of_the_only_rank() -> None:
    (load,) = told()
    assert (load["timestamp"], load["dp_rank"], load["num_running_reqs"], load["num_waiting_reqs"]) == (9.5, 0, 2, 3)
    used = load["num_used_tokens"]
    assert (load["num_waiting_uncached_tokens"], load["num_total_tokens"]) == (70, used + 70)
    assert load["token_usage"] == used / load["max_total_num_tokens"] == 0.4
    assert (load["gen_throughput"], load["cache_hit_rate"]) == (1.25, 0.5)
    assert load["memory"]["token_capacity"] == load["max_total_num_tokens"]
    assert load["speculative"] == {"accept_length": 3.0, "accept_rate": 0.5}
    assert (load["disaggregation"], load["queues"]) == ({"mode": "null"}, {"waiting": 3})
    assert told(rank="0") == told()
    assert told(rank="1") == told(rank="-1") == []
    idle = told(load=Load(EngineConfig(model="m"), None, EngineStatus(), 0.0))
    assert (idle[0]["token_usage"], "speculative" in idle[0]) == (0.0, False)


def test_sections_come_as_they_are_asked_for() -> None:
    sections = {"memory", "speculative", "disaggregation", "queues"}
    for include, shown in (
        ("core", set()),
        ("spec", {"speculative"}),
        ("memory, queues", {"memory", "queues"}),
        ("lora", set()),
        ("core,all", sections),
        (None, sections),
    ):
        (load,) = told(include)
        assert load.keys() & sections == shown
        assert "num_running_reqs" in load


def test_the_answer_is_json_or_gauges() -> None:
    answer = json.loads(json_body(told(), LOAD, "1", 9.5))
    assert (answer["timestamp"], answer["version"]) == ("1970-01-01T00:00:09.500000+00:00", "1")
    assert (answer["accelerator"], answer["num_accelerators"], len(answer["loads"])) == (None, 0, 1)
    families = {family.name: family for family in text_string_to_metric_families(metrics_body(told()).decode())}
    assert {family.type for family in families.values()} == {"gauge"}
    (sample,) = families["sglang_spec_accept_rate"].samples
    assert (sample.value, sample.labels) == (0.5, {"dp_rank": "0"})
    assert families["sglang_num_waiting_reqs"].samples[0].value == 3
    assert "sglang_disagg_mode" not in families, "a word is no number"
    assert metrics_body([]) == b""


@pytest.mark.parametrize(
    ("query", "field"),
    [(("cores", None, None), "include"), ((None, "x", None), "dp_rank"), ((None, None, "xml"), "format")],
)
def test_what_is_not_known_is_refused(query: tuple[str | None, str | None, str | None], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_loads(*query)
    assert refused.value.field == field
