"""Whatever changes what a live model computes changes its answers, and nothing cached from before is used."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MethodType

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import nbgen
from nbgen.engine.idle_release import IdleRelease
from nbgen.engine.occupation import Occupation
from nbgen.errors import InvalidRequest, NbgenError
from nbgen.live import LiveServer
from tests.conftest import PATIENCE
from tests.notebook.conftest import unserved

PROMPT = "What the model says, the model says again and again in other words"
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft asks for it
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),  # of merged adapters, and of two models over one
]


def lora(**options: object) -> LoraConfig:
    given = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return LoraConfig(**given | {"init_lora_weights": False, "lora_dropout": 0.5} | options)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> PeftModel:
    """Of two adapters, while it is trained with dropout."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model = get_peft_model(base, lora(modules_to_save=["lm_head"]))
    model.add_adapter("two", lora(r=2, use_rslora=True))
    return model.train()


@pytest.fixture(scope="module", autouse=True)
def nobody_else() -> Iterator[None]:
    with unserved():
        yield


@pytest.fixture(scope="module")
def live(model: PeftModel, tokenizer: PreTrainedTokenizerBase) -> Iterator[LiveServer]:
    with nbgen.serve(model, tokenizer) as server:
        yield server


def told() -> torch.Tensor:
    return torch.tensor([each.logprob for each in nbgen.logprobs(PROMPT)][1:])


def cached() -> int:
    """Tokens of the prompt that were there already."""
    return nbgen.generate(PROMPT, max_new_tokens=1).usage["cached_tokens"]


def own(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """What the model itself says in evaluation mode."""
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        scores = model(input_ids=ids).logits[0].float().log_softmax(-1)
    for module, mode in modes:
        module.training = mode
    return scores[:-1].gather(1, ids[0, 1:, None])[:, 0]


def check(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    got = told()
    assert (got - own(model, tokenizer)).abs().max() < 1e-4
    return got


def layer(model: PeftModel) -> torch.nn.Module:
    return model.get_base_model().model.layers[0].mlp.up_proj


@contextmanager
def other_adapter(model: PeftModel) -> Iterator[None]:
    model.set_adapter("two")
    yield
    model.set_adapter("default")


@contextmanager
def all_switched_off(model: PeftModel) -> Iterator[None]:
    with model.disable_adapter():
        yield


@contextmanager
def layers_switched_off(model: PeftModel) -> Iterator[None]:
    model.base_model.disable_adapter_layers()
    yield
    model.base_model.enable_adapter_layers()


@contextmanager
def one_layer_switched_off(model: PeftModel) -> Iterator[None]:
    layer(model).enable_adapters(False)
    yield
    layer(model).enable_adapters(True)


@contextmanager
def scaled(model: PeftModel) -> Iterator[None]:
    layer(model).scale_layer(-3)
    yield
    layer(model).unscale_layer()


@contextmanager
def set_scale(model: PeftModel) -> Iterator[None]:
    layer(model).set_scale("default", 5)
    yield
    layer(model).set_scale("default", 1)


@contextmanager
def added_adapter(model: PeftModel) -> Iterator[None]:
    model.add_adapter("three", lora(use_dora=True))
    model.set_adapter("three")
    yield
    model.set_adapter("default")
    model.delete_adapter("three")


@contextmanager
def several_adapters(model: PeftModel) -> Iterator[None]:
    model.base_model.set_adapter(["default", "two"])
    yield
    model.set_adapter("default")


@contextmanager
def merged_and_switched_off(model: PeftModel) -> Iterator[None]:
    model.merge_adapter()
    with model.disable_adapter():
        yield
    assert not layer(model).merged


@contextmanager
def replaced_layer(model: PeftModel) -> Iterator[None]:
    mlp = model.get_base_model().model.layers[1].mlp
    before = mlp.down_proj
    mlp.down_proj = torch.nn.Linear(before.in_features, before.out_features, bias=False)
    yield
    mlp.down_proj = before


@contextmanager
def other_data(model: PeftModel) -> Iterator[None]:
    weight = layer(model).base_layer.weight
    before = weight.data
    weight.data = torch.randn_like(before)
    yield
    weight.data = before


@contextmanager
def data_in_place(model: PeftModel) -> Iterator[None]:
    """As averages of weights are put in place of them, past what autograd counts."""
    weight = layer(model).base_layer.weight
    before = weight.data.clone()
    weight.data.copy_(torch.randn_like(before))
    yield
    weight.data.copy_(before)


@contextmanager
def buffer_in_place(model: PeftModel) -> Iterator[None]:
    buffer = model.get_base_model().model.rotary_emb.inv_freq
    buffer.mul_(0.5)
    yield
    buffer.mul_(2)


@contextmanager
def parametrized(model: PeftModel) -> Iterator[None]:
    class Negative(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return -weight

    parametrize.register_parametrization(layer(model).base_layer, "weight", Negative())
    yield
    parametrize.remove_parametrizations(layer(model).base_layer, "weight", leave_parametrized=False)


@contextmanager
def hooked(model: PeftModel) -> Iterator[None]:
    """As vectors steer a model."""
    with layer(model).register_forward_hook(lambda _, inputs, output: output + 3):
        yield


@contextmanager
def other_forward(model: PeftModel) -> Iterator[None]:
    mlp = model.get_base_model().model.layers[0].mlp
    mlp.forward = MethodType(lambda self, x: -self.down_proj(self.up_proj(x)), mlp)
    yield
    del mlp.forward


@contextmanager
def other_function(model: PeftModel) -> Iterator[None]:
    mlp = model.get_base_model().model.layers[0].mlp
    before, mlp.act_fn = mlp.act_fn, torch.nn.Tanh()
    yield
    mlp.act_fn = before


@contextmanager
def other_attribute(model: PeftModel) -> Iterator[None]:
    attention = model.get_base_model().model.layers[0].self_attn
    before, attention.scaling = attention.scaling, 3.0
    yield
    attention.scaling = before


@dataclass
class Gain:
    value: float = 1.0


@contextmanager
def in_an_object(model: PeftModel) -> Iterator[None]:
    """That a module looks at, while it remains the same object."""
    mlp = model.get_base_model().model.layers[0].mlp
    mlp.gain = Gain()
    mlp.forward = MethodType(lambda self, x: self.gain.value * type(self).forward(self, x), mlp)
    told()
    mlp.gain.value = -1.0
    yield
    del mlp.forward, mlp.gain


@contextmanager
def other_class(model: PeftModel) -> Iterator[None]:
    mlp = model.get_base_model().model.layers[0].mlp
    before = type(mlp)

    class Other(before):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -super().forward(x)

    mlp.__class__ = Other
    yield
    mlp.__class__ = before


@contextmanager
def patched_class(model: PeftModel) -> Iterator[None]:
    kind = type(model.get_base_model().model.layers[0].mlp)
    before = kind.forward
    kind.forward = lambda self, x: -before(self, x)
    yield
    kind.forward = before


Change = Callable[[PeftModel], object]
CHANGES: list[Change] = [
    other_adapter, all_switched_off, layers_switched_off, one_layer_switched_off, scaled, set_scale, added_adapter,
    several_adapters, merged_and_switched_off, replaced_layer, other_data, data_in_place, buffer_in_place, parametrized,
    hooked, other_forward, other_function, other_attribute, in_an_object, other_class, patched_class,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_answers_follow(change: Change, live: LiveServer, model: PeftModel, tokenizer: PreTrainedTokenizerBase) -> None:
    before = check(model, tokenizer)
    cached()
    assert cached() > 0
    with change(model):
        assert cached() == 0
        assert (check(model, tokenizer) - before).abs().max() > 1e-2
    assert cached() == 0
    assert (check(model, tokenizer) - before).abs().max() < 1e-4


def test_merging_changes_no_answer(live: LiveServer, model: PeftModel, tokenizer: PreTrainedTokenizerBase) -> None:
    before = check(model, tokenizer)
    model.merge_adapter()
    assert (check(model, tokenizer) - before).abs().max() < 1e-4
    model.unmerge_adapter()
    assert (check(model, tokenizer) - before).abs().max() < 1e-4


def test_nothing_is_computed_anew_where_nothing_changed(live: LiveServer, model: PeftModel) -> None:
    """Neither for training mode, which no answer is in, nor the model's own use, nor weights that are no numbers."""
    layer(model).register_parameter("unused", torch.nn.Parameter(torch.tensor([math.nan])))
    cached()
    model.eval()
    model(input_ids=torch.tensor([[4, 5, 6]])).logits.sum().backward()
    model.train()
    again = cached()
    del layer(model).unused
    assert again > 0


def test_what_nobody_asks_holds_no_cache_and_follows_all_the_same(
    live: LiveServer, model: PeftModel, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rest, rests = check(model, tokenizer), Occupation.rest, threading.Semaphore(0)

    def told_of(occupation: Occupation) -> None:
        rest(occupation)
        rests.release()

    monkeypatch.setattr(Occupation, "rest", told_of)
    monkeypatch.setattr(IdleRelease, "_is_due", lambda _: True)
    for change in (nullcontext, other_adapter, layers_switched_off):
        with change(model):
            assert rests.acquire(timeout=PATIENCE)
            assert cached() == 0
            check(model, tokenizer)
    assert (check(model, tokenizer) - before).abs().max() < 1e-4


def test_another_type_of_number(live: LiveServer, model: PeftModel, tokenizer: PreTrainedTokenizerBase) -> None:
    before = check(model, tokenizer)
    model.bfloat16()
    assert (told() - own(model, tokenizer)).abs().max() < 0.1
    model.float()
    assert (check(model, tokenizer) - before).abs().max() < 0.2


def test_a_model_that_can_no_longer_be_run_says_so(
    live: LiveServer, model: PeftModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    head = model.get_base_model().model.norm
    weight = head.weight
    head.weight = torch.nn.Parameter(weight.to("meta"))
    with pytest.raises(NbgenError, match="must lie on one device"):
        told()
    head.weight = weight
    check(model, tokenizer)


def test_other_adapters_that_act_in_layers(tiny_model: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32),
        IA3Config(task_type="CAUSAL_LM", init_ia3_weights=False),
    )
    with nbgen.serve(model, tokenizer):
        before = check(model, tokenizer)
        with model.disable_adapter():
            assert (check(model, tokenizer) - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), r"\(PROMPT_TUNING\) acts outside"),
        (PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), r"\(PREFIX_TUNING\) acts outside"),
        (lora(alora_invocation_tokens=[5, 6]), r"\(activated LoRA\) acts outside"),
    ],
)
def test_adapters_that_act_outside_layers_are_refused(
    config: object, words: str, tiny_model: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config)
    with pytest.raises(InvalidRequest, match=words):
        nbgen.serve(model, tokenizer)
