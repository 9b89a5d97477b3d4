"""Decodes in one kernel attend as the formula does over what it has stored, in Triton's interpreter."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from nbgen.engine.attention import ReferenceAttention, Scores, Span, Step
from nbgen.engine.attention_window import Window
from nbgen.engine.kv_cache import KVCache
from tests.conftest import at_least
from tests.engine.kernel_build import NEEDS_TRITON, Usage, compiled, typed
from tests.soak import soaking

pytestmark = NEEDS_TRITON

PAGE, EPSILON = 16, 1e-5


class Decodes(NamedTuple):
    """Lengths of sequences with their newest token; heads, their width; whether they are normed, and what is seen."""

    lengths: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    normed: bool = False
    window: Window = Window()


CASES = {
    "first tokens": Decodes((1, 2)),
    "ends of tiles": Decodes((15, 16, 17, 64, 65)),
    "normed heads": Decodes((40, 3), normed=True),
    "a group that is no power of two": Decodes((21,), heads=6, kv_heads=2),
    "heads that are no power of two": Decodes((50,), dim=24),
    "one key head": Decodes((33, 18), heads=8, kv_heads=1, dim=64),
    "many splits": Decodes((300,)),
    "a sliding window": Decodes((5, 90, 300), window=Window(sliding=40)),
    "a chunk": Decodes((64, 65, 100), window=Window(chunk=64)),
}
#: Multiprocessors: what few sequences are split for.
PROCESSORS = (1, 6, 64)


def both_ways(
    case: Decodes, processors: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """What is attended, and keys and values stored: in one kernel, and turned by a kernel and attended by torch."""
    from nbgen.engine import attention_triton, fused_attention

    torch.manual_seed(0)
    heads, projected, rotary = _inputs(case, device, dtype)
    found = []
    for attention in (attention_triton.TritonAttention(processors), ReferenceAttention()):
        step = _step(case, attention, projected)
        for _ in range(2):  # what is between programs must be as before when they end
            output = fused_attention.attend(projected.clone(), heads, step, rotary)
        stored = [tensor[step.slots] for tensor in step.cache.layer(0)]
        found.append(tuple(tensor.float().cpu() for tensor in (output, *stored)))
    return found[0], found[1]


def _inputs(case: Decodes, device: str, dtype: torch.dtype) -> tuple[Any, torch.Tensor, Any]:
    from nbgen.engine.fused_attention import Heads
    from nbgen.engine.fused_rows import Norm
    from nbgen.engine.rotary_table import Rotary

    made = {"device": device, "dtype": dtype}
    norms = tuple(Norm(torch.rand(case.dim, **made) + 0.5, EPSILON) for _ in range(2)) if case.normed else None
    heads = Heads(0, norms, case.heads, case.kv_heads, case.dim, case.window, Scores(case.dim**-0.5))
    projected = torch.randn(len(case.lengths), (case.heads + 2 * case.kv_heads) * case.dim, **made)
    angles = torch.rand(max(case.lengths), case.dim // 2, device=device) * 6
    positions = torch.tensor(case.lengths, device=device) - 1
    return heads, projected, Rotary(positions, angles.cos().to(dtype), angles.sin().to(dtype))


def _step(case: Decodes, attention: ReferenceAttention, like: torch.Tensor) -> Step:
    """Of sequences whose blocks lie anywhere; the cache is full of random numbers."""
    counts = [-(-length // PAGE) for length in case.lengths]
    chance = torch.Generator().manual_seed(1)
    blocks = torch.randperm(sum(counts), generator=chance).tolist()
    tables = [[blocks.pop() for _ in range(count)] for count in counts]
    cache = KVCache(sum(counts), PAGE)
    one = like.new_zeros(1, case.kv_heads, case.dim)
    for tensor in cache.write(0, torch.zeros(1, dtype=torch.long, device=like.device), one, one):
        tensor.copy_(torch.randn(tensor.shape, generator=chance))
    spans = [Span(i, i + 1, length, table) for i, (length, table) in enumerate(zip(case.lengths, tables, strict=True))]
    slots = [span.block_table[-1] * PAGE + (span.length - 1) % PAGE for span in spans]
    return Step(cache, attention, torch.tensor(slots, device=like.device), spans, [])


#: In which it matters where keys are split. The others have one number of processors each, in turn.
SPLIT = ("ends of tiles", "many splits", "a sliding window", "a chunk")
RUNS: list[Any] = [(name, each) if each == 6 else soaking(name, each) for name in SPLIT for each in PROCESSORS]
for place, name in enumerate(name for name in CASES if name not in SPLIT):
    RUNS += [(name, each) if place % 3 == turn else soaking(name, each) for turn, each in enumerate(PROCESSORS)]


@pytest.mark.parametrize(("name", "processors"), RUNS)
def test_one_kernel_does_what_several_do(name: str, processors: int, interpreter: ProcessPoolExecutor) -> None:
    found, expected = interpreter.submit(both_ways, CASES[name], processors).result()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


#: Query heads to a key head, width of a head, whether it is normed; many sequences, or one whose keys are split.
SHAPES = [
    (2, 128, True),
    soaking(4, 128, False),
    soaking(4, 64, False),
    soaking(7, 128, False),
    soaking(1, 96, False),
    (2, 256, False),
]


def compiled_for(group: int, dim: int, normed: bool, splits: int, folder: Path) -> tuple[Usage, int]:
    from nbgen.engine.attention import Layer
    from nbgen.engine.attention_triton import MOST_SPLITS, width
    from nbgen.engine.decode_kernel import attend_newest
    from nbgen.engine.fused_attention import tiling_of

    query, key = (torch.empty(1, heads, dim, dtype=torch.bfloat16) for heads in (group, 1))
    shape = tiling_of(query, Layer(key, key), splits)
    constants = {"GROUP": group, "KV_HEADS": 8, "DIM": dim, "NORMED": normed, "SPLIT": splits > 1, "PAGE": PAGE}
    constants |= {"BLOCK_M": shape.rows, "BLOCK_N": shape.keys, "BLOCK_D": width(dim // 2), "BLOCK_V": width(dim)}
    constants |= {"BLOCK_S": MOST_SPLITS, "PRECISION": "tf32", "OVERLAPS": True}
    kinds = dict.fromkeys(("epsilon", "scale"), "fp32")
    kinds |= dict.fromkeys(("positions", "slots", "lengths"), "*i64") | dict.fromkeys(("arrivals", "tables"), "*i32")
    kinds |= dict.fromkeys(("parts", "log_sums"), "*fp32" if splits > 1 else "*bf16")
    strides = [name for name in attend_newest.arg_names if name.endswith("stride")]
    kinds |= dict.fromkeys((*strides, "sliding", "chunk", "splits"), "i32")
    types = typed(attend_newest, kinds, constants)
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    return compiled(attend_newest, types, constants, folder, **options), shape.warps


@pytest.mark.skipif(not at_least("triton", "3.7"), reason="an older Triton gives out registers otherwise")
@pytest.mark.parametrize("splits", [soaking(1), 31])
@pytest.mark.parametrize(("group", "dim", "normed"), SHAPES)
def test_keys_come_while_the_kernel_before_still_runs(
    group: int, dim: int, normed: bool, splits: int, compiler: ProcessPoolExecutor, tmp_path: Path
) -> None:
    found, warps = compiler.submit(compiled_for, group, dim, normed, splits, tmp_path).result()
    assert found.local == 0, "registers spill"
    assert found.stack <= 8, "more than one register, which Triton 3.8 stores and loads once, spills"
    assert found.tensor_cores
    assert len(found.early) >= 8, "nothing is fetched before"
    # Of the 64 K registers of a multiprocessor: two programs or more, so that one loads while another computes.
    assert found.registers * warps * 32 * 2 <= 65_536


def most_likely_of(scores: torch.Tensor) -> torch.Tensor:
    from nbgen.engine.step_kernels import most_likely

    return most_likely(scores, -1)


def odd_scores() -> torch.Tensor:
    """Rows of more than one part: ties, NaN, infinities, and nothing finite."""
    scores = torch.randn(7, 20_000)
    scores[1, [19_000, 9000, 400]] = 9.0
    scores[2, 10_000:], scores[2, 77] = float("nan"), 9.0
    scores[3] = float("-inf")
    scores[4], scores[4, 19_999] = float("-inf"), -3.0
    scores[5] = float("nan")
    scores[6, 12_345] = float("inf")
    return scores


def test_the_most_likely_token_is_the_first_of_equals(interpreter: ProcessPoolExecutor) -> None:
    scores = odd_scores()
    found = interpreter.submit(most_likely_of, scores).result().tolist()
    assert found == [int(scores[0].argmax()), 400, 77, -1, 19_999, -1, 12_345]


def placed(by_kernel: bool, device: str = "cpu") -> list[torch.Tensor]:
    """What a batch left in the static tensors: awaited tokens, tables of several lengths, and a row that pads."""
    from nbgen.engine.decode_row import DecodeRow
    from nbgen.engine.graph_inputs import GraphInputs, pack
    from nbgen.engine.sampled_tokens import SampledTokens

    cache = KVCache(900, PAGE)
    newest = SampledTokens(torch.tensor([11, -1, 13], device=device))
    rows = [DecodeRow(7, 20, 0, [3, 5]), DecodeRow(-3, 0, 4, [9]), DecodeRow(-2, 5000, 1, list(range(400, 713)))]
    inputs = GraphInputs(8, 400, torch.device(device))
    inputs.tables.fill_(-7)
    if by_kernel:
        inputs.place(pack(rows, next(inputs._waiting).numbers[:4], cache), newest)
    else:
        inputs.write(rows, 4, cache, newest)
    named = (inputs.ids, inputs.positions, inputs.slots, inputs.indices, inputs.lengths, inputs.tables)
    return [tensor.cpu() for tensor in named]


def test_a_kernel_puts_a_batch_where_graphs_read_it(interpreter: ProcessPoolExecutor) -> None:
    expected, found = placed(by_kernel=False), interpreter.submit(placed, by_kernel=True).result()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert expected[0].flatten().tolist() == [7, 13, 0, 0, 0, 0, 0, 0]
    assert expected[4].tolist() == [21, 1, 5001, 1, 0, 0, 0, 0]
