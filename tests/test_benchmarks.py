"""The benchmark driver: real processes on a small model, what its limits mean, what its tables say."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
from transformers import AutoConfig

from benchmarks import drafts, gpu, gpu_profile, report, shapes, step_profile, vocabulary
from benchmarks.__main__ import measure
from benchmarks.engine import Engine
from benchmarks.limits import Cost, Limits, least_seconds
from benchmarks.measured_process import MeasurementFailed
from benchmarks.peers import MACHINE, OURS, PEERS, REFERENCE
from benchmarks.results import Results
from benchmarks.server import Server
from benchmarks.servers import OURS_SERVED, SERVICES
from benchmarks.shapes import make
from benchmarks.turns import undisturbed
from benchmarks.workloads import WORKLOADS, Workload
from nbgen.engine.assembly import assemble
from nbgen.engine_config import EngineConfig
from tests.conftest import PATIENCE
from tests.soak import soaking

LIMITS = Limits(bandwidth=1e9, bfloat16=1e12, float32=1e11)
SMALL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
COST = Cost(weights=1_000_000, head=100_000, pair_operations=1000, cache_bytes=100)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("models") / "small", SMALL)


@pytest.mark.parametrize("name", [OURS, soaking(REFERENCE)])
def test_an_engine_is_measured_and_paused(model: Path, name: str) -> None:
    engine = Engine(PEERS[name], model, 1)
    try:
        for workload in ("prefill", "sampled"):
            figures = engine.measure(WORKLOADS[workload], 1)
            assert 0 < figures["seconds"] < PATIENCE
        assert engine.start_seconds > 0
        assert figures["cpu_seconds"] > 0
        assert engine.resident_bytes() > 50e6
    finally:
        engine.close()


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match=r"nbgen: .*config\.json"):
        Engine(PEERS[OURS], tmp_path, 1)


@pytest.mark.soak
def test_a_server_is_measured_by_process(model: Path) -> None:
    server = Server(SERVICES[OURS_SERVED], model, 1)
    try:
        figures = server.measure(2, 1)
    finally:
        server.close()
    assert figures["tokens"] == 256
    assert 0 <= figures["gap_p50"] <= figures["gap_p99"] < figures["seconds"]
    assert 0 < figures["first_token_p50"] < figures["seconds"]
    assert figures["engine_cpu_seconds"] > figures["server_cpu_seconds"] > 0


def test_the_machine_is_measured_as_engines_are(tmp_path: Path) -> None:
    machine = Engine(MACHINE, make(tmp_path / "model", {**SMALL, "vocab_size": 32_768}), 1)
    try:
        found = machine.measure(WORKLOADS["prefill"], 1)
    finally:
        machine.close()
    assert all(1e8 < found[name] < 1e14 for name in Limits._fields)
    assert 0 < found["cpu_seconds"] <= 1.1 * found["seconds"]


@pytest.mark.soak  # it compiles a library that times its parts
def test_a_profile_tells_what_each_part_takes(model: Path) -> None:
    names = ("single", "sampled", "prefill")
    head, _, *rows = step_profile.table(model, 1, *names).splitlines()
    parts = [cell.strip() for cell in head.split("|")[4:-1]]
    assert tuple(parts) == step_profile.PARTS
    assert [row.split("|")[1].strip() for row in rows] == [WORKLOADS[name].title for name in names]
    for row in rows:
        step, *took = (float(cell.split()[0]) for cell in row.split("|")[3:-1])
        assert sum(took) == pytest.approx(step, abs=0.01), row
        assert all(part > 0 for part in took[:3]), f"layers in C++ say what they take: {row}"


def test_prompts_are_new_for_each_seed_and_share_what_they_should() -> None:
    workload = WORKLOADS["prefix"]
    first, second = workload.prompts(512, 1), workload.prompts(512, 2)
    assert first == workload.prompts(512, 1)
    assert first[0][:20] != second[0][:20]
    assert len({tuple(ids[:900]) for ids in first}) == 1
    assert len({tuple(ids) for ids in first}) == 16
    assert {len(ids) for ids in first} == {950}


def test_decoding_is_bound_by_bytes_and_a_prompt_by_operations() -> None:
    decode = least_seconds(WORKLOADS["single"], COST, LIMITS)
    assert decode == pytest.approx(128 * COST.weight_bytes / LIMITS.bandwidth, rel=0.02)
    prompt = least_seconds(WORKLOADS["prefill"], COST, LIMITS._replace(bandwidth=1e12))
    operations = 2 * COST.weights * 1024 + 2 * COST.head + COST.pair_operations * 1024**2 / 2
    assert prompt == pytest.approx(operations / LIMITS.bfloat16)


def test_cost_of_a_llama_counts_its_parameters(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    cost = Cost.of(config)
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128
    assert (cost.weights, cost.head) == (2 * layer, 64 * 512)
    assert cost.cache_bytes == 2 * 2 * 32 * 2  # keys and values, layers, width, bytes


def test_a_disturbed_run_is_taken_again() -> None:
    runs = []

    def measure() -> dict[str, float]:
        runs.append(1)
        # The machine cannot have spent less than nothing besides us: no run counts as disturbed.
        return {"cpu_seconds": float("inf")}

    assert undisturbed(measure)["foreign"] == 0.0
    assert len(runs) == 1
    undisturbed(lambda: runs.append(1) or {"cpu_seconds": float("-inf")}, retries=2)
    assert len(runs) == 4


def test_a_new_run_takes_the_place_of_the_old(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    for run, seconds in (("a", 1.0), ("a", 3.0), ("b", 5.0)):
        results.add({"model": "m", "workload": "w", "engine": "e", "run": run, "turn": run, "seconds": seconds})
    again = Results(tmp_path / "results.json")
    assert [record["seconds"] for record in again.records] == [5.0]


def test_limits_stay_beside_the_turns_that_they_were_taken_in(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "checkpoint", lambda _: model)
    results = Results(tmp_path / "results.json")
    results.add({"model": "m", "workload": "prefill", "engine": MACHINE.name, "run": "a", "turn": "a 1"})
    asked = {"engines": ["nbgen-int8"], "rows": ["limits", "prefill"], "repetitions": 1, "threads": 1}
    measure("m", Namespace(**asked), results)
    taken = {record["engine"]: record["run"] for record in results.of(workload="prefill")}
    assert taken.keys() == {MACHINE.name, "nbgen-int8"}
    assert taken[MACHINE.name] == "a"


def test_the_table_has_rates_ratios_and_the_share_of_the_limit(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.facts = {
        "machine": "two cores",
        "costs": {"m": COST._asdict()},
    }
    common = {"model": "m", "workload": "single", "run": "2026-01-01", "load": 0.1, "command": "c", "cpu_seconds": 1.28}
    for engine, seconds in ((OURS, 1.28), (REFERENCE, 2.56)):
        results.add({**common, "engine": engine, "turn": "1", "seconds": seconds})
    results.add({**common, "engine": MACHINE.name, "turn": "1", "seconds": 1.0, **LIMITS._asdict()})
    text = report.render(results)
    limit = 128 / least_seconds(WORKLOADS["single"], COST, LIMITS)
    assert f"| single stream, 128 + 128, tok/s | {limit:.1f} | {100 * 100 / limit:.0f}% | 100.0 | 50.0 (2.00) |" in text
    assert "| single stream, 128 + 128 | 10.00 | 10.00 (1.00) |" in text


def test_weights_of_fewer_bits_have_a_table_of_their_own(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.facts = {"machine": "two cores"}
    common = {"model": "m", "workload": "single", "run": "2026-01-01", "load": 0.1, "command": "c", "cpu_seconds": 1.28}
    for engine, seconds in ((OURS, 1.28), ("nbgen-int8", 0.64), ("openvino-int8", 1.6)):
        results.add({**common, "engine": engine, "turn": "1", "seconds": seconds})
    whole, rounded = report.render(results).split("m beside peers with weights of 8 bits")
    assert "int8" not in whole.partition("| limit |")[2]
    assert "| nbgen int8 | OpenVINO GenAI int8 |" in rounded
    assert "| single stream, 128 + 128, tok/s | 200.0 | 80.0 (2.50) |" in rounded


def test_a_vocabulary_has_the_size_asked_for_and_single_digits(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    never = vocabulary.save(tmp_path, 2000)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 2000
    assert len(tokenizer("0123456789")["input_ids"]) == 10
    for token in set(range(2000)) - set(never):
        assert tokenizer.decode([token]).isascii()


def test_figures_of_a_gpu_are_taken_and_told(model: Path) -> None:
    """On the CPU, where nothing but the device is another."""
    figures = gpu.measure(model, Workload("small", "3 prompts", 3, 0, 40, 6), "cpu", 1)
    assert 0 < figures["one_first"] < figures["one_seconds"]
    assert figures["many_rate"] > 0
    assert figures["one_drawn"] > 0
    assert figures["peer_seconds"] > 0
    assert figures["peer_first"] > 0
    said = gpu.render({"small": {**figures, "command": "python -m benchmarks.gpu small", "machine": "a machine"}})
    beside = figures["peer_seconds"] / figures["many_seconds"]
    assert said.splitlines()[-4].endswith(f"| {figures['peer_seconds']:.2f} ({beside:.2f}) |")


def test_a_kernel_counts_from_the_end_of_the_one_before() -> None:
    """One that came up early, one that ran inside another, and a pause."""
    launches = [(0, 10, "multiply_one_row"), (4, 16, "attend_newest"), (5, 12, "gate"), (20, 26, "Memcpy")]
    found = gpu_profile.parts([gpu_profile.Launch(*launch) for launch in launches], 2)
    kinds = {"products": 5, "norms and gates": 1, "attention": 2, gpu_profile.OTHERS: 3, gpu_profile.IDLE: 2}
    assert found == kinds
    said = gpu._profiles({"small": {"one_parts": found}})
    assert "| small | 1 | 5 | 2 | 1 | 0 | 3 | 2 | 13 |" in said


@pytest.mark.parametrize(("name", "gigabytes"), [("qwen3-0.6b", 1.19), ("llama-3.2-1b", 2.47), ("llama-3.1-8b", 15.0)])
def test_the_shapes_for_a_gpu_weigh_what_those_models_do(name: str, gigabytes: float) -> None:
    """Read in each step: all but the rows of the input embedding."""
    cost = Cost.of(AutoConfig.for_model(**gpu.SHAPES[name]).to_dict())
    assert cost.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_what_guesses_gain_is_measured_on_texts_that_a_model_is_told(model: Path, tmp_path: Path) -> None:
    text = [*range(300, 340)] * 2
    assembly = assemble(EngineConfig(model=str(model), threads=1), lambda *_: None)
    found = drafts.told(assembly, [(text[:50], text[50:])])
    assert found["tokens_a_step"] > 2
    assert found["gain"] == pytest.approx(found["with"] / found["without"], rel=0.5)
    results = Results(tmp_path / "results.json")
    results.facts |= {"machine": "one", "drafts": {"machine": "another", "rows": {"a circle": found}}}
    assert f"| a circle | {found['tokens_a_step']:.2f} |" in report.render(results)
