"""The Triton kernels without a GPU: their numbers in Triton's interpreter, and what its compiler makes of them.

Both run in processes of their own: triton decides at its import whether it interprets.
"""

import itertools
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from nbgen.engine.attention import ReferenceAttention, Scores
from nbgen.engine.attention_window import Window
from tests.engine.kernel_build import NEEDS_TRITON, Build, Usage, usage
from tests.engine.test_attention import CLOSE, Case
from tests.soak import soaking

pytestmark = NEEDS_TRITON

#: Multiprocessors that decide into how many parts decodes are cut: 1, some, more than there are keys for.
PROCESSORS = (1, 6, 64)

#: (length, new tokens) of each sequence, (heads, kv_heads), (key width, value width), window, soft cap, sinks
CASES = {
    "one short decode": ([(1, 1)], (4, 4), (64, 64), Window(), None, False),
    "grouped decodes of many blocks": ([(150, 1), (33, 1), (7, 1)], (8, 2), (64, 64), Window(), None, False),
    "a group that is no power of two": ([(40, 1), (9, 9)], (14, 2), (64, 64), Window(), None, False),
    "one key head": ([(40, 1), (30, 12)], (6, 1), (80, 80), Window(), None, False),
    "a width that is no power of two": ([(50, 1), (20, 20)], (4, 2), (96, 96), Window(), None, False),
    "wide heads": ([(20, 1), (18, 5)], (4, 2), (256, 256), Window(), None, False),
    "values narrower than keys": ([(40, 1), (19, 19)], (4, 4), (128, 64), Window(), None, False),
    "values wider than keys": ([(40, 1), (19, 7)], (4, 4), (16, 64), Window(), None, False),
    "a prompt in pieces, mixed with decodes": ([(60, 1), (5, 1), (70, 37), (33, 17)], (4, 2), (64, 64), Window(), None,
                                               False),
    "a sliding window": ([(90, 1), (3, 1), (60, 40)], (4, 2), (64, 64), Window(sliding=7), None, False),
    "a window longer than the sequence": ([(20, 1), (18, 18)], (4, 2), (64, 64), Window(sliding=64), None, False),
    "chunked attention at its border": ([(25, 1), (24, 1), (50, 30)], (4, 2), (64, 64), Window(chunk=12), None, False),
    "a soft cap": ([(70, 1), (40, 20)], (4, 2), (64, 64), Window(), 2.0, False),
    "sinks": ([(70, 1), (40, 20)], (8, 2), (64, 64), Window(), None, True),
    "a soft cap, sinks and a window": ([(70, 1), (6, 1), (40, 20)], (4, 2), (64, 64), Window(sliding=9), 2.0, True),
}  # fmt: skip


def attend(case: Case, window: Window, scores: Scores, processors: int) -> torch.Tensor:
    """What the kernels give, in a process that interprets."""
    from nbgen.engine.attention_triton import TritonAttention

    return TritonAttention(processors).attend(case.query, case.layer, case.step, window, scores)


#: All numbers of them for the plain decodes, and for the others one each, in turn.
RUNS = [(name, each) for name in list(CASES)[:2] for each in PROCESSORS]
RUNS += list(zip(list(CASES)[2:], itertools.cycle(PROCESSORS), strict=False))


@pytest.mark.parametrize(("name", "processors"), RUNS)
def test_the_kernels_equal_the_formula_and_the_reference(
    name: str, processors: int, interpreter: ProcessPoolExecutor
) -> None:
    lengths, heads, dims, window, softcap, sinks = CASES[name]
    case = Case(lengths, *heads, seed=processors, shuffled=True, dims=dims)
    scores = Scores(dims[0] ** -0.5, softcap, case.sinks if sinks else None)
    output = interpreter.submit(attend, case, window, scores, processors).result()
    torch.testing.assert_close(output, case.expected(window, scores), **CLOSE)
    reference = ReferenceAttention().attend(case.query, case.layer, case.step, window, scores)
    torch.testing.assert_close(output, reference, **CLOSE)


def test_the_kernels_equal_plain_sdpa(interpreter: ProcessPoolExecutor) -> None:
    case = Case([(33, 33)], 4, 2, seed=3, shuffled=True, dims=(64, 64))
    slots = case.step.slots_of(case.step.tables_of(case.step.prefills))[0, :33]
    q, k, v = (t.transpose(0, 1)[None] for t in (case.query, case.layer.keys[slots], case.layer.values[slots]))
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    output = interpreter.submit(attend, case, Window(), Scores(64**-0.5), 1).result()
    torch.testing.assert_close(output, expected, **CLOSE)


def test_blocks_that_see_each_other_go_the_reference_s_way(interpreter: ProcessPoolExecutor) -> None:
    case = Case([(20, 1), (40, 24), (9, 9)], 4, 2, seed=4, shuffled=True, dims=(64, 64))
    first, second = case.step.prefills
    case.step.prefills[0] = first._replace(blocks=((20, 36),))
    window, scores = Window(sliding=7), Scores(64**-0.5)
    output = interpreter.submit(attend, case, window, scores, 1).result()
    reference = ReferenceAttention().attend(case.query, case.layer, case.step, window, scores)
    torch.testing.assert_close(output, reference, **CLOSE)
    rows = slice(second.start, second.stop)
    torch.testing.assert_close(output[rows], case.expected(window, scores)[rows], **CLOSE)


def test_heads_that_the_kernels_lack_go_the_reference_s_way(interpreter: ProcessPoolExecutor) -> None:
    case = Case([(9, 1), (8, 8)], 2, 2, seed=0, shuffled=True, dims=(320, 320))
    output = interpreter.submit(attend, case, Window(), Scores(0.1), 1).result()
    torch.testing.assert_close(output, case.expected(Window(), Scores(0.1)), **CLOSE)


#: Always: one of most models' shape, the widest with all features, and one that no tensor cores take.
BUILDS = [
    soaking(Build("bf16", 64, 64, 4)),
    soaking(Build("bf16", 80, 80, 1, features=True)),
    soaking(Build("bf16", 128, 128, 2, features=True)),
    Build("bf16", 128, 128, 8),
    soaking(Build("bf16", 192, 128, 1)),
    Build("bf16", 256, 256, 2, features=True),
    soaking(Build("bf16", 128, 128, 64)),
    soaking(Build("bf16", 256, 256, 64)),
    soaking(Build("fp16", 96, 96, 1)),
    Build("fp32", 128, 128, 4),
    soaking(Build("fp32", 256, 256, 64)),
]


@pytest.mark.parametrize("decodes", [True, soaking(False)], ids=["decode", "prefill"])
@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_a_kernel_compiles_for_an_h100_without_spilling(
    build: Build, decodes: bool, compiler: ProcessPoolExecutor, tmp_path: Path
) -> None:
    found: Usage = compiler.submit(usage, build, decodes, tmp_path).result()
    assert (found.stack, found.local) == (0, 0), "registers spill"
    assert found.shared <= 163 * 1024, "more than an A100's shared memory"
    assert found.tensor_cores == (build.type != "fp32")
