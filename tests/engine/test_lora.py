"""Sequences of several adapters and of none in one batch, each with exactly peft's float32 text."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbgen.engine import lora
from nbgen.engine.assembly import Assembly
from nbgen.engine.block_manager import BlockManager
from nbgen.engine.prefix_cache import Namespace
from nbgen.engine.scheduler import ScheduledSequence, Scheduler
from nbgen.engine.upload import upload
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest, LogprobOptions
from nbgen.protocols.sglang import parse_generate
from nbgen.sampling_params import SamplingParams
from tests.adapters import change_config, peft_continuations, save_adapter
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids, timeless
from tests.engine.native_families import COPIES
from tests.engine.test_native_decoder import TAKEN
from tests.soak import seldom

NEW_TOKENS = 8
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
PROMPTS = [list(range(10, 10 + length)) for length in (30, 7, 1, 19)]
ATTENTION = ["q_proj", "v_proj"]
#: name: options of peft
KINDS = {
    "all": {},
    "attention": {"r": 7, "target_modules": ATTENTION},
    "regex": {"r": 2, "target_modules": r".*layers\.1\..*(o_proj|down_proj|q_proj)", "use_rslora": True},
    "mixed": {
        "r": 3,
        "target_modules": [*ATTENTION, "lm_head"],
        "rank_pattern": {"q_proj": 5},
        "alpha_pattern": {"v_proj": 2},
    },
}

LONG = 3


class Asked(NamedTuple):
    """What the sharing of cached prefixes depends on, with names that try to be what the engine writes."""

    extra_key: str
    cache_salt: str
    adapter: str | None
    is_long: bool


SAID = st.sampled_from(["", "a", "\0", "a\0", "\0a", "a\0a", "long\0", "adapter 1\0", "long\0adapter 1\0"])
ASKED = st.builds(Asked, SAID, SAID, st.sampled_from([None, "all", "attention"]), st.booleans())

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*causal_conv1d.*", "ignore:.*mamba_ssm.*", "ignore:.*fla.*"),
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft asks for it
]


def request(rid: str, prompt: list[int], adapter: str = "", **changes: object) -> GenerateRequest:
    return GenerateRequest(rid=rid, input_ids=prompt, params=PARAMS, adapter=adapter, **changes)


def continuations(model: Path, *adapters: Path | None, found: list[list[int]]) -> list[list[int]]:
    """What peft writes behind the first prompt with each adapter, or with none, and so on."""
    each = len(adapters)
    written = [peft_continuations(model, a, PROMPTS, NEW_TOKENS, found[i::each]) for i, a in enumerate(adapters)]
    return [answer for of_one in zip(*written, strict=True) for answer in of_one]


def answers(assembly: Assembly, requests: list[GenerateRequest]) -> list[list[int]]:
    outputs = generate(assembly, requests)
    return [ids(outputs[each.rid]) for each in requests]


def load(assembly: Assembly, name: str, folder: Path) -> None:
    assembly.engine.install(assembly.adapters.load(name, str(folder)))


def unload(assembly: Assembly, name: str) -> None:
    assembly.engine.remove(assembly.adapters.unload(name))


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("adapters")
    return {
        name: save_adapter(place / name, tiny_model, seed, **kind) for seed, (name, kind) in enumerate(KINDS.items())
    }


@pytest.fixture(scope="module")
def assembly(tiny_model: Path, folders: dict[str, Path]) -> Assembly:
    """A float32 engine with all of the adapters."""
    made = build(tiny_model, prefill_chunk=16)
    for name, folder in folders.items():
        load(made, name, folder)
    return made


def test_one_batch_of_all_kinds_writes_what_peft_writes(
    assembly: Assembly, tiny_model: Path, folders: dict[str, Path]
) -> None:
    cases = [(name, prompt) for prompt in PROMPTS for name in ("", *folders)]
    requests = [request(f"r{i}", prompt, name) for i, (name, prompt) in enumerate(cases)]
    found = answers(assembly, requests)
    expected = continuations(tiny_model, None, *folders.values(), found=found)
    for index in range(len(KINDS)):
        assert expected[index + 1] != expected[0], "an adapter that changes nothing tests nothing"
    assert found == expected, "in one batch"
    assert [answers(assembly, [r])[0] for r in requests] == expected, "alone, on prefix hits"


def test_a_step_that_has_no_memory_for_its_rows_adapts_no_other(
    assembly: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(values: object, *more: object) -> torch.Tensor:
        if isinstance(values, list):
            raise MemoryError
        return upload(values, *more)

    runner, (sequence,) = assembly.engine._runner, assembly.admission.sequences(request("r", PROMPTS[0], "all"))
    layer = runner.model.get_submodule("model.layers.0.self_attn.q_proj")
    rows = torch.ones(3, layer.in_features)
    before = layer(rows)
    monkeypatch.setattr(lora, "upload", full)
    with pytest.raises(MemoryError), runner.lora.of([ScheduledSequence(sequence, len(sequence))], [0]):
        pass
    assert torch.equal(layer(rows), before)


MODELS = {
    "qwen3": "all-linear",
    "olmo2": "all-linear",
    "phi3": "all-linear",  # several of whose products are one layer
    "mixtral": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
}
MODELS |= {"falcon_h1": ["q_proj", "v_proj", "in_proj", "down_proj"], "bloom": "all-linear"}
MODELS |= {name: ["shared_expert_gate"] for name in ("qwen2_moe", "qwen3_5_moe_text")}
MODELS |= dict.fromkeys(("lfm2", "qwen3_5_text", "granitemoehybrid"), "all-linear")
MODELS |= {"qwen3_next": ["in_proj_qkvz", "in_proj_ba", "out_proj"], "hunyuan_v1_moe": ["wg", "o_proj"]}
MODELS |= {"nemotron_h": ["in_proj", "q_proj", "up_proj"]}
MODELS |= {"deepseek_v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]}
GEMMA = ("gemma3n_text", "gemma4_text", "gemma4_text with experts")
MODELS |= dict.fromkeys(GEMMA, "all-linear")
CHANGES = {name: family.changes for name, family in FAMILIES.items()} | TAKEN
#: With tied embeddings of such a scale, a random model repeats its last token.
CHANGES |= {name: {**TAKEN[name], "tie_word_embeddings": False} for name in GEMMA}


@pytest.mark.parametrize(
    "name", seldom(MODELS, {"olmo2", "phi3", "bloom", "qwen3_5_text", "qwen3_next", "deepseek_v3", *COPIES})
)
def test_other_families_too(name: str, tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", name.partition(" ")[0], **CHANGES.get(name, {}))
    options = {"target_modules": MODELS[name], "fan_in_fan_out": name == "gpt2"}
    folder = save_adapter(tmp_path / "adapter", model, **options)
    assembly = build(model, prefill_chunk=16)
    load(assembly, "a", folder)
    requests = [request(f"{name}{i}", prompt, name) for i, prompt in enumerate(PROMPTS) for name in ("", "a")]
    found = answers(assembly, requests)
    expected = continuations(model, None, folder, found=found)
    assert expected[1] != expected[0], "an adapter that changes nothing tests nothing"
    assert found == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_who_has_no_adapter_gets_the_same_bits(dtype: str, tiny_model: Path, folders: dict[str, Path]) -> None:
    plain, adapted = (build(tiny_model, dtype=dtype) for _ in range(2))
    for name, folder in folders.items():
        load(adapted, name, folder)
    wanted = LogprobOptions(start=0, top=5)
    own = [request(f"r{i}", prompt, logprobs=wanted) for i, prompt in enumerate(PROMPTS)]
    others = [request(f"o{i}", [n + 1 for n in prompt]) for i, prompt in enumerate(PROMPTS)]
    expected = generate(plain, own + others)
    got = generate(adapted, own + [request(r.rid, r.input_ids, name) for r, name in zip(others, folders, strict=True)])
    for r in own:
        assert timeless(got[r.rid]) == timeless(expected[r.rid])
    assert ids(got["o0"]) != ids(expected["o0"])


def test_bfloat16_adapters_act_on_layers_that_are_computed_as_one(tiny_model: Path, folders: dict[str, Path]) -> None:
    """Scores near those of float32: the layers' stand-ins on such a CPU take adapters too."""
    assembly = build(tiny_model, dtype="bfloat16")
    load(assembly, "all", folders["all"])
    exact = build(tiny_model)
    load(exact, "all", folders["all"])
    (found, expected) = (
        [
            entry.token[0]
            for o in generate(made, [request("r", PROMPTS[0], "all", logprobs=LogprobOptions(start=0))])["r"]
            for entry in o.prompt_logprobs
        ][1:]
        for made in (assembly, exact)
    )
    assert torch.tensor(found).sub(torch.tensor(expected)).abs().max() < 0.6


def test_prefixes_are_never_shared_between_adapters_or_versions(tiny_model: Path, folders: dict[str, Path]) -> None:
    assembly = build(tiny_model)
    for name in ("all", "attention"):
        load(assembly, name, folders[name])

    def cached(name: str) -> int:
        return generate(assembly, [request("r", PROMPTS[0], name)])["r"][-1].cached_tokens

    assert [cached(name) for name in ("", "all", "attention")] == [0, 0, 0]
    assert [cached(name) for name in ("", "all", "attention")] == [29, 29, 29]
    unload(assembly, "all")
    load(assembly, "all", folders["regex"])
    assert cached("all") == 0, "another version of the name"
    assert cached("") == 29


@given(st.lists(ASKED, min_size=10, unique=True))
def test_who_asks_for_something_else_has_another_namespace(assembly: Assembly, everyone: list[Asked]) -> None:
    def namespace(asked: Asked) -> Namespace:
        body = {"input_ids": [5] * (LONG + asked.is_long), "extra_key": asked.extra_key, "cache_salt": asked.cache_salt}
        (request,) = parse_generate(json.dumps(body | {"lora_path": asked.adapter}).encode()).requests
        (sequence,) = assembly.admission.sequences(request)
        Scheduler(BlockManager(4, 16), max_running=1, prefill_chunk=None, long_after=LONG).add(sequence)
        return sequence.namespace

    assert len({namespace(asked) for asked in everyone}) == len(everyone)


def test_the_model_without_adapters_is_as_it_was(tiny_model: Path, folders: dict[str, Path]) -> None:
    assembly = build(tiny_model)
    modules = list(assembly.engine._runner.model.modules())
    load(assembly, "mixed", folders["mixed"])
    assert len(list(assembly.engine._runner.model.modules())) > len(modules)
    unload(assembly, "mixed")
    assert list(assembly.engine._runner.model.modules()) == modules
    with pytest.raises(InvalidRequest, match="never been loaded"):
        assembly.admission.sequences(request("r", PROMPTS[0], "mixed"))


def test_adapters_outlive_released_weights(tiny_model: Path, folders: dict[str, Path]) -> None:
    assembly = build(tiny_model)
    load(assembly, "all", folders["all"])
    expected = ids(generate(assembly, [request("r", PROMPTS[0], "all")])["r"])
    assembly.occupation.release({"kv_cache", "weights"})
    assembly.occupation.resume({"kv_cache", "weights"})
    assert ids(generate(assembly, [request("r", PROMPTS[0], "all")])["r"]) == expected


REFUSED = {
    "DoRA": ({"use_dora": True}, "use_dora"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "biases": ({"bias": "all"}, "bias="),
    "another kind": ({"peft_type": "IA3"}, "LORA"),
    "a changed base": ({"init_lora_weights": "pissa"}, "base model"),
    "a base changed by gradients": ({"init_lora_weights": "lora_ga"}, "base model"),
    "rank 0": ({"r": 0}, "rank is 0"),
    "a rank that lies": ({"r": 5}, r"\[4, \d+\]; with this base model it is \[5, \d+\]"),
    "no alpha": ({"lora_alpha": None}, "lora_alpha"),
    "a bad pattern": ({"rank_pattern": {"(": 3}}, "regular expression"),
    "two halves of a pattern": ({"rank_pattern": {"a)|(?:b": 3}}, "regular expression"),
    "half a character": ({"rank_pattern": {"\ud800": 3}}, "regular expression"),
    "a pattern that looks back": ({"rank_pattern": {r"(a)\1": 3}}, "which RE2 reads"),
    "a pattern without end": ({"rank_pattern": {r"((\w|\.)+)+!": 3}, "r": 5}, "with this base model it is"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused(name: str, assembly: Assembly, tiny_model: Path, tmp_path: Path) -> None:
    changes, words = REFUSED[name]
    folder = save_adapter(tmp_path / "a", tiny_model)
    change_config(folder, **changes)
    with pytest.raises(InvalidRequest, match=words) as refusal:
        assembly.adapters.load("new", str(folder))
    assert str(tmp_path) not in refusal.value.message
    change_config(folder, **{"r": 4, "lora_alpha": 8, "peft_type": "LORA", "rank_pattern": {}, "bias": "none"})
    change_config(folder, use_dora=False, modules_to_save=None, init_lora_weights=True)
    assembly.adapters.load("new", str(folder))
    assembly.adapters.unload("new")


def test_damaged_and_foreign_files_are_refused(assembly: Assembly, tiny_model: Path, tmp_path: Path) -> None:
    def refusal(folder: Path) -> str:
        with pytest.raises(InvalidRequest) as refused:
            assembly.adapters.load("new", str(folder))
        assert str(tmp_path) not in refused.value.message
        return refused.value.message

    for nowhere in (tmp_path / "nowhere", tmp_path / ("x" * 300), Path("~nobody-of-this-name/x")):
        assert "no such folder" in refusal(nowhere)
    wide = save_model(tmp_path / "wide", hidden_size=128)
    assert "with this base model it is" in refusal(save_adapter(tmp_path / "w", wide))
    deep = save_model(tmp_path / "deep", num_hidden_layers=3)
    assert "no linear layer 'model.layers.2" in refusal(save_adapter(tmp_path / "d", deep))
    folder = save_adapter(tmp_path / "a", tiny_model)
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "damaged" in refusal(folder)
    weights.write_bytes(whole[:-4] + b"\x00\x00\xc0\x7f")
    assert "not finite" in refusal(folder)
    weights.rename(folder / "adapter_model.bin")
    assert "safetensors only" in refusal(folder)
    (folder / "adapter_config.json").write_text("[")
    weights.write_bytes(whole)
    assert "JSON" in refusal(folder)


def test_a_layer_that_gets_other_rows_than_tokens_is_refused(tmp_path: Path) -> None:
    """Mamba's step sizes, of which a layer's weight is used otherwise than row by row."""
    model = save_model(tmp_path / "model", "mamba", **FAMILIES["mamba"].changes)
    assembly = build(model)
    strange = save_adapter(tmp_path / "strange", model, target_modules=["dt_proj", "in_proj"])
    with pytest.raises(InvalidRequest, match=r"changes 'backbone.layers.0.mixer.dt_proj' and 1 more layers, which"):
        assembly.adapters.load("strange", str(strange))
    folder = save_adapter(tmp_path / "plain", model, target_modules=["in_proj"])
    load(assembly, "plain", folder)
    requests = [request(f"{name}{i}", prompt, name) for i, prompt in enumerate(PROMPTS) for name in ("", "plain")]
    found = answers(assembly, requests)
    assert found == continuations(model, None, folder, found=found)


def test_bfloat16_adapters_add_the_same_by_either_product(tiny_model: Path, folders: dict[str, Path]) -> None:
    """A batch of all adapters goes through the prepacked stack, a batch of one through its part of the plain one."""
    assembly = build(tiny_model, dtype="bfloat16")
    for name, folder in folders.items():
        load(assembly, name, folder)
    wanted = LogprobOptions(start=0)
    requests = [request(name, PROMPTS[0], name, logprobs=wanted) for name in folders]
    together = generate(assembly, requests)
    for r in requests:
        assembly.engine.flush_cache()
        alone = generate(assembly, [r])[r.rid]
        scores = [
            [entry.token[0] for output in outputs for entry in output.prompt_logprobs or ()][1:]
            for outputs in (together[r.rid], alone)
        ]
        assert torch.tensor(scores[0]).sub(torch.tensor(scores[1])).abs().max() < 0.25
