"""A checkpoint of 16 bits in an engine of float32 writes what the same numbers in float32 do, and is not copied."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from nbgen.engine import device, memory, native
from nbgen.engine.assembly import Assembly
from nbgen.engine.loader import load_embedding
from nbgen.engine.native_half_linear import HALVES, HalfEmbedding, NativeHalfLinear
from nbgen.engine.native_int4_linear import NativeInt4Linear
from nbgen.engine.native_int8_linear import NativeInt8Linear
from nbgen.engine.native_linear import NativeLinear
from nbgen.engine_config import EngineConfig
from nbgen.messages import GenerateRequest, LogprobOptions
from nbgen.sampling_params import SamplingParams
from tests.adapters import peft_continuations, save_adapter
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build as build_with
from tests.engine.conftest import generate, greedy, ids
from tests.soak import seldom

PROMPTS = [list(range(10, 40)), list(range(50, 57)), [7] * 90]
PARAMS = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)
#: Plain, tied, with a table that is scaled, without any other parameter, with experts, of Conv1D, of recurrent states.
TYPES = ["llama", "qwen3", "gemma2", "olmo", "helium", "qwen3_moe", "gpt2", "mamba"]

pytestmark = pytest.mark.skipif(
    native.function("multiply", torch.float32) is None, reason="this processor has no products of ours"
)


@pytest.fixture(autouse=True)
def no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that does not multiply it."""
    monkeypatch.setattr(device, "computes_bfloat16", lambda on: False)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    return halved(tmp_path / "half", torch.bfloat16)


@pytest.fixture
def wide(half: Path, tmp_path: Path) -> Path:
    return widened(half, tmp_path / "wide")


def halved(folder: Path, dtype: torch.dtype, model_type: str = "llama", **changes: object) -> Path:
    """A checkpoint of 16 bits."""
    save_model(folder, model_type, **changes)
    AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    return folder


def widened(folder: Path, made: Path) -> Path:
    """The same numbers as float32."""
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(made)
    for file in folder.iterdir():
        if not (made / file.name).exists():
            (made / file.name).write_bytes(file.read_bytes())
    return made


def build(folder: Path, **changes: object) -> Assembly:
    """An engine whose keys and values are float32, too."""
    return build_with(folder, kv_cache_dtype="float32", **changes)


def written(assembly: Assembly, adapter: str = "") -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of all prompts, at once."""
    requests = [
        GenerateRequest(rid=str(i), input_ids=prompt, params=PARAMS, logprobs=LogprobOptions(), adapter=adapter)
        for i, prompt in enumerate(PROMPTS)
    ]
    outputs = generate(assembly, requests)
    numbers = [[e.token[0] for o in outputs[r.rid] for e in o.logprobs or ()] for r in requests]
    return list(zip([ids(outputs[r.rid]) for r in requests], numbers, strict=True))


def tokens(assembly: Assembly, adapter: str = "") -> list[list[int]]:
    return [found for found, _ in written(assembly, adapter)]


def modules(assembly: Assembly) -> list[nn.Module]:
    return [module for _, module in named(assembly)]


def named(assembly: Assembly) -> list[tuple[str, nn.Module]]:
    return list(assembly.engine._runner.model.named_modules())


def kinds(assembly: Assembly) -> set[type]:
    return set(map(type, modules(assembly)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("sizes", [(96, 64), (1028, 192), (4, 32), (36, 2592)], ids=str)
@torch.inference_mode()
def test_a_product_is_that_of_the_same_numbers_in_float32(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    stock = nn.Linear(sizes[1], sizes[0]).to(dtype)
    half = NativeHalfLinear(stock.weight, stock.bias)
    stock.float()
    wide = NativeLinear(stock.weight, stock.bias)
    for count in (*range(20), 47, 48, 49, 100):
        rows = torch.randn(count, sizes[1])
        assert torch.equal(half(rows), wide(rows))


@pytest.mark.parametrize("value", [0.0, 6e-8, -6.1e-5, 65504, 3e38, 1e-40])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@torch.inference_mode()
def test_every_number_is_itself(dtype: torch.dtype, value: float) -> None:
    """The smallest and the largest ones, too."""
    weight = torch.zeros(4, 32, dtype=dtype)
    weight[:, 3] = torch.tensor(value)
    one = torch.zeros(1, 32)
    one[0, 3] = 1
    expected = nn.functional.linear(one, weight.float())
    assert torch.equal(NativeHalfLinear(weight, None)(one).nan_to_num(), expected.nan_to_num())


@pytest.mark.filterwarnings("ignore:.*causal_conv1d.*", "ignore:.*mamba_ssm.*")
@pytest.mark.parametrize("dtype", seldom(HALVES, {torch.float16}), ids=str)
@pytest.mark.parametrize("model_type", seldom(TYPES, {"qwen3", "olmo", "helium"}))
def test_answers_are_those_of_the_same_numbers_in_float32(model_type: str, dtype: torch.dtype, tmp_path: Path) -> None:
    half = halved(tmp_path / "half", dtype, model_type, **FAMILIES[model_type].changes)
    wide, ours = widened(half, tmp_path / "wide"), build(half, dtype="auto")
    assert ours.model.dtype == "float32"
    assert NativeHalfLinear in kinds(ours)
    stock = build(wide)
    assert (ours.model.tier, ours.model.layers_in) == (stock.model.tier, stock.model.layers_in)
    numbers = written(ours)
    assert numbers == written(stock)
    found = [answer for answer, _ in numbers]
    assert found == greedy(wide, PROMPTS, PARAMS.max_new_tokens, found)


def test_float16_has_no_arithmetic_on_any_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    ours = build(halved(tmp_path / "half", torch.float16), dtype="auto")
    assert ours.model.dtype == "float32"
    assert NativeHalfLinear in kinds(ours)


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_weights_lie_in_their_file(half: Path) -> None:
    found = [module.halves for module in modules(build(half, dtype="auto")) if isinstance(module, NativeHalfLinear)]
    assert len(found) == 2 * 7 + 1, "and the head"
    found += [module.weight for module in modules(build(half, dtype="auto")) if isinstance(module, HalfEmbedding)]
    assert len(found) == 2 * 7 + 2
    is_mapped = memory._mapped_from_weights()
    assert all(is_mapped(weight.data_ptr(), weight.data_ptr() + 1) for weight in found)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it
def test_adapters_go_on_top(half: Path, wide: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter", wide)
    ours = build(half, dtype="auto")
    ours.engine.install(ours.adapters.load("a", str(adapter)))
    adapted = tokens(ours, "a")
    assert adapted == peft_continuations(wide, adapter, PROMPTS, PARAMS.max_new_tokens, adapted)
    found = tokens(ours)
    assert found == greedy(wide, PROMPTS, PARAMS.max_new_tokens, found)


@pytest.mark.parametrize(("kind", "layer"), [("int8", NativeInt8Linear), ("int4", NativeInt4Linear)])
def test_rounding_begins_with_the_same_numbers(kind: str, layer: type, half: Path, wide: Path) -> None:
    ours, stock = build(half, dtype="auto", quantization=kind), build(wide, quantization=kind)
    assert layer in kinds(ours)
    assert NativeHalfLinear not in kinds(ours)
    assert written(ours) == written(stock)
    table = next(module.weight for module in modules(ours) if isinstance(module, HalfEmbedding))
    assert ours.model.weight_bytes == stock.model.weight_bytes - table.nbytes


def test_a_model_whose_code_looks_at_weights_gets_them_in_float32(
    half: Path, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda mlp, x: forward(mlp, x.to(mlp.up_proj.weight.dtype)))
    ours = build(half, dtype="auto")
    assert ours.model.dtype == "float32"
    layers = {path: module for path, module in named(ours) if path.endswith("_proj")}
    assert all(isinstance(each, NativeHalfLinear) != path.endswith("up_proj") for path, each in layers.items())
    found = tokens(ours)
    assert found == greedy(wide, PROMPTS, PARAMS.max_new_tokens, found)


def test_a_model_that_cannot_do_without_float32_gets_it(
    half: Path, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NativeHalfLinear, "forward", nn.Module.forward)
    ours = build(half, dtype="auto")
    assert not kinds(ours) & {NativeHalfLinear, HalfEmbedding}
    found = tokens(ours)
    assert found == greedy(wide, PROMPTS, PARAMS.max_new_tokens, found)


def test_embedding_models_are_read_so_too(half: Path) -> None:
    ours = load_embedding(EngineConfig(model=str(half), dtype="auto"), lambda *_: None)
    found = [module for module in ours.model.modules() if isinstance(module, NativeHalfLinear)]
    assert len(found) == 2 * 7
    assert ours.model.dtype == torch.float32
