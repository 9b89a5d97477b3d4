"""Layers of our own: taken only for the code they stand for, and the same scores whatever else a step computes."""

from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP

from nbgen.engine import known_code, native, native_linear, probe, trial
from nbgen.engine.block_manager import BlockManager
from nbgen.engine.model_runner import ModelRunner, RunOutput
from nbgen.engine.native_decoder import NativeDecoder
from nbgen.engine.native_model import NativeModel
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.sequence import Sequence
from nbgen.engine_config import BLOCK_SIZE
from nbgen.messages import LogprobOptions
from tests.conftest import at_least, save_model
from tests.engine.architectures import FAMILIES

#: Older versions leave scores of Gemma 2's attention as they are: so high, no cap shows.
CAP = 2.0 if at_least("transformers", "5.24") else 5000.0
#: Families of such layers, and what else is special about them.
TAKEN = {
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": 8, "head_dim": 32},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {"head_dim": 16, "num_key_value_heads": 1},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": CAP, "final_logit_softcapping": 3.0},
    "gemma3_text": {
        "head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0},
        },
    },
    "gemma4_text": {
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 264,
        "final_logit_softcapping": 3.0,
    },
    "gemma4_text without values": {
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
    },
    "gemma4_text with experts": {
        "head_dim": 16,
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 3,
        "moe_intermediate_size": 32,
    },
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "logits_scaling": 4.0,
        "attention_multiplier": 0.1,
    },
    "olmo": {"clip_qkv": 1.0},
    "olmo2": {"num_key_value_heads": 2},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
    "phi3": {"partial_rotary_factor": 0.5, "head_dim": 16},
    "glm4": {"partial_rotary_factor": 0.5, "head_dim": 16},
    "ernie4_5": {"use_bias": True},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 8,
        "moe_intermediate_size": 32,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
    },
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "clip_qkv": 1.0},
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2, "residual_multiplier": 0.3, "logits_scaling": 4.0},
    "qwen2_moe": {"num_experts": 8, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    "exaone4": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "arcee": {},
    "nemotron": {"head_dim": 16},
    "starcoder2": {"sliding_window": 8},
    "stablelm": {},
    "stablelm beside attention": {"use_parallel_residual": True, "use_qkv_bias": True},
    "stablelm with norms of heads": {"qk_layernorm": True},
    "phi": {"qk_layernorm": True},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt_neox after attention": {"use_parallel_residual": False, "hidden_act": "relu"},
    "opt": {"word_embed_proj_dim": 64, "ffn_dim": 128},
    "gpt2": {"vocab_size": 267},
    "hunyuan_v1_dense": {"head_dim": 16},
    "seed_oss": {"head_dim": 32, "attention_out_bias": True, "mlp_bias": True},
    "cwm": FAMILIES["cwm"].changes,
    "ministral": {**FAMILIES["ministral"].changes, "layer_types": ["sliding_attention", "full_attention"]},
    "ministral3": {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "max_position_embeddings": 64,
            "llama_4_scaling_beta": 0.5,
        },
    },
    "mellum": {
        **FAMILIES["mellum"].changes,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0},
        },
    },
    "persimmon": {"qk_layernorm": True},
    "gpt_bigcode": FAMILIES["gpt_bigcode"].changes,
    "gptj": FAMILIES["gptj"].changes,
    "codegen": {**FAMILIES["codegen"].changes, "n_head": 8},
    "apertus": {},
    "apertus1p5_text": {"output_vocab_size": 256},
    "cohere": {"use_qk_norm": True, "logit_scale": 0.25},
    "cohere2": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "logit_scale": 0.25},
}
#: Whose decoder does not tell one layer of ours all: positions are added to embeddings, or layers have own inputs.
TOLD_BEFORE = ["gpt2", "opt", "gemma4_text", "gptj", "codegen", "gpt_bigcode"]
SCAN = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
    "mamba_proj_bias": True,
    "shared_intermediate_size": 64,
    "residual_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "logits_scaling": 4.0,
}
DELTA = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "num_hidden_layers": 3,
    "head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 32,
}
CONVOLUTION = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "conv_bias": True}
#: The same with layers that remember, some of them the last ones: two of a family have a variant's name behind its own.
REMEMBERING = {
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": {
        **DELTA,
        "num_experts": 8,
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 64,
    },
    "granitemoehybrid": {**SCAN, "num_local_experts": 8, "num_experts_per_tok": 2},
    "granitemoehybrid with positions, without experts": {
        **SCAN,
        "position_embedding_type": "rope",
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
    },
    "bamba": {
        "attn_layer_indices": [1],
        "num_hidden_layers": 3,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_chunk_size": 8,
    },
    "lfm2": CONVOLUTION,
    "lfm2_moe": {
        **CONVOLUTION,
        "num_dense_layers": 1,
        "num_experts": 8,
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.5,
    },
}
TAKEN.update(REMEMBERING)


def _is_here(name: str) -> bool:
    family = FAMILIES[name.partition(" ")[0]]
    return at_least("transformers", family.since) and at_least("transformers", family.tier_since)


TAKEN = {name: changes for name, changes in TAKEN.items() if _is_here(name)}
#: Those that kernels on a GPU know, too.
LLAMA_LIKE = ["llama", "mistral", "qwen2", "qwen3"]
LEFT = ["ctrl", "biogpt"]
DTYPES = [dtype for dtype in native.KINDS if native_linear.readable(nn.Linear(64, 64, dtype=dtype))]


def runner_of(folder: Path, dtype: torch.dtype = torch.float32) -> ModelRunner:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return probe.choose_runner(model)


def saved(folder: Path, family: str) -> Path:
    return save_model(folder, family.partition(" ")[0], **TAKEN.get(family, {}))


class Run:
    """Sequences of one runner, computed as they are told to."""

    def __init__(self, runner: ModelRunner) -> None:
        runner.cache.resize(64)
        self._runner, self._blocks, self._slots = runner, BlockManager(64, BLOCK_SIZE), count(3, 2)

    def sequence(self, length: int, first: int) -> Sequence:
        return trial.sequence([(first + 7 * i) % 200 + 4 for i in range(length)], next(self._slots))

    def step(self, *parts: tuple[Sequence, int]) -> list[torch.Tensor]:
        """Compute so many more tokens of each sequence; each one's scores after its last."""
        output = self.output(*parts)
        return [output.scores[output.sampled.index(sequence)] for sequence, _ in parts]

    def output(self, *parts: tuple[Sequence, int], waiting: Sequence | None = None) -> RunOutput:
        """Compute so many more tokens of each sequence; of the one that is `waiting`, more are known."""
        batch = []
        for sequence, tokens in parts:
            trial.grow(sequence, tokens + (sequence is waiting), self._blocks)
            batch.append(ScheduledSequence(sequence, tokens))
        output = self._runner.run(batch)
        for sequence, tokens in parts:
            sequence.num_computed += tokens
        return output


@pytest.mark.parametrize("family", TAKEN)
def test_the_scores_are_transformers_own(family: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, family)
    runner = runner_of(folder)
    assert bool(runner.stock.layers) == (family not in {*REMEMBERING, *TOLD_BEFORE}), "its layers are known"
    assert runner.native_model, "and so is what is around them"
    assert runner.layers_in == "C++"
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    run = Run(runner)
    sequences = [run.sequence(30, 1), run.sequence(24, 90)]
    got = [run.step((sequences[0], 20), (sequences[1], 9))]
    got += [run.step((sequences[0], 1), (sequences[1], 1)) for _ in range(10)]
    for index, sequence in enumerate(sequences):
        with torch.inference_mode():
            scores = stock(torch.tensor([sequence.prompt_ids]), use_cache=False).logits[0]
        for step, row in enumerate(got):
            expected = scores[(20, 9)[index] - 1 + step]
            assert (row[index] - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.parametrize("family", LEFT)
def test_layers_of_other_code_stay_transformers_own(family: str, tmp_path: Path) -> None:
    runner = runner_of(saved(tmp_path, family))
    assert (runner.stock.layers, runner.layers_in) == (None, "transformers")


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_no_code_of_other_families_is_asked_for(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking imports it, at every start."""
    asked, known = set(), known_code.known
    monkeypatch.setattr(known_code, "known", lambda name: (asked.add(name.partition(".")[0]), known(name))[1])
    assert runner_of(saved(tmp_path, family)).layers_in == "C++"
    assert asked == {"llama", family}


@pytest.mark.parametrize(
    ("part", "change"),
    [(LlamaDecoderLayer, lambda self, x, **_: (x,)[0]), (LlamaMLP, lambda self, x: self.down_proj(self.up_proj(x)))],
)
def test_changed_code_is_not_taken(
    part: type, change: object, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of a family, or a person's own class, would have it."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    for module in model.modules():
        if type(module) is part:
            module.__class__ = type(part.__name__, (part,), {"forward": change})
    assert probe.choose_runner(model).stock.layers is None


def test_what_gives_other_scores_is_not_kept(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, forward = NativeModel.scores, NativeDecoder.forward
    monkeypatch.setattr(NativeModel, "scores", lambda self, *args: scores(self, *args) + 1)
    around = runner_of(tiny_model)
    assert around.stock.layers
    assert around.native_model is None
    monkeypatch.setattr(NativeDecoder, "forward", lambda *args, **options: forward(*args, **options) + 1)
    assert runner_of(tiny_model).stock.layers is None


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu_10", "prelu"])
def test_another_activation_is_not_taken(activation: str, tmp_path: Path) -> None:
    assert not runner_of(save_model(tmp_path, hidden_act=activation), DTYPES[-1]).native_model


def test_heads_of_an_odd_width_are_left_to_transformers(tmp_path: Path) -> None:
    """Of which numbers of 16 bits come in pairs across heads."""
    assert not runner_of(save_model(tmp_path, "gpt2", hidden_size=112, num_attention_heads=16)).native_model


def test_a_model_whose_layers_all_remember_is_taken(tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2}
    assert runner_of(save_model(tmp_path, "qwen3_5_text", **{**DELTA, **layers})).native_model


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3", *REMEMBERING])
def test_a_sequence_is_the_same_to_the_bit_however_it_is_cut_and_whatever_its_steps_compute_besides(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    runner = runner_of(saved(tmp_path, family), dtype)
    assert runner.native_model, "or nothing is tested"
    run = Run(runner)
    alone, beside = run.sequence(40, 1), run.sequence(40, 1)
    expected = [run.step((alone, 30))[0], *(run.step((alone, 1))[0] for _ in range(6))]
    others = [run.sequence(33, 50), run.sequence(70, 120)]
    run.step((beside, 13))
    got = [run.step((beside, 17))[0]]
    got += [run.step((beside, 1), (others[0], 20))[0], run.step((beside, 1), (others[0], 1), (others[1], 50))[0]]
    got += [run.step((beside, 1), (others[0], 1), (others[1], 1))[0] for _ in range(4)]
    for step, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert torch.equal(one, other), f"step {step}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", TAKEN)
def test_a_token_alone_has_the_bits_of_one_among_many(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """In contexts of several chunks, and in windows: so a prompt may come from the prefix cache up to any token."""
    run = Run(runner_of(saved(tmp_path, family), dtype))
    whole, cut, other = run.sequence(330, 1), run.sequence(330, 1), run.sequence(300, 90)
    whole.logprobs = LogprobOptions(start=0)
    expected = run.output((whole, 330)).prompt[0].scores
    assert torch.equal(run.step((cut, 100), (other, 50))[0], expected[99])
    for place in range(100, 160):
        assert torch.equal(run.step((cut, 1))[0], expected[place]), place
    assert torch.equal(run.step((cut, 97))[0], expected[256])
    for place in range(257, 300):
        assert torch.equal(run.step((other, 1), (cut, 1))[1], expected[place]), place


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text", "lfm2", "phi", "gpt_neox", "gpt2", "gemma4_text"])
def test_what_the_last_layer_leaves_out_changes_no_scores(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Of a piece that no token follows, of one that one follows, of a prompt with log-probabilities of its own."""
    run = Run(runner_of(saved(tmp_path, family), dtype))
    alone, cut, decoding, *described = (run.sequence(*one) for one in ((40, 1), (40, 1), (30, 60), (24, 90), (24, 90)))
    for sequence in described:
        sequence.logprobs = LogprobOptions(start=0)
    expected, whole = run.step((alone, 40))[0], run.output((described[0], 24))
    run.step((decoding, 20))
    assert not run.output((cut, 11), waiting=cut).sampled
    assert run.output((cut, 6), (decoding, 1), waiting=cut).sampled == [decoding]
    beside = run.output((decoding, 1), (cut, 13), (described[1], 24), waiting=cut)
    assert torch.equal(run.step((decoding, 1), (cut, 10))[1], expected)
    assert torch.equal(beside.scores[1], whole.scores[0])
    assert torch.equal(beside.prompt[0].scores, whole.prompt[0].scores)
    assert len(whole.prompt[0].scores) == 23
