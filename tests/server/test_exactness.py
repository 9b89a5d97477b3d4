"""What comes over HTTP is exact: sampled tokens follow the distribution that transformers' float32 scores give,
written out here token by token, and log-probabilities are its log-softmax, whatever is cached, cut or batched.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.conftest import save_model
from tests.server.conftest import Server
from tests.soak import seldom

EOS = 0
BEST = "best"
CLOSE = 3e-4
PROMPT = [(11 * i) % 250 + 4 for i in range(20)]
LONG = [(7 * i) % 250 + 4 for i in range(150)]
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
SAMPLES, CALLS = 128, 8
#: What `generation_config.json` of one checkpoint says.
DEFAULTS = {"temperature": 0.5, "top_k": 3}


class Reference:
    """The same checkpoint in transformers, float32, without a cache."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.first = self.scores([PROMPT])[0, -1]

    @torch.inference_mode()
    def scores(self, rows: list[list[int]]) -> numpy.ndarray:
        """`[rows, tokens, vocab]` of rows of one length."""
        return self.model(torch.tensor(rows), use_cache=False).logits.double().numpy()


def suited(params: Mapping[str, Any], reference: Reference) -> dict[str, Any]:
    """The same for a model however peaked: at temperature 1 its eighth token is e times less likely than its first.

    The bias BEST makes a token as likely as the likeliest.
    """
    best = numpy.sort(reference.first)[::-1]
    biases = {
        token: float(best[0] - reference.first[int(token)]) if bias == BEST else bias
        for token, bias in params.get("logit_bias", {}).items()
    }
    return {**params, "temperature": params["temperature"] * float(best[0] - best[7]), "logit_bias": biases}


def log_softmax(scores: numpy.ndarray) -> numpy.ndarray:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=-1, keepdims=True))


def adjusted(scores: numpy.ndarray, output: tuple[int, ...], params: Mapping[str, Any]) -> numpy.ndarray:
    """Scores `[vocab]` after penalties, held-back ends and biases, in SGLang's order."""
    row = scores.copy()
    for token, count in Counter(output).items():
        row[token] -= params.get("frequency_penalty", 0) * count + params.get("presence_penalty", 0)
    if len(output) < params.get("min_new_tokens", 0):
        row[[EOS, *params.get("stop_token_ids", [])]] = -math.inf
    for token in set(output):
        r = params.get("repetition_penalty", 1)
        row[token] = row[token] * r if row[token] < 0 else row[token] / r
    for token, bias in params.get("logit_bias", {}).items():
        row[int(token)] += bias
    return row


def conditional(scores: numpy.ndarray, output: tuple[int, ...], params: Mapping[str, Any]) -> dict[int, float]:
    """The next token's distribution: top_k, top_p and min_p looked at together, token by token."""
    row = numpy.exp(log_softmax(adjusted(scores, output, params) / params.get("temperature", 1)))
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    kept, before = {}, 0.0
    for rank, token in enumerate(order):
        inside = rank < params.get("top_k", len(row)) and before <= params.get("top_p", 1)
        if rank == 0 or (inside and row[token] >= params.get("min_p", 0) * row[order[0]]):
            kept[token] = row[token]
        before += row[token]
    mass = sum(kept.values())
    return {token: p / mass for token, p in kept.items() if p > 0}


def exact(reference: Reference, steps: int, params: Mapping[str, Any]) -> dict[tuple[int, ...], float]:
    """The probability of every answer of `steps` tokens, or fewer where the end comes."""
    living, ended = {(): 1.0}, {}
    for _ in range(steps):
        scores = reference.scores([[*PROMPT, *output] for output in living])[:, -1]
        following = {}
        for (output, mass), row in zip(living.items(), scores, strict=True):
            for token, p in conditional(row, output, params).items():
                (ended if token == EOS else following)[(*output, token)] = mass * p
        living = following
    return living | ended


def drawn(server: Server, steps: int, params: Mapping[str, Any]) -> Counter[tuple[int, ...]]:
    """Answers of the server to 1024 seeds."""
    options = [
        {**params, "max_new_tokens": steps, "n": SAMPLES, "sampling_seed": 1000 + SAMPLES * call}
        for call in range(CALLS)
    ]
    answer = server.http.post("generate", json={"input_ids": [PROMPT] * CALLS, "sampling_params": options})
    assert answer.status_code == 200, answer.text
    return Counter(tuple(item["output_ids"]) for item in answer.json())


def check(observed: Counter[tuple[int, ...]], wanted: Mapping[tuple[int, ...], float]) -> None:
    """Pearson's chi-squared at 1 in 10,000; cells of fewer than five are taken together."""
    total = observed.total()
    assert set(observed) <= set(wanted), "an answer that has no probability"
    assert sum(wanted.values()) == pytest.approx(1)
    cells, rest = [], [0.0, 0.0]
    for answer, p in wanted.items():
        if p * total >= 5:
            cells.append((observed[answer], p * total))
        else:
            rest = [rest[0] + observed[answer], rest[1] + p * total]
    cells += [tuple(rest)] if rest[1] >= 5 else []
    freedom = len(cells) - 1
    assert freedom > 0, "nothing to compare"
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    # Wilson and Hilferty's approximation of the quantile.
    most = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < most, (statistic, most, freedom)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    options = ["--dtype=float32", "--NbgenApp.prefill_chunk=24", "--NbgenApp.autoload=False"]
    options.append("--sampling-defaults=openai")
    server = Server(tmp_path_factory.mktemp("exact"), f"--model={tiny_model}", *options)
    yield server
    server.stop()
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module", params=seldom(MODELS, {"gemma3_text", "qwen3_moe"}))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of the models."""
    return save_model(tmp_path_factory.mktemp("models") / request.param, request.param, **MODELS[request.param])


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture
def pair(served: Server, folder: Path, reference: Reference) -> tuple[Server, Reference]:
    """A server with the model, and the reference of it."""
    assert served.serving(folder).model()["model"]["tier"] == "A"
    return served, reference


@pytest.mark.parametrize(
    ("steps", "params"),
    [
        (1, {"temperature": 0.5}),
        (2, {"temperature": 1.0, "top_k": 6}),
        (2, {"temperature": 0.4, "top_p": 0.6}),
        (2, {"temperature": 1.0, "min_p": 0.35}),
        (2, {"temperature": 0.6, "top_k": 8, "top_p": 0.8, "min_p": 0.1}),
        (3, {"temperature": 0.7, "top_k": 4, "frequency_penalty": 1.5, "presence_penalty": -1.0}),
        (3, {"temperature": 0.7, "top_k": 4, "repetition_penalty": 1.3}),
        (2, {"temperature": 0.7, "top_k": 6, "logit_bias": {"9": BEST, "30": BEST, "31": -1.0}}),
        (3, {"temperature": 0.7, "top_k": 4, "logit_bias": {"0": BEST}, "min_new_tokens": 1}),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else str(value),
)
def test_samples_follow_the_exact_distribution(
    pair: tuple[Server, Reference], steps: int, params: dict[str, Any]
) -> None:
    server, reference = pair
    params = suited(params, reference)
    check(drawn(server, steps, params), exact(reference, steps, params))


def entries(meta: Mapping[str, Any], name: str) -> list[Any]:
    return meta[f"input_{name}"] + meta[f"output_{name}"]


def check_logprobs(item: Mapping[str, Any], prompt: list[int], start: int, reference: Reference) -> None:
    """Every entry of prompt and output against the reference's log-softmax."""
    meta, tokens = item["meta_info"], prompt + item["output_ids"]
    rows = log_softmax(reference.scores([tokens])[0])
    own, top, chosen = (entries(meta, name) for name in ("token_logprobs", "top_logprobs", "token_ids_logprobs"))
    assert [entry[1] for entry in own] == tokens[start:]
    assert (own[0][0], top[0], chosen[0]) == (None, None, None)
    for position, mine, likeliest, picked in zip(
        range(start + 1, len(tokens)), own[1:], top[1:], chosen[1:], strict=True
    ):
        row = rows[position - 1]
        assert mine[0] == pytest.approx(row[tokens[position]], abs=CLOSE)
        assert [value for value, _, _ in likeliest] == pytest.approx(sorted(row)[::-1][:3], abs=CLOSE)
        assert [value for value, _, _ in picked] == pytest.approx([row[9], row[5], row[9]], abs=CLOSE)


def test_logprobs_are_the_reference_s_cached_cut_and_batched(pair: tuple[Server, Reference]) -> None:
    server, reference = pair
    prompts, starts = [LONG, PROMPT, LONG[:7]], [0, 3, 0]
    body = {
        "input_ids": prompts,
        "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": starts,
        "top_logprobs_num": 3,
        "token_ids_logprob": [9, 5, 9],
    }
    assert server.http.post("flush_cache").status_code == 200
    for item, prompt, start in zip(server.http.post("generate", json=body).json(), prompts, starts, strict=True):
        assert item["meta_info"]["cached_tokens"] <= start
        check_logprobs(item, prompt, start, reference)
    again = {**body, "input_ids": LONG, "logprob_start_len": 100}
    item = server.http.post("generate", json=again).json()
    assert 90 < item["meta_info"]["cached_tokens"] <= 100
    check_logprobs(item, LONG, 100, reference)


def test_output_logprobs_are_those_that_were_drawn_from(pair: tuple[Server, Reference]) -> None:
    server, reference = pair
    params = {"temperature": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.3, "logit_bias": {"9": 3.0}}
    options = {**params, "top_k": 5, "max_new_tokens": 10, "ignore_eos": True, "sampling_seed": 5}
    body = {"input_ids": PROMPT, "sampling_params": options, "return_logprob": True, "token_ids_logprob": [9]}
    item = server.http.post("generate", json=body).json()
    output = tuple(item["output_ids"])
    rows = reference.scores([[*PROMPT, *output]])[0][len(PROMPT) - 1 :]
    for index, token in enumerate(output):
        row = log_softmax(adjusted(rows[index], output[:index], params) / 1.5)
        assert item["meta_info"]["output_token_logprobs"][index][0] == pytest.approx(row[token], abs=CLOSE)
        assert item["meta_info"]["output_token_ids_logprobs"][index][0][0] == pytest.approx(row[9], abs=CLOSE)


def test_scores_are_the_references_chances_of_what_comes_next(pair: tuple[Server, Reference]) -> None:
    server, reference = pair
    items, labels = [LONG[:7], PROMPT[:7]], [9, 5, 9]
    for first, prompts in ((False, [PROMPT + item for item in items]), (True, [item + PROMPT for item in items])):
        chances = numpy.exp(log_softmax(reference.scores(prompts)[:, -1]))[:, labels]
        body = {"query": PROMPT, "items": items, "label_token_ids": labels, "item_first": first}
        answer = server.http.post("v1/score", json=body).json()
        numpy.testing.assert_allclose(answer["scores"], chances, rtol=10 * CLOSE)
        softmax = server.http.post("v1/score", json=body | {"apply_softmax": True}).json()
        numpy.testing.assert_allclose(softmax["scores"], chances / chances.sum(axis=1, keepdims=True), rtol=10 * CLOSE)
        warm = server.http.post("v1/score", json=body | {"apply_softmax": True, "temperature": 2}).json()
        roots = numpy.sqrt(chances)
        numpy.testing.assert_allclose(warm["scores"], roots / roots.sum(axis=1, keepdims=True), rtol=10 * CLOSE)
        assert answer["usage"] == {"prompt_tokens": 54, "completion_tokens": 0, "total_tokens": 54}
        assert (answer["token_logprobs"], answer["pooled_hidden_states"]) == (None, None)
        own = {"label_token_ids": [[9, 5], [7]], "return_token_logprobs": True}
        each = server.http.post("v1/score", json=body | own).json()
        assert each["scores"][0] == answer["scores"][0][:2]
        assert [len(row) for row in each["scores"]] == [2, 1]
        for row, logs in zip(each["scores"], each["token_logprobs"], strict=True):
            numpy.testing.assert_allclose(row, numpy.exp(logs), rtol=CLOSE)


def test_texts_are_scored_as_they_stand_together(pair: tuple[Server, Reference]) -> None:
    server, _ = pair
    body = {"query": "ab", "items": ["c", "d"], "label_token_ids": [9]}
    several = server.http.post("v1/score", json=body).json()["scores"]
    alone = [server.http.post("v1/score", json={**body, "items": item}).json()["scores"][0] for item in "cd"]
    ids = [server.http.post("tokenize", json={"prompt": f"ab{item}"}).json()["tokens"] for item in "cd"]
    assert several == server.http.post("v1/score", json={**body, "query": [], "items": ids}).json()["scores"]
    numpy.testing.assert_allclose(several, alone, rtol=CLOSE)
    assert server.http.post("v1/score", json={**body, "items": []}).json()["scores"] == []
    bare = [{"items": items, "label_token_ids": [9]} for items in (["abc", "abd"], ids)]
    assert [server.http.post("v1/score", json=each).json()["scores"] for each in bare] == [several, several]


@pytest.mark.parametrize(
    ("wrong", "words", "field"),
    [
        ({"items": [[1]]}, "must be texts", "items"),
        ({"query": [1]}, "must be texts", "items"),
        ({"query": [], "items": [[]]}, "items cannot be empty", "items"),
        ({"query": [1], "items": [[-1]]}, "must be texts", "items"),
        ({"items": ["a"] * 1025}, "1025 items; at most 1024", "items"),
        ({"label_token_ids": []}, "0 ids, not 1 to 1024", "label_token_ids"),
        ({"label_token_ids": [10**6]}, "label_token_ids", "label_token_ids"),
        ({"label_token_ids": None}, "label_token_ids", "label_token_ids"),
        ({"query": "a" * 5 * 2**20}, "query is longer", "query"),
        ({"temperature": 2}, "temperature is 2.0, which is of a softmax", "temperature"),
        ({"temperature": 0, "apply_softmax": True}, "above 0, got 0.0", "temperature"),
        ({"label_token_ids": [[1], [2]]}, "2 lists for 1 items", "label_token_ids"),
        ({"label_token_ids": [[]]}, "0 ids, not 1 to 1024", "label_token_ids"),
        ({"label_token_ids": [1, [2]], "items": ["a", "b"]}, "a list of such lists", "label_token_ids"),
        ({"score_extraction_token": "a"}, "`score_extraction_token` is not supported", "score_extraction_token"),
        ({"query": "a" * 2**20, "items": ["b"] * 16}, "16777232 characters", "items"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_its_words(
    pair: tuple[Server, Reference], wrong: dict[str, Any], words: str, field: str
) -> None:
    body = {"query": "a", "items": ["b"], "label_token_ids": [1], **wrong}
    refused = pair[0].http.post("v1/score", json=body)
    assert (refused.status_code, refused.json()["param"]) == (400, field), refused.text
    assert words in refused.json()["message"]


def test_scoring_again_gives_what_generation_gave(pair: tuple[Server, Reference]) -> None:
    server, _ = pair
    body = {"input_ids": PROMPT, "return_logprob": True}
    options = {"max_new_tokens": 12, "ignore_eos": True, "sampling_seed": 3, "temperature": 1.0}
    item = server.http.post("generate", json={**body, "sampling_params": options}).json()
    tokens = PROMPT + item["output_ids"]
    again = {**body, "input_ids": tokens, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}
    scored = server.http.post("generate", json=again).json()
    assert scored["output_ids"] == []
    assert len(scored["meta_info"]["output_token_logprobs"]) == 1
    first = [value for value, _, _ in item["meta_info"]["output_token_logprobs"]]
    second = [value for value, _, _ in scored["meta_info"]["input_token_logprobs"]][len(PROMPT) :]
    assert first == pytest.approx(second, abs=CLOSE)


@pytest.fixture(scope="module")
def defaults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says how it wants to be sampled from."""
    folder = save_model(tmp_path_factory.mktemp("defaults") / "model")
    (folder / "generation_config.json").write_text(json.dumps({**DEFAULTS, "eos_token_id": EOS}))
    return folder


def check_defaults(server: Server, source: str, folder: Path, expected: dict[str, Any]) -> None:
    assert server.http.get("server_info").json()["sampling_defaults"] == source
    for params in ({}, {"top_k": 8}):
        check(drawn(server, 1, params), exact(Reference(folder), 1, expected | params))


def test_defaults_are_the_models(changing: Server, defaults: Path) -> None:
    check_defaults(changing.serving(defaults), "model", defaults, DEFAULTS)


def test_defaults_may_be_the_constants(served: Server, defaults: Path) -> None:
    check_defaults(served.serving(defaults), "openai", defaults, {})
