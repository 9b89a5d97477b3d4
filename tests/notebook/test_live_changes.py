"""Whatever changes what a live model computes changes its answers, and nothing cached from before is used."""

import math
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from peft import IA3Config, PeftModel, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

import nbgen
from nbgen.engine.idle_release import IdleRelease
from nbgen.engine.occupation import Occupation
from nbgen.errors import InvalidRequest, NbgenError
from nbgen.live import LiveServer
from tests.conftest import PATIENCE
from tests.notebook.conftest import unserved
from tests.notebook.model_changes import CHANGES, PROMPT, Change, layer, layers_switched_off, lora, other_adapter, told

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft asks for it
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),  # of merged adapters, and of two models over one
]


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
