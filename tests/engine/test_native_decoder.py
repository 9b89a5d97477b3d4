"""Layers of our own: taken only for the code they stand for, and the same scores whatever else a step computes."""

from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMultimodalLM
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
from tests.conftest import save_model
from tests.engine.native_families import COPIES, DELTA, REMEMBERING, TAKEN, TOLD_BEFORE
from tests.soak import seldom

#: Those that kernels on a GPU know, too.
LLAMA_LIKE = ["llama", "mistral", "qwen2", "qwen3"]
LEFT = ["ctrl", "jetmoe"]
DTYPES = [dtype for dtype in native.KINDS if native_linear.readable(nn.Linear(64, 64, dtype=dtype))]


def runner_of(folder: Path, dtype: torch.dtype = torch.float32) -> ModelRunner:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return probe.choose_runner(model)


def saved(folder: Path, family: str) -> Path:
    return save_model(folder, family.partition(" ")[0], **TAKEN.get(family, {}))


#: The runner of a family in a dtype, which tests share: to load and try it takes longer than they do.
Runners = Callable[[str, torch.dtype], ModelRunner]


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Runners:
    return cache(lambda family, dtype: runner_of(saved(tmp_path_factory.mktemp("family"), family), dtype))


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


@pytest.mark.parametrize("family", seldom(TAKEN, COPIES))
def test_the_scores_are_transformers_own(family: str, runners: Runners, tmp_path: Path) -> None:
    runner = runners(family, torch.float32)
    assert bool(runner.stock.layers) == (family not in {*REMEMBERING, *TOLD_BEFORE}), "its layers are known"
    assert runner.native_model, "and so is what is around them"
    assert runner.layers_in == "C++"
    stock = AutoModelForCausalLM.from_pretrained(saved(tmp_path, family), dtype=torch.float32).eval()
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


def test_the_text_of_a_mixture_that_sees_is_taken() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
    text = {**sizes, **experts, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 264, "rope_parameters": rope}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    config = AutoConfig.for_model("qwen3_vl_moe", text_config=text, vision_config=vision)
    model = AutoModelForMultimodalLM.from_config(config).float().eval()
    assert probe.choose_runner(model).native_model


def test_tokens_that_media_modules_embed_are_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 3n's, of which others' layers are ours; what sees needs a package that is not here."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 264}
    media = [{"hidden_size": 32, "vocab_size": 16, "vocab_offset": offset} for offset in (232, 248)]
    parts = dict(
        zip(("text_config", "vision_config", "audio_config"), (TAKEN["gemma3n_text"] | sizes, *media), strict=True)
    )
    made = AutoModel.from_config
    monkeypatch.setattr(
        AutoModel, "from_config", lambda config: made(config) if "text" in config.model_type else nn.Identity()
    )
    torch.manual_seed(0)
    model = AutoModelForMultimodalLM.from_config(AutoConfig.for_model("gemma3n", **parts)).float().eval()
    prompts = [list(range(4, 30)), [*range(10, 30), 240, 250, 7]]
    with torch.inference_mode():
        expected = [model(torch.tensor([prompt]), use_cache=False).logits[0, -1] for prompt in prompts]
    runner = probe.choose_runner(model)
    runner.cache.resize(64)
    ours, blocks = Mock(wraps=runner.native_model.scores), BlockManager(64, BLOCK_SIZE)
    monkeypatch.setattr(runner.native_model, "scores", ours)
    for prompt, scores in zip(prompts, expected, strict=True):
        item = ScheduledSequence(trial.grow(trial.sequence(prompt), len(prompt), blocks), len(prompt))
        assert (runner.run([item]).scores[0] - scores).abs().max() < 2e-5 * scores.abs().max()
    assert ours.call_count == 1


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


def test_a_router_that_divides_by_more_than_a_sum_is_not_taken(tmp_path: Path) -> None:
    """Of few random tokens none might show it."""
    runner = runner_of(save_model(tmp_path, "ernie4_5_moe", **TAKEN["ernie4_5_moe"], moe_norm_min=0.1))
    assert runner.stock.layers is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_experts_need_not_come_in_fours(dtype: torch.dtype, tmp_path: Path) -> None:
    """Nor where their scores are not rounded, as those around them are."""
    assert runner_of(
        save_model(tmp_path, "ernie4_5_moe", **TAKEN["ernie4_5_moe"] | {"moe_num_experts": 10}), dtype
    ).native_model


def test_a_model_whose_layers_all_remember_is_taken(tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2}
    assert runner_of(save_model(tmp_path, "qwen3_5_text", **{**DELTA, **layers})).native_model


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3", *REMEMBERING])
def test_a_sequence_is_the_same_to_the_bit_however_it_is_cut_and_whatever_its_steps_compute_besides(
    family: str, dtype: torch.dtype, runners: Runners
) -> None:
    runner = runners(family, dtype)
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
@pytest.mark.parametrize("family", seldom(TAKEN, COPIES))
def test_a_token_alone_has_the_bits_of_one_among_many(family: str, dtype: torch.dtype, runners: Runners) -> None:
    """In contexts of several chunks, and in windows: so a prompt may come from the prefix cache up to any token."""
    run = Run(runners(family, dtype))
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
@pytest.mark.parametrize(
    "family", ["qwen3", "qwen3_5_text", "lfm2", "phi", "gpt_neox", "gpt2", "gemma4_text", "deepseek_v3"]
)
def test_what_the_last_layer_leaves_out_changes_no_scores(family: str, dtype: torch.dtype, runners: Runners) -> None:
    """Of a piece that no token follows, of one that one follows, of a prompt with log-probabilities of its own."""
    run = Run(runners(family, dtype))
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
