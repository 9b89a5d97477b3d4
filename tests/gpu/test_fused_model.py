"""Models like Llama run in our kernels on the GPU itself, with the numbers of transformers' forward."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from nbgen.engine.assembly import Assembly
from nbgen.messages import GenerateRequest, TensorOptions
from nbgen.sampling_params import SamplingParams
from tests.adapters import peft_continuation, save_adapter
from tests.conftest import save_model
from tests.engine.conftest import build, generate, ids
from tests.engine.test_cuda_graphs import requests
from tests.engine.test_fused_model import KERNELS, PROMPT, SHAPES, by_kernels, by_torch, given
from tests.engine.test_lora import NEW_TOKENS, load, request
from tests.engine.test_native_decoder import LLAMA_LIKE, saved
from tests.engine.test_tensor_outputs import rows

#: Largest difference, as a share of the largest number.
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
#: Sizes of real layers.
LARGE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
}


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("inputs", "outputs"), [*SHAPES, (4096, 6144)])
def test_a_kernel_equals_torch(name: str, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    on_gpu = [tensor.cuda() for tensor in given(inputs, outputs, dtype)]
    expected = by_torch(name, *(tensor.float() for tensor in on_gpu))
    found = by_kernels(name, *on_gpu)
    assert (found.float() - expected).abs().max() < CLOSE[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_the_scores_are_transformers_own(family: str, dtype: str, tmp_path: Path) -> None:
    assembly, folder = _fused(tmp_path, family, dtype)
    tensors = TensorOptions(logits=True, generation_logits=True)
    params = SamplingParams(max_new_tokens=4, temperature=0, ignore_eos=True)
    asked = GenerateRequest(rid="t", input_ids=PROMPT * 9, params=params, tensors=tensors)
    outputs, vocab = generate(assembly, [asked])["t"], assembly.model.vocab_size
    found = torch.cat([torch.tensor(rows(outputs, name, vocab)) for name in ("logits", "generation_logits")])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT * 9 + ids(outputs)])).logits[0]
    expected = torch.cat([expected[: len(PROMPT * 9)], expected[len(PROMPT * 9) - 1 : -1]])
    share = {"float32": 1e-4, "bfloat16": 8e-2, "float16": 2e-2}[dtype]
    assert (found - expected).abs().max() < share * expected.abs().max()


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["tiny", "large"])
def test_greedy_is_that_of_transformers_forward(sizes: dict[str, int], tmp_path: Path) -> None:
    assembly = build(save_model(tmp_path, "llama", **sizes), device="cuda")
    runner = assembly.engine._runner
    assert runner.fused, "its log says why not"
    found = generate(assembly, requests())
    runner.fused, runner.graphs = None, None
    assembly.engine.flush_cache()  # prompts are computed anew as well
    expected = generate(assembly, requests())
    assert {rid: ids(outputs) for rid, outputs in found.items()} == {rid: ids(o) for rid, o in expected.items()}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it
def test_adapters_run_beside_it(tiny_model: Path, tmp_path: Path) -> None:
    adapter, assembly = save_adapter(tmp_path / "one", tiny_model, 1), build(tiny_model, device="cuda")
    load(assembly, "one", adapter)
    found = generate(assembly, [request("a", PROMPT, "one"), request("b", PROMPT)])
    expected = {
        rid: peft_continuation(tiny_model, folder, PROMPT, NEW_TOKENS) for rid, folder in (("a", adapter), ("b", None))
    }
    assert {rid: ids(outputs) for rid, outputs in found.items()} == expected


def test_joined_weights_are_there_once(tmp_path: Path) -> None:
    before = torch.cuda.memory_allocated()
    assembly, _ = _fused(tmp_path, "llama", "bfloat16", **LARGE)
    held = torch.cuda.memory_allocated() - before - _bytes_of_cache(assembly)
    assert held < 1.2 * assembly.model.weight_bytes


def _fused(folder: Path, family: str, dtype: str, **sizes: int) -> tuple[Assembly, Path]:
    made = save_model(folder, family, **sizes) if sizes else saved(folder, family)
    assembly = build(made, device="cuda", dtype=dtype, kv_cache_bytes=2**26)
    assert assembly.engine._runner.fused, "its log says why not"
    return assembly, made


def _bytes_of_cache(assembly: Assembly) -> int:
    cache = assembly.engine._runner.cache
    return cache.bytes_per_block * (cache.num_blocks + 1)
