"""The live model: a real torch module that is trained in this process, behind a real server, in real text."""

import copy
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

import nbgen
from nbgen.errors import ModelError
from nbgen.live import LiveModel, LiveServer
from tests.conftest import PATIENCE, wait_for
from tests.notebook.conftest import unserved

PROMPT = "What the model says"
GREEDY = {"complete": True, "temperature": 0, "max_new_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> torch.nn.Module:
    """With room for long answers; in training mode, a frozen parameter, dropout, as in the middle of an epoch."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.5, max_position_embeddings=16_384)
    model.train()
    model.model.embed_tokens.weight.requires_grad_(False)
    return model


@pytest.fixture(scope="module")
def begun(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights before any test."""
    return {name: weight.clone() for name, weight in model.state_dict().items()}


@pytest.fixture(autouse=True)
def same_weights(model: torch.nn.Module, begun: dict[str, torch.Tensor]) -> None:
    """Whichever tests came before: with others, two tokens might be as likely by chance."""
    model.load_state_dict(begun)


@pytest.fixture(scope="module")
def live(model: torch.nn.Module, tokenizer: object) -> Iterator[LiveServer]:
    with unserved(), nbgen.serve(model, tokenizer) as server:
        yield server


def answer(**options: object) -> str:
    return nbgen.generate(PROMPT, **{**GREEDY, **options}).text


def expected(model: torch.nn.Module, tokenizer: object, tokens: int = 24) -> str:
    """What transformers itself writes with the present weights."""
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    training = model.training
    model.eval()
    with torch.no_grad():
        written = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, eos_token_id=None)
    model.train(training)
    return tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)


def loss_of(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.randint(4, 200, (2, 24), generator=torch.Generator().manual_seed(1))
    return model(input_ids=ids, labels=ids).loss


def optimizer_of(model: torch.nn.Module, rate: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)


def test_every_answer_is_of_the_present_weights(live: LiveServer, model: torch.nn.Module, tokenizer: object) -> None:
    steps, answers = optimizer_of(model), []
    for _ in range(3):
        answers.append(answer())
        assert answers[-1] == expected(model, tokenizer)
        assert answer() == answers[-1]
        loss_of(model).backward()
        steps.step()
        steps.zero_grad()
    assert len(set(answers)) == 3


def test_it_is_served_also_where_folders_for_the_time_being_have_long_names(
    tiny_model: Path, tokenizer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LiveModel(AutoModelForCausalLM.from_pretrained(tiny_model), tokenizer)
    place = tmp_path / ("long" * 25)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with LiveServer(model, "long", {}, lambda seconds: None) as server:
        assert server.running
        assert server.client.model()["name"] == "long"


def test_a_cached_prefix_of_other_weights_is_not_used(live: LiveServer, model: torch.nn.Module) -> None:
    prompt = "the same long beginning of a text " * 4
    ask = lambda: nbgen.generate(prompt, **GREEDY).usage  # noqa: E731
    ask()
    assert ask()["cached_tokens"] > 0
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    assert ask()["cached_tokens"] == 0


def test_weights_set_behind_autograds_back(live: LiveServer, model: torch.nn.Module, tokenizer: object) -> None:
    before = answer()
    with live.training():
        for parameter in model.parameters():
            parameter.data.mul_(-1.5)
    assert answer() == expected(model, tokenizer) != before


def test_the_model_is_left_as_it_was(live: LiveServer, model: torch.nn.Module) -> None:
    loss_of(model).backward()
    before = {
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "weights": [p.clone() for p in model.parameters()],
    }
    flags = [(p.requires_grad, p._version, p.is_inference()) for p in model.parameters()]
    attention, state = model.config._attn_implementation, torch.get_rng_state()
    modules = [(type(m), m.training, m.__dict__.get("forward"), len(m._forward_pre_hooks)) for m in model.modules()]
    answer(temperature=1.0)
    nbgen.logprobs(PROMPT)
    assert [(p.requires_grad, p._version, p.is_inference()) for p in model.parameters()] == flags
    assert modules == [
        (type(m), m.training, m.__dict__.get("forward"), len(m._forward_pre_hooks)) for m in model.modules()
    ]
    assert model.config._attn_implementation == attention
    assert torch.equal(torch.get_rng_state(), state)
    for old, parameter in zip(before["weights"], model.parameters(), strict=True):
        assert torch.equal(old, parameter)
    for old, parameter in zip(before["gradients"], model.parameters(), strict=True):
        assert parameter.grad is None if old is None else torch.equal(old, parameter.grad)


def test_training_is_the_same_with_and_without_generation(live: LiveServer, model: torch.nn.Module) -> None:
    """Also while text is being written: dropout, gradients and steps are those of a model that nobody serves."""
    alone = copy.deepcopy(model)
    train(alone)
    stream = nbgen.stream(PROMPT, **{**GREEDY, "max_new_tokens": 15_000})
    next(stream)
    train(model)
    stream.close()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def train(model: torch.nn.Module, steps: int = 5) -> None:
    torch.manual_seed(7)
    chosen = optimizer_of(model)
    for _ in range(steps):
        chosen.zero_grad()
        loss_of(model).backward()
        chosen.step()


def test_text_streams_while_the_model_is_trained(
    live: LiveServer, model: torch.nn.Module, tokenizer: object, begun: dict[str, torch.Tensor]
) -> None:
    arrived: list[float] = []
    steps: list[float] = []

    def both() -> bool:
        """Whether much of the text has come between steps, and many steps between pieces of it."""
        return sum(steps[0] < at for at in arrived) > 5 and sum(arrived[0] < at < arrived[-1] for at in steps) > 5

    def read() -> None:
        for _ in nbgen.stream(PROMPT, **{**GREEDY, "max_new_tokens": 15_000}):
            arrived.append(time.monotonic())
            if enough.is_set():
                return

    reader, enough = threading.Thread(target=read), threading.Event()
    reader.start()
    chosen, end = optimizer_of(model, 1e-4), time.monotonic() + PATIENCE
    while not (steps and arrived and both()):
        assert reader.is_alive()
        assert time.monotonic() < end, (len(steps), len(arrived))
        chosen.zero_grad()
        loss_of(model).backward()
        chosen.step()
        steps.append(time.monotonic())
    enough.set()
    reader.join()
    model.load_state_dict(begun)  # how often it was trained is chance
    assert answer() == expected(model, tokenizer)


def test_nothing_is_generated_in_a_training_block(live: LiveServer) -> None:
    answer()
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(answer()))
    with live.training():
        reader.start()
        reader.join(1.5)
        assert reader.is_alive()
    reader.join(PATIENCE)
    assert len(said[0]) > 0


def test_a_step_that_fails_does_not_stop_generation(live: LiveServer, model: torch.nn.Module) -> None:
    """As after an interrupt in the middle of a step, whose end is never told."""

    class Broken(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Broken(model.parameters(), lr=0.1).step()
    assert answer()


def test_other_models_are_trained_without_waiting(live: LiveServer) -> None:
    other = torch.nn.Linear(2, 2)
    with live._model.weights.reading(0) as may:
        assert may
        other(torch.ones(2)).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()


def test_layers_that_are_replaced_are_noticed(live: LiveServer, model: torch.nn.Module, tokenizer: object) -> None:
    before = answer()
    model.lm_head = torch.nn.Linear(64, model.config.vocab_size, bias=False)
    assert answer() == expected(model, tokenizer) != before


def test_stopping_an_answer_leaves_the_engine_idle(live: LiveServer) -> None:
    status = lambda: live.client.model()["status"]  # noqa: E731
    assert answer()
    before = status()["generated_tokens"]
    stream = nbgen.stream(PROMPT, **{**GREEDY, "max_new_tokens": 15_000})
    next(stream)
    wait_for(lambda: status()["running"] == 1, "the engine has said that it runs")
    stream.close()
    wait_for(lambda: status()["running"] == 0, "the engine is idle")
    assert 0 < status()["generated_tokens"] - before < 15_000


def test_unloading_gives_the_cache_back_and_loading_goes_on(
    live: LiveServer, model: torch.nn.Module, tokenizer: object
) -> None:
    assert answer() == expected(model, tokenizer)
    nbgen.unload()
    wait_for(
        lambda: not [t for t in threading.enumerate() if t.name in ("admission", "channel-writer")], "they are gone"
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    nbgen.load()
    assert answer() == expected(model, tokenizer)
    with pytest.raises(ModelError, match="live model 'live'"):
        nbgen.load("bundled")
    assert answer() == expected(model, tokenizer)


def test_other_protocols_answer_too(live: LiveServer, model: torch.nn.Module, tokenizer: object) -> None:
    headers = {"Authorization": f"Bearer {live.client.token}"}
    params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    body = {"text": PROMPT, "sampling_params": params}
    said = httpx.post(live.url + "generate", json=body, headers=headers).json()
    assert said["text"] == expected(model, tokenizer)
    listed = httpx.get(live.url + "v1/models", headers=headers).json()
    assert [entry["id"] for entry in listed["data"]] == ["live"]
