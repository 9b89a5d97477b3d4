"""An engine on the GPU writes what one on the CPU writes, with graphs and without, and gives its memory back."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nbgen.engine import grammar_masks, memory
from nbgen.engine.assembly import Assembly
from nbgen.engine.attention import Step
from nbgen.engine.cuda_graphs import DecodeGraphs
from nbgen.engine.decode_row import DecodeRow
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids
from tests.engine.test_cuda_graphs import requests
from tests.engine.test_grammar import constrained
from tests.engine.test_lean_imports import PROMPT, WRITE, fresh
from tests.engine.test_stateful_blocks import QUESTIONS, answered

MB = 2**20

ARCHITECTURES = ("llama", "qwen3", "mistral", "gemma2", "gpt2", "gpt_oss", "bloom", "mamba")


def texts(assembly: Assembly) -> dict[str, list[int]]:
    return {rid: ids(outputs) for rid, outputs in generate(assembly, requests()).items()}


@pytest.mark.filterwarnings("ignore:.*causal_conv1d.*", "ignore:.*mamba_ssm.*")
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_greedy_equals_the_cpu_s(model_type: str, tmp_path: Path) -> None:
    """In float32, where the CPU's text is transformers' own (`tests/engine/test_engine.py`)."""
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    expected = texts(build(folder, device="cpu"))
    assert texts(build(folder, device="cuda", cuda_graphs=False)) == expected
    assert texts(build(folder, device="cuda")) == expected


#: Imports as an engine does.
LEANLY = """
import sys
from nbgen.engine.lean_imports import import_engine
from nbgen.engine_config import EngineConfig
config = EngineConfig(model=sys.argv[1])
import_engine(config)
"""


def test_a_process_of_its_own_which_imports_less_writes_the_same(tiny_model: Path) -> None:
    """Unless told otherwise, it computes on the GPU."""
    params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
    asked = [GenerateRequest(rid="r", input_ids=PROMPT, params=params)]
    expected = ids(generate(build(tiny_model, device="cpu"), asked)["r"])
    on_gpu = "import torch; print(torch.cuda.max_memory_allocated() > 0)"
    assert fresh(LEANLY + WRITE + on_gpu, tiny_model) == [str(expected), "True"]


@pytest.mark.filterwarnings("ignore:.*causal_conv1d.*", "ignore:.*fla.*")
@pytest.mark.parametrize("model_type", ["lfm2", "qwen3_next"])
def test_prompts_begin_from_states_that_were_copied_on_the_device(model_type: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    expected, assembly = answered(build(folder, device="cpu"), QUESTIONS), build(folder, device="cuda")
    assert [answered(assembly, QUESTIONS), answered(assembly, QUESTIONS[:1])[0][0]] == [expected, expected[0][0]]


def test_graphs_are_captured_and_change_nothing(tiny_model: Path) -> None:
    with_graphs, without = build(tiny_model, device="cuda"), build(tiny_model, device="cuda", cuda_graphs=False)
    assert texts(with_graphs) == texts(without)
    graphs = with_graphs.engine._runner.graphs
    assert graphs.works
    assert sorted(graphs._graphs) == [1, 2, 4, 8]
    assert without.engine._runner.graphs is None


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}


@pytest.mark.parametrize("model_type", ["dbrx", "jetmoe", "longcat_flash", "llama"])
def test_decodes_that_wait_for_the_device_run_without_graphs(model_type: str, tmp_path: Path) -> None:
    changes = DYNAMIC if model_type == "llama" else FAMILIES[model_type].changes
    folder = save_model(tmp_path, model_type, **changes)
    expected, assembly = texts(build(folder, device="cpu")), build(folder, device="cuda")
    assert not assembly.engine._runner.graphs.works
    assert torch.cuda.get_sync_debug_mode() == 0
    assert texts(assembly) == expected
    check_memory_comes_back()


def test_a_capture_that_breaks_leaves_nothing_behind(tiny_model: Path) -> None:
    runner = build(tiny_model, device="cuda", cuda_graphs=False).engine._runner

    def decode(step: Step, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        scores = runner.decode(step, ids, positions)
        if torch.cuda.is_current_stream_capturing():
            scores.sum().item()
        return scores

    graphs = DecodeGraphs(decode, runner.cache, runner.attention, most=1, blocks=2)
    assert graphs.decode([DecodeRow(7, 0, 0, [0])]) is None
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    check_memory_comes_back()


def check_memory_comes_back() -> None:
    """What nobody refers to any more goes back to the system."""
    torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
    held = torch.cuda.memory_reserved()
    memory.give_back(torch.device("cuda"))
    assert held - torch.cuda.memory_reserved() >= 64 * MB


def test_waking_again_and_again_takes_no_more_memory(tiny_model: Path) -> None:
    assembly, held = build(tiny_model, device="cuda"), []
    for _ in range(4):
        assembly.occupation.rest()
        held.append(torch.cuda.memory_reserved())
        assembly.occupation.wake()
    assert max(held) == held[0], "cuBLAS has memory for each stream that it has worked on"


def test_sampled_text_is_the_same_with_graphs(tiny_model: Path) -> None:
    params = SamplingParams(max_new_tokens=30, temperature=1.0, sampling_seed=5, ignore_eos=True)
    request = GenerateRequest(rid="s", text="Hello", params=params)
    one, other = build(tiny_model, device="cuda"), build(tiny_model, device="cuda", cuda_graphs=False)
    assert ids(generate(one, [request])["s"]) == ids(generate(other, [request])["s"])


SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logit_bias": {5: 1.0}, "min_new_tokens": 30},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 0.0, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
]


def sampled(stop: tuple[int, ...] = ()) -> list[GenerateRequest]:
    """One for each kind of sampling."""
    return [
        GenerateRequest(
            rid=f"s{i}",
            input_ids=list(range(10, 20 + i)),
            params=SamplingParams(
                max_new_tokens=40, sampling_seed=i, stop_token_ids=stop, ignore_eos=not stop, **options
            ),
        )
        for i, options in enumerate(SAMPLING)
    ]


@pytest.mark.parametrize("graphs", [True, False])
def test_looking_ahead_changes_no_text(graphs: bool, tiny_model: Path) -> None:
    ahead, without = (build(tiny_model, device="cuda", cuda_graphs=graphs) for _ in range(2))
    assert ahead.engine._launcher.lookahead, "what a GPU does"
    without.engine._launcher.lookahead = False
    for asked in (sampled(), sampled(stop=tuple(range(4, 40)))):
        got, expected = generate(ahead, asked), generate(without, asked)
        assert {rid: ids(outputs) for rid, outputs in got.items()} == {r: ids(o) for r, o in expected.items()}
        status = ahead.engine.status()
        assert status.blocks_free == status.blocks_total


@pytest.mark.parametrize("kernels", [True, False])
def test_grammars_constrain_with_kernels_and_without(
    kernels: bool, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_new_tokens=20, temperature=0.0, regex="[ab]{3,9}")
    asked = [GenerateRequest(rid="g", input_ids=[10, 20, 30], params=params), *sampled()]
    cpu, gpu = build(tiny_model, device="cpu"), build(tiny_model, device="cuda")
    try:
        expected = ids(constrained(cpu, *asked)["g"])
        if not kernels:
            monkeypatch.setattr(grammar_masks, "has_kernels", lambda _: False)
        assert ids(constrained(gpu, *asked)["g"]) == expected
    finally:
        cpu.close()
        gpu.close()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("graphs", [True, False])
def test_launching_waits_for_nothing(graphs: bool, tiny_model: Path) -> None:
    assembly = build(tiny_model, device="cuda", cuda_graphs=graphs)
    engine = assembly.engine
    for request in sampled():
        engine.add(assembly.admission.sequences(request))
    for _ in range(6):  # graphs are captured, and kernels compiled
        engine.step()
    for _ in range(10):
        try:
            torch.cuda.set_sync_debug_mode("error")
            launched = engine._launcher.launch(engine._runner, engine._scheduler)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert engine._launcher.ahead is not None
        assert len(engine._finish(launched)) == len(SAMPLING)


@pytest.mark.parametrize("tags", [{"kv_cache"}, {"kv_cache", "weights"}])
def test_memory_is_given_back_within_a_second(tags: set, large_model: Path) -> None:
    assembly = build(large_model, device="cuda", kv_cache_bytes=512 * MB)
    expected = texts(assembly)
    torch.cuda.synchronize()
    held, started = torch.cuda.memory_reserved(), time.perf_counter()
    assembly.occupation.release(tags)
    elapsed, freed = time.perf_counter() - started, held - torch.cuda.memory_reserved()
    assert elapsed < 1
    assert freed > (900 if "weights" in tags else 450) * MB, f"{freed} bytes came back"
    started = time.perf_counter()
    assembly.occupation.resume(tags)
    assert time.perf_counter() - started < 2, "graphs and all"
    assert texts(assembly) == expected
