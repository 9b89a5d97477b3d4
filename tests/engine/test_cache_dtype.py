"""Keys and values are kept in the type that the checkpoint or the user says, and rounded to it exactly once."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM, Cache

from nbgen.engine import device, native
from nbgen.engine.assembly import Assembly
from nbgen.engine.attention_cpu import CpuAttention
from nbgen.engine.native_decoder import NativeDecoder
from nbgen.errors import ModelError
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build
from tests.engine.test_native_half_linear import PROMPTS, halved, written
from tests.engine.test_rotary import LONG_ROPE

#: Layers that are not known to the C++.
NO_LAYERS = mock.Mock(side_effect=ValueError("not today"))
#: Plain, with norms of heads, with windows and soft caps, with states beside keys, with heads that are joined.
TYPES = ["llama", "qwen3", "gemma2", "falcon_h1", "gpt_neox"]


def kept(assembly: Assembly) -> set[torch.dtype]:
    """The types of all layers' keys and values."""
    return {tensor.dtype for pair in assembly.engine._runner.cache._layers.values() for tensor in pair}


@torch.inference_mode()
def expected(folder: Path, prompt: list[int], answer: list[int]) -> tuple[list[int], list[float]]:
    """What transformers' forward finds likeliest after each token of the answer, over keys that are rounded."""
    update = Cache.update

    def rounded(cache: Cache, keys: torch.Tensor, values: torch.Tensor, *more: Any, **named: Any) -> Any:
        return update(cache, keys.bfloat16().float(), values.bfloat16().float(), *more, **named)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with mock.patch.object(Cache, "update", rounded):
        logits = model(torch.tensor([prompt + answer]), use_cache=True).logits[0]
    scores = torch.log_softmax(logits[len(prompt) - 1 : -1].float(), -1)
    return scores.argmax(-1).tolist(), scores[range(len(answer)), answer].tolist()


@pytest.mark.filterwarnings("ignore:.*causal_conv1d.*", "ignore:.*mamba_ssm.*")
@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("layers_in", ["C++", "transformers"])
def test_answers_are_those_over_rounded_keys_and_values(
    layers_in: str, model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if layers_in == "transformers":
        monkeypatch.setattr(NativeDecoder, "__init__", NO_LAYERS)
    folder = save_model(tmp_path / "model", model_type, **FAMILIES[model_type].changes)
    ours = build(folder, kv_cache_dtype="bfloat16")
    assert (ours.model.layers_in, ours.model.kv_cache_dtype, kept(ours)) == (layers_in, "bfloat16", {torch.bfloat16})
    for prompt, (tokens, numbers) in zip(PROMPTS, written(ours), strict=True):
        likeliest, scores = expected(folder, prompt, tokens)
        assert tokens == likeliest
        assert numbers == pytest.approx(scores, abs=1e-4)
    assert written(ours) != written(build(folder)), "rounding changes nothing"


def test_latent_attention_keeps_its_heads_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' own cache has what these are made of, whose rounding is another one."""
    folder = save_model(tmp_path / "model", "deepseek_v3", **FAMILIES["deepseek_v3"].changes)
    ours = written(build(folder, kv_cache_dtype="bfloat16"))
    monkeypatch.setattr(NativeDecoder, "__init__", NO_LAYERS)
    for found, other in zip(ours, written(build(folder, kv_cache_dtype="bfloat16")), strict=True):
        assert found == (other[0], pytest.approx(other[1], abs=1e-5))


def test_torchs_own_attention_reads_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_model(tmp_path / "model")
    ours = written(build(folder, kv_cache_dtype="bfloat16"))
    monkeypatch.setattr(native, "compiler", mock.Mock(side_effect=FileNotFoundError("no compiler")))
    monkeypatch.setattr(native, "library", lambda dtype: None)
    stock = build(folder, kv_cache_dtype="bfloat16")
    assert (type(stock.engine._runner.attention), kept(stock)) == (CpuAttention, {torch.bfloat16})
    for found, other in zip(ours, written(stock), strict=True):
        assert found == (other[0], pytest.approx(other[1], abs=1e-4))


@pytest.mark.skipif(native.function("multiply", torch.float32) is None, reason="this processor has no products of ours")
@pytest.mark.parametrize(
    ("dtype", "found"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float32"), (torch.float32, "float32")]
)
def test_they_are_kept_as_weights_of_bfloat16_are(
    dtype: torch.dtype, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "computes_bfloat16", lambda on: False)
    ours = build(halved(tmp_path / "model", dtype), dtype="auto")
    assert (ours.model.dtype, ours.model.kv_cache_dtype) == ("float32", found)
    assert kept(ours) == {getattr(torch, found)}


def test_the_same_memory_holds_twice_as_many_tokens(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    wide, half = (
        build(folder, kv_cache_dtype=name, kv_cache_bytes=2**20).model.kv_tokens for name in ("auto", "bfloat16")
    )
    assert half == 2 * wide


def test_the_type_stays_when_memory_is_given_back_and_taken_again(tmp_path: Path) -> None:
    ours = build(save_model(tmp_path / "model"), kv_cache_dtype="bfloat16")
    before = written(ours)
    for tags in ({"kv_cache"}, {"kv_cache", "weights"}):
        ours.occupation.release(tags)
        ours.occupation.resume(tags)
        assert kept(ours) == {torch.bfloat16}
        assert written(ours) == before


@pytest.mark.parametrize(
    ("dtype", "name", "words"),
    [
        ("float32", "fp8_e4m3", "kv_cache_dtype is 'fp8_e4m3'; it must be one of auto, float32, bfloat16, float16"),
        ("float32", "float16", "kv_cache_dtype is 'float16', and this model computes in float32 on cpu: leave"),
        (
            "bfloat16",
            "float32",
            "and this model computes in bfloat16 on cpu: leave kv_cache_dtype out, or say 'bfloat16'",
        ),
    ],
)
def test_other_types_are_refused(dtype: str, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        build(save_model(tmp_path / "model"), dtype=dtype, kv_cache_dtype=name)


def test_a_model_with_a_cache_of_its_own_has_one_type(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    rope = dict.fromkeys(kinds, LONG_ROPE)
    folder = save_model(tmp_path, "olmo3", layer_types=kinds, sliding_window=8, rope_parameters=rope)
    ours = build(folder, kv_cache_dtype="float32")
    assert (ours.model.tier, ours.model.kv_cache_dtype) == ("C", "float32")
    with pytest.raises(ModelError, match="computes in float32 on cpu with a cache of its own code's: leave"):
        build(folder, kv_cache_dtype="bfloat16")


def test_the_models_own_type_may_be_said(tmp_path: Path) -> None:
    ours = build(save_model(tmp_path / "model"), dtype="bfloat16", kv_cache_dtype="bfloat16")
    assert kept(ours) == {torch.bfloat16}
