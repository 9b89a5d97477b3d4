"""A model's way through our kernels, without a GPU: numbers in Triton's interpreter, and what its compiler makes of it.

Both run in processes of their own: triton decides at its import whether it interprets. It has no bfloat16 there.
"""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from nbgen.engine import probe
from nbgen.engine.assembly import Assembly
from nbgen.engine.cuda_graphs import DecodeGraphs
from nbgen.engine.model_runner import ModelRunner
from nbgen.messages import GenerateRequest, TensorOptions
from nbgen.sampling_params import SamplingParams
from tests.adapters import peft_continuation, save_adapter
from tests.conftest import save_model
from tests.engine.conftest import build, generate, ids
from tests.engine.kernel_build import NEEDS_TRITON, one_row_s, others
from tests.engine.native_families import COPIES
from tests.engine.test_lora import load
from tests.engine.test_native_decoder import LEFT, LLAMA_LIKE, TAKEN, Run, saved
from tests.engine.test_tensor_outputs import reference, rows
from tests.soak import seldom, soaking

pytestmark = NEEDS_TRITON

CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3}
PROMPT = [5, 9, 14, 20, 31, 44]
#: An interpreter takes its time: as few tokens of an answer, and layers as narrow, as tell something.
FEW = 4
NARROW = {"hidden_size": 32, "intermediate_size": 64}


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return save_model(tmp_path_factory.mktemp("models") / "small-llama", **NARROW, **heads)


def fused(folder: Path, dtype: torch.dtype = torch.float32) -> ModelRunner:
    """A runner as on a GPU, in a process that interprets."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    runner = probe.choose_runner(model, copies_weights=False)
    fuse(runner)
    return runner


def fuse(runner: ModelRunner) -> None:
    from nbgen.engine.attention_triton import TritonAttention
    from nbgen.engine.fused_model import FusedModel

    runner.attention, runner.fused = TritonAttention(6), FusedModel(runner.model)


def longer(folder: Path) -> tuple[list[int], torch.Tensor]:
    """A prompt longer than the positions that were known before, in pieces, and its last scores.

    Of a piece of several tokens, and of one token, no scores are wanted.
    """
    from nbgen.engine import fused_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_model, "FIRST", 8)
        patch.setattr(fused_model, "PART", 10)
        runner = fused(folder)
    run = Run(runner)
    one = run.sequence(30, 1)
    assert not run.output((one, 5), waiting=one).sampled
    assert not run.output((one, 1), waiting=one).sampled
    return one.prompt_ids, run.step((one, 24))[0]


def tables_made(folder: Path) -> list[int]:
    """For how many positions tables were made while a sequence grew by a token at a time."""
    from nbgen.engine import fused_model

    made, rotary = [], fused_model._rotary
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_model, "FIRST", 8)
        patch.setattr(fused_model, "_rotary", lambda model, count: (made.append(count), rotary(model, count))[1])
        model = fused(folder).fused
        for length in range(1, 34):
            model.reach(length)
    return made


def test_a_growing_sequence_needs_few_new_tables(interpreter: ProcessPoolExecutor, tiny_model: Path) -> None:
    assert interpreter.submit(tables_made, tiny_model).result() == [8, 16, 32, 64]


def test_a_sequence_may_be_longer_than_what_was_known(interpreter: ProcessPoolExecutor, small_model: Path) -> None:
    stock = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32).eval()
    prompt, found = interpreter.submit(longer, small_model).result()
    with torch.inference_mode():
        expected = stock(torch.tensor([prompt]), use_cache=False).logits[0, -1]
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()


def scores_of(folder: Path) -> list[tuple[list[int], int, torch.Tensor]]:
    """Prompts in pieces, decodes together and one alone: ids, position and scores after each."""
    runner = fused(folder)
    assert runner.layers_in == "Triton"
    run, found = Run(runner), []
    one, other = run.sequence(30, 1), run.sequence(24, 90)
    runner.stock.scores = None  # type: ignore[method-assign,assignment]
    for counts in ((20, 9), (1, 1), (5, 1), (1, 0), (1, 0)):
        parts = [(s, count) for s, count in zip((one, other), counts, strict=True) if count]
        for (sequence, _), row in zip(parts, run.step(*parts), strict=True):
            found.append((sequence.prompt_ids, sequence.num_computed - 1, row))
    return found


@pytest.mark.parametrize("family", seldom(LLAMA_LIKE, {"mistral", "qwen2"}))
def test_the_scores_are_transformers_own(family: str, interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    folder = save_model(tmp_path, family, **{**TAKEN[family], "head_dim": 16, **NARROW})
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = interpreter.submit(scores_of, folder).result()
    assert len(found) == 8
    for prompt, position, row in found:
        with torch.inference_mode():
            expected = stock(torch.tensor([prompt]), use_cache=False).logits[0, position]
        assert (row - expected).abs().max() < 2e-5 * expected.abs().max()


def refusal(folder: Path) -> str:
    try:
        fused(folder)
    except (ValueError, AttributeError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("family", [*LEFT, *seldom((f for f in TAKEN if f not in LLAMA_LIKE), COPIES), "dynamic rope"])
def test_models_of_other_code_are_left_as_they_are(
    family: str, interpreter: ProcessPoolExecutor, tmp_path: Path
) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    other = family == "dynamic rope"
    folder = save_model(tmp_path, "llama", rope_parameters=rope) if other else saved(tmp_path, family)
    assert interpreter.submit(refusal, folder).result()


def stock_scores_after_joining(folder: Path) -> tuple[torch.Tensor, torch.Tensor, bool]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = torch.arange(10, 30)[None]
    with torch.inference_mode():
        before = model(prompt, use_cache=False).logits
        runner = probe.choose_runner(model, copies_weights=False)
        fuse(runner)
        model.config._attn_implementation = "sdpa"
        attend = model.model.layers[0].self_attn
        joined = attend.q_proj.weight.untyped_storage().data_ptr() == attend.v_proj.weight.untyped_storage().data_ptr()
        return before, model(prompt, use_cache=False).logits, joined


def test_the_model_s_own_layers_go_on_over_the_joined_weights(interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    before, after, joined = interpreter.submit(stock_scores_after_joining, saved(tmp_path, "qwen2")).result()
    assert joined, "weights are there twice"
    torch.testing.assert_close(after, before)


def assembled(folder: Path, *, graphs: bool) -> Assembly:
    """An engine as on a GPU, whose decodes are padded to buckets with `graphs`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "_faster", lambda *_: [])
        patch.setattr(probe, "_give_native_layers", lambda *_: None)
        assembly = build(folder)
    runner = assembly.engine._runner
    fuse(runner)
    if graphs:
        runner.graphs = DecodeGraphs(runner.decode, runner.cache, runner.attention, most=8, blocks=8)
    return assembly


def asked(rid: str, prompt: list[int], count: int, adapter: str = "") -> GenerateRequest:
    params = SamplingParams(max_new_tokens=count, temperature=0, ignore_eos=True)
    return GenerateRequest(rid=rid, input_ids=prompt, params=params, adapter=adapter)


def pair() -> list[GenerateRequest]:
    """The first begins a new block beside the second, which begins one once it is alone."""
    return [asked("first", list(range(10, 25)), 3), asked("second", list(range(50, 63)), 5)]


def answers(folder: Path, graphs: bool) -> dict[str, list[int]]:
    found = generate(assembled(folder, graphs=graphs), pair())
    return {rid: ids(outputs) for rid, outputs in found.items()}


@pytest.mark.parametrize("graphs", [True, soaking(False)])
def test_an_engine_writes_the_same(graphs: bool, interpreter: ProcessPoolExecutor, small_model: Path) -> None:
    expected = {rid: ids(outputs) for rid, outputs in generate(build(small_model), pair()).items()}
    assert interpreter.submit(answers, small_model, graphs).result() == expected


def numbers(folder: Path) -> tuple[list[int], dict[str, np.ndarray]]:
    request = GenerateRequest(
        rid="t",
        input_ids=PROMPT,
        params=SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True),
        tensors=TensorOptions(logits=True, hidden_states=True, generation_hidden_states=True),
    )
    assembly = assembled(folder, graphs=True)
    assembly.engine._runner.stock.scores = None  # type: ignore[method-assign,assignment]
    outputs, model = generate(assembly, [request])["t"], assembly.model
    widths = {"logits": model.vocab_size, "hidden_states": model.hidden_size}
    widths["generation_hidden_states"] = model.hidden_size
    return ids(outputs), {name: rows(outputs, name, width) for name, width in widths.items()}


def test_the_model_s_own_numbers_are_seen(interpreter: ProcessPoolExecutor, small_model: Path) -> None:
    tokens, found = interpreter.submit(numbers, small_model).result()
    logits, hidden = reference(small_model, PROMPT + tokens)
    prompt = len(PROMPT)
    np.testing.assert_allclose(found["logits"], logits[:prompt], atol=2e-3)
    np.testing.assert_allclose(found["hidden_states"], hidden[:prompt], atol=2e-3)
    np.testing.assert_allclose(found["generation_hidden_states"], hidden[prompt:-1], atol=2e-3)


def adapted(folder: Path, adapter: Path) -> list[list[int]]:
    """With the adapter, beside a request without; and one without after that, on the other's prompt."""
    assembly = assembled(folder, graphs=True)
    load(assembly, "one", adapter)
    first = generate(assembly, [asked("a", PROMPT, FEW, "one"), asked("b", PROMPT, FEW)])
    then = generate(assembly, [asked("c", PROMPT, 2)])
    return [ids(outputs) for outputs in (*first.values(), *then.values())]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it
def test_adapters_run_beside_it(interpreter: ProcessPoolExecutor, small_model: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "one", small_model, 1)
    plain = ids(generate(build(small_model), [asked("b", PROMPT, FEW)])["b"])
    expected = [peft_continuation(small_model, adapter, PROMPT, FEW), plain, plain[:2]]
    assert expected[0] != plain, "an adapter that changes nothing tests nothing"
    assert interpreter.submit(adapted, small_model, adapter).result() == expected


def by_kernels(name: str, hidden: torch.Tensor, added: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    from nbgen.engine.fused_rows import ManyRows, Norm, OneRow, Product, one_row

    norm, linear, plain = Norm(weights[0], 1e-5), Product(*weights[1:]), Product(weights[1], None)
    many = ManyRows(hidden)
    many._added = added
    return {
        "norm": lambda: many.normed(norm),
        "norm of a sum's rows": lambda: (many.pick(torch.tensor([2, 0], device=hidden.device)), many.normed(norm))[1],
        "gate": lambda: ManyRows(hidden).gated(norm, linear),
        "one row": lambda: one_row(hidden[:1], plain),
        "one row added": lambda: one_row(
            hidden[:1], linear, added=added[:1, :1].expand(1, len(weights[1])).contiguous()
        ),
        "one row normed": lambda: OneRow(hidden[:1]).product(norm, linear),
        "one row gated": lambda: OneRow(hidden[:1]).gated(norm, linear),
    }[name]()


def by_torch(name: str, hidden: torch.Tensor, added: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    weight, linear = weights[0], lambda x: nn.functional.linear(x, *weights[1:])
    norm = LlamaRMSNorm(len(weight), 1e-5)
    norm.weight = nn.Parameter(weight, requires_grad=False)

    def gated(x: torch.Tensor) -> torch.Tensor:
        gates, ups = linear(norm(x)).chunk(2, dim=-1)
        return nn.functional.silu(gates) * ups

    return {
        "norm": lambda: norm(hidden + added),
        "norm of a sum's rows": lambda: norm((hidden + added)[[2, 0]]),
        "gate": lambda: gated(hidden),
        "one row": lambda: nn.functional.linear(hidden[:1], weights[1]),
        "one row added": lambda: linear(hidden[:1]) + added[:1, :1],
        "one row normed": lambda: linear(norm(hidden[:1])),
        "one row gated": lambda: gated(hidden[:1]),
    }[name]()


def given(inputs: int, outputs: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Hidden states, what is added to them, a norm's weight, a linear layer's weight and bias."""
    chance = torch.Generator().manual_seed(inputs)
    shapes = [(3, inputs), (3, inputs), (inputs,), (outputs, inputs), (outputs,)]
    tensors = [torch.randn(shape, generator=chance) for shape in shapes]
    tensors[3] /= inputs**0.5
    return [tensor.to(dtype) for tensor in tensors]


KERNELS = ["norm", "norm of a sum's rows", "gate", "one row", "one row added", "one row normed", "one row gated"]
#: Inputs and outputs: less than one part of a program, parts with ends.
SHAPES = [(64, 96), (2100, 38)]


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_equals_torch(
    name: str, inputs: int, outputs: int, dtype: torch.dtype, interpreter: ProcessPoolExecutor
) -> None:
    tensors = given(inputs, outputs, dtype)
    expected = by_torch(name, *tensors)
    found = interpreter.submit(by_kernels, name, *tensors).result()
    torch.testing.assert_close(found, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


#: Outputs, inputs, whether normed and gated, of Qwen3-0.6B's, Llama-3.2-1B's and Llama-3.1-8B's products of one row.
PRODUCTS = [
    (4096, 1024, True, False),
    (3072, 1024, True, True),
    (1024, 2048, False, False),
    (151_936, 1024, True, False),
    (8192, 2048, True, True),
    (2048, 8192, False, False),
    (6144, 4096, True, False),
    (14_336, 4096, True, True),
    (4096, 14_336, False, False),
    (128_256, 4096, True, False),
]
#: Query heads to a key head, width of a head.
HEADS = [(2, 128), soaking(4, 128), soaking(4, 64), (7, 128), (1, 96)]


@pytest.mark.parametrize(("outputs", "inputs", "normed", "gated"), PRODUCTS)
def test_a_product_of_one_row_is_made_to_keep_memory_busy(
    outputs: int, inputs: int, normed: bool, gated: bool, compiler: ProcessPoolExecutor, tmp_path: Path
) -> None:
    found, warps = compiler.submit(one_row_s, outputs, inputs, normed, gated, tmp_path).result()
    assert (found.stack, found.local) == (0, 0), "registers spill"
    assert sum("v4" in load for load in found.loads) >= 4, "weights come in small pieces"
    assert sum("v4" in load for load in found.early) >= 2, "none come while the kernel before still runs"
    # Of the 64 K registers of a multiprocessor: two programs or more, so that one loads while another adds up.
    assert found.registers * warps * 32 * 2 <= 65_536


@pytest.mark.parametrize(("group", "dim"), HEADS)
def test_the_others_compile_for_an_h100_without_spilling(
    group: int, dim: int, compiler: ProcessPoolExecutor, tmp_path: Path
) -> None:
    found = compiler.submit(others, group, dim, tmp_path).result()
    assert all((usage.stack, usage.local) == (0, 0) for usage in found)
