"""The kernels on the GPU itself give what the formula gives."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from nbgen.engine.attention import Layer, ReferenceAttention, Scores, Step
from nbgen.engine.attention_window import Window
from nbgen.engine.backends import attention_for
from tests.engine.test_attention import BLOCK, Case
from tests.engine.test_attention_triton import CASES, PROCESSORS

CLOSE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


@pytest.fixture(scope="module")
def gpu() -> torch.device:
    return torch.device("cuda")


def moved(case: Case, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, Layer, Step]:
    """The case's query, cache and step on the GPU; the case itself keeps what they were rounded to."""
    rounded = [t.to(dtype) for t in (case.query, *case.layer)]
    case.query, case.layer = rounded[0].float(), Layer(*(t.float() for t in rounded[1:]))
    query, *layer = (t.to(device) for t in rounded)
    slots = torch.zeros(1, dtype=torch.long, device=device)
    step = Step(case.step.cache, case.step.attention, slots, case.step.decodes, case.step.prefills)
    return query, Layer(*layer), step


def test_the_gpu_has_its_own_back_end(gpu: torch.device) -> None:
    assert attention_for(gpu).graphs, "the reference serves: its warning says why"


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_equal_the_formula(name: str, dtype: torch.dtype, gpu: torch.device) -> None:
    from nbgen.engine.attention_triton import TritonAttention  # only where there is a GPU

    lengths, heads, dims, window, softcap, sinks = CASES[name]
    for seed, processors in enumerate(PROCESSORS):
        case = Case(lengths, *heads, seed, shuffled=True, dims=dims)
        query, layer, step = moved(case, gpu, dtype)
        scores = Scores(dims[0] ** -0.5, softcap, case.sinks if sinks else None)
        expected = case.expected(window, scores)
        on_gpu = scores._replace(sinks=case.sinks.to(gpu) if sinks else None)
        output = TritonAttention(processors).attend(query, layer, step, window, on_gpu)
        torch.testing.assert_close(output.float().cpu(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize(("batch", "length"), [(1, 16_000), (16, 2048), (64, 512)])
def test_long_decodes_equal_the_reference(batch: int, length: int, gpu: torch.device) -> None:
    case = Case([(length - i, 1) for i in range(batch)], 32, 8, seed=0, shuffled=True, dims=(128, 128))
    query, layer, step = moved(case, gpu, torch.float16)
    scores = Scores(128**-0.5)
    expected = ReferenceAttention().attend(query, layer, step, Window(), scores)
    output = attention_for(gpu).attend(query, layer, step, Window(), scores)
    torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


def test_a_long_prompt_equals_plain_sdpa(gpu: torch.device) -> None:
    length = 2000
    case = Case([(length, length)], 32, 8, seed=0, shuffled=True, dims=(128, 128))
    query, layer, step = moved(case, gpu, torch.bfloat16)
    table = torch.tensor(step.prefills[0].block_table, device=gpu)
    slots = (table[:, None] * BLOCK + torch.arange(BLOCK, device=gpu)).flatten()[:length]
    q, k, v = (t.transpose(0, 1)[None] for t in (query, layer.keys[slots], layer.values[slots]))
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    output = attention_for(gpu).attend(query, layer, step, Window(), Scores(128**-0.5))
    torch.testing.assert_close(output, expected, rtol=3e-2, atol=3e-2)
