"""Padded decodes over static tensors give the very tokens of unpadded ones. Capturing them is for `tests/gpu`."""

from pathlib import Path

import pytest
import torch

from nbgen.engine.assembly import Assembly
from nbgen.engine.attention import ReferenceAttention, Step
from nbgen.engine.cuda_graphs import BUCKETS, DecodeGraphs, bucket_of
from nbgen.engine.decode_row import DecodeRow
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids

PROMPTS = [list(range(10, 10 + length)) for length in (30, 7, 1, 19, 40)]


def requests() -> list[GenerateRequest]:
    """Five that end at different times, so that batches go through several buckets."""
    return [
        GenerateRequest(
            rid=f"r{i}", input_ids=p, params=SamplingParams(max_new_tokens=8 * (i + 1), temperature=0, ignore_eos=True)
        )
        for i, p in enumerate(PROMPTS)
    ]


def with_graphs(assembly: Assembly, most: int = 8, blocks: int = 8) -> DecodeGraphs:
    """Let the engine's decodes run padded over static tensors, as on a GPU."""
    runner = assembly.engine._runner
    runner.graphs = DecodeGraphs(runner.decode, runner.cache, ReferenceAttention(), most=most, blocks=blocks)
    return runner.graphs


def test_buckets_hold_their_batches() -> None:
    assert [bucket_of(size) for size in (1, 2, 3, 9, 33, 128, 129, 300)] == [1, 2, 4, 12, 48, 128, 256, 384]
    assert all(bucket_of(bucket) == bucket for bucket in BUCKETS)


@pytest.mark.parametrize("family", ["llama", "llama4_text"])  # whose queries are scaled by their positions
def test_padded_decodes_give_the_same_tokens(family: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, family, **FAMILIES[family].changes)
    expected = {rid: ids(outputs) for rid, outputs in generate(build(folder), requests()).items()}
    static = build(folder)
    graphs = with_graphs(static)
    assert {rid: ids(outputs) for rid, outputs in generate(static, requests()).items()} == expected
    assert sorted(graphs._graphs) == [1, 2, 4, 8], "a bucket was never used"


def test_what_a_graph_cannot_hold_runs_without(tiny_model: Path, tiny_engine: Assembly) -> None:
    expected = {rid: ids(outputs) for rid, outputs in generate(tiny_engine, requests()).items()}
    few = build(tiny_model)
    assert with_graphs(few, most=2, blocks=3).works
    assert {rid: ids(outputs) for rid, outputs in generate(few, requests()).items()} == expected


def test_a_model_that_cannot_be_captured_runs_without(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner = build(tiny_model).engine._runner  # of its own: block 0 is written to, whosever it is

    class Refuses(ReferenceAttention):
        def decode(self, *_: object) -> None:
            raise NotImplementedError("not in a graph")

    graphs = DecodeGraphs(runner.decode, runner.cache, Refuses(), most=4, blocks=2)
    assert graphs.decode([DecodeRow(7, 0, 0, [0])]) is None
    assert graphs.decode([DecodeRow(7, 0, 0, [0])]) is None
    assert not graphs.works
    assert caplog.text.count("cannot be captured") == 1


def test_a_bucket_without_memory_runs_without_and_others_go_on(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = build(tiny_model).engine._runner
    tried = []

    def decode(step: Step, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        tried.append(len(ids))
        if len(ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return runner.decode(step, ids, positions)

    graphs = DecodeGraphs(decode, runner.cache, ReferenceAttention(), most=4, blocks=2)
    row = DecodeRow(7, 0, 0, [0])
    assert [graphs.decode([row] * size) is not None for size in (2, 2, 1, 2, 1)] == [False, False, True, False, True]
    assert graphs.works
    assert tried.count(2) == 1, "a bucket is tried again and again"
    assert caplog.text.count("No memory for a CUDA graph of 2 rows (CUDA out of memory)") == 1


def test_inputs_have_room_for_what_the_cache_can_hold(tiny_model: Path) -> None:
    class Graphs(ReferenceAttention):
        graphs = True

    runner = build(tiny_model).engine._runner
    runner.attention = Graphs()
    blocks = []
    for few in (5, 1000):
        runner.cache.resize(few)
        runner.capture(2, context_length=128)
        blocks.append(runner.graphs._inputs.blocks)
    assert blocks == [5, 128 // runner.cache.block_size]
