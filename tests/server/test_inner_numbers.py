"""Embeddings in, hidden states and routed experts out, over HTTP: equal to transformers' float32 forward, however
requests are cached, cut, batched or streamed."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.conftest import save_model
from tests.server.conftest import Server, events
from tests.soak import seldom

GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
SMALL = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**SMALL, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {**SMALL, "num_local_experts": 4, "layer_types": ["sliding_attention", "full_attention"]},
}
PROMPT = [(7 * i) % 250 + 4 for i in range(90)]
OTHER = [(11 * i) % 250 + 4 for i in range(40)]


class Served(NamedTuple):
    """A server, and the same checkpoint in transformers."""

    server: Server
    model: Any

    def generate(self, **body: Any) -> Any:
        answer = self.server.http.post("generate", json={"sampling_params": GREEDY, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def embeds(self, ids: list[int]) -> list[list[float]]:
        return self.model.get_input_embeddings()(torch.tensor(ids)).tolist()

    @torch.inference_mode()
    def states(self, ids: list[int]) -> np.ndarray:
        return self.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0].numpy()

    @torch.inference_mode()
    def routes(self, ids: list[int]) -> dict[int, np.ndarray]:
        """By layer: the sorted experts with the highest router scores `[tokens, 2]`."""
        found, hooks = {}, []
        for number, layer in enumerate(self.model.model.layers):
            router = getattr(layer.mlp, "gate", None) or getattr(layer.mlp, "router", None)
            if router is not None and hasattr(layer.mlp, "experts"):

                def keep(_: Any, inputs: Any, __: Any, number: int = number, router: Any = router) -> None:
                    bias = getattr(router, "bias", None)
                    scores = torch.nn.functional.linear(inputs[0].flatten(0, -2), router.weight, bias)
                    found[number] = scores.topk(2).indices.sort().values.numpy()

                hooks.append(router.register_forward_hook(keep))
        self.model(torch.tensor([ids]))
        for hook in hooks:
            hook.remove()
        return found


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that loads one model after the other."""
    options = ("--NbgenApp.autoload=False", "--NbgenApp.dtype=float32", "--NbgenApp.prefill_chunk=32")
    running = Server(tmp_path_factory.mktemp("home"), *options)
    yield running
    running.stop()


@pytest.fixture(scope="module", params=seldom(FAMILIES, {"mixtral", "gpt_oss"}))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model's folder, and the model in transformers."""
    folder = save_model(tmp_path_factory.mktemp("inner") / request.param, request.param, **FAMILIES[request.param])
    return folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def served(inner: Server, saved: tuple[Path, Any]) -> Served:
    return Served(inner.serving(saved[0]), saved[1])


def check_states(served: Served, prompt: list[int], answer: dict[str, Any]) -> None:
    states, output = answer["meta_info"]["hidden_states"], answer["output_ids"]
    assert len(states) == len(output)
    rows = np.array([*states[0], *states[1:]])
    np.testing.assert_allclose(rows, served.states([*prompt, *output[:-1]]), atol=2e-3)


def check_routes(served: Served, prompt: list[int], answer: dict[str, Any], start: int = 0) -> None:
    output, layers = answer["output_ids"], served.model.config.num_hidden_layers
    found = np.frombuffer(base64.b64decode(answer["meta_info"]["routed_experts"]), "<i4").reshape(-1, layers, 2)
    assert len(found) == len(prompt) + len(output) - 1 - start
    expected = served.routes([*prompt, *output[:-1]])
    for layer in range(layers):
        if layer in expected:
            np.testing.assert_array_equal(np.sort(found[:, layer]), expected[layer][start:])
        else:
            assert not found[:, layer].any()


def test_embeddings_are_the_same_prompt_as_ids(served: Served) -> None:
    expected = served.generate(input_ids=PROMPT)
    for _ in range(2):
        given = served.generate(input_embeds=served.embeds(PROMPT))
        assert given["output_ids"] == expected["output_ids"]
        assert (given["meta_info"]["prompt_tokens"], given["meta_info"]["cached_tokens"]) == (len(PROMPT), 0)
    placeholders = served.generate(input_ids=[1] * len(PROMPT))
    assert placeholders["meta_info"]["cached_tokens"] == 0, "what embeddings computed was taken for ids"
    batch = served.generate(input_embeds=[served.embeds(PROMPT), served.embeds(OTHER), served.embeds([9])])
    alone = [served.generate(input_ids=ids)["output_ids"] for ids in (PROMPT, OTHER, [9])]
    assert [item["output_ids"] for item in batch] == alone


def test_embeddings_have_log_probabilities_and_states(served: Served) -> None:
    wanted = {"return_logprob": True, "logprob_start_len": 0, "return_hidden_states": True}
    given, plain = served.generate(input_embeds=served.embeds(OTHER), **wanted), served.generate(input_ids=OTHER)
    assert given["output_ids"] == plain["output_ids"]
    check_states(served, OTHER, given)
    assert [token for _, token, _ in given["meta_info"]["input_token_logprobs"]] == [1] * len(OTHER)


def test_hidden_states_and_routes_whatever_is_cached(served: Served) -> None:
    served.generate(input_ids=PROMPT)
    for _ in range(2):
        answer = served.generate(input_ids=PROMPT, return_hidden_states=True, return_routed_experts=True)
        check_states(served, PROMPT, answer)
        check_routes(served, PROMPT, answer)
    later = served.generate(input_ids=PROMPT, return_routed_experts=True, routed_experts_start_len=70)
    assert later["meta_info"]["cached_tokens"] == 70
    check_routes(served, PROMPT, later, start=70)
    last = served.generate(input_ids=PROMPT, return_routed_experts=True, routed_experts_start_len=len(PROMPT))
    check_routes(served, PROMPT, last, start=len(PROMPT))
    assert not {"hidden_states", "routed_experts"} & served.generate(input_ids=PROMPT)["meta_info"].keys()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_states_are_pooled_here_whatever_is_cached(served: Served, pooling: str) -> None:
    prompts = [PROMPT, OTHER, [9], PROMPT]
    for _ in range(2):
        answer = served.server.http.post("v1/embeddings", json={"input": prompts, "pooling": pooling})
        assert answer.status_code == 200, answer.text
        for item, ids in zip(answer.json()["data"], prompts, strict=True):
            states = served.states(ids)
            expected = states.mean(axis=0) if pooling == "mean" else states[-1]
            np.testing.assert_allclose(item["embedding"], expected, atol=2e-3)
        assert answer.json()["usage"]["prompt_tokens"] == sum(map(len, prompts))


def test_beside_others_and_with_log_probabilities(served: Served) -> None:
    batch = served.generate(
        input_ids=[PROMPT, OTHER, PROMPT[:50]],
        return_hidden_states=[True, False, True],
        return_routed_experts=True,
        return_logprob=True,
        logprob_start_len=20,
    )
    assert "hidden_states" not in batch[1]["meta_info"]
    for prompt, answer in zip([PROMPT, OTHER, PROMPT[:50]], batch, strict=True):
        check_routes(served, prompt, answer)
        assert len(answer["meta_info"]["input_token_logprobs"]) == len(prompt) - 20
    check_states(served, PROMPT, batch[0])
    check_states(served, PROMPT[:50], batch[2])
    plain = served.generate(input_ids=PROMPT, return_logprob=True, logprob_start_len=20)["meta_info"]
    both = [entry[0] for entry in batch[0]["meta_info"]["input_token_logprobs"][1:]]
    np.testing.assert_allclose(both, [entry[0] for entry in plain["input_token_logprobs"][1:]], atol=2e-3)


def test_samples_of_a_batch_have_the_states_of_their_prompt(served: Served) -> None:
    params = {**GREEDY, "n": 2}
    wanted = {"sampling_params": params, "return_hidden_states": [True, False]}
    first, second, *others = served.generate(input_ids=[PROMPT, OTHER], **wanted)
    check_states(served, PROMPT, first)
    check_states(served, PROMPT, second)
    assert not any("hidden_states" in other["meta_info"] for other in others)


def test_streams_grow_by_a_state_a_token(served: Served) -> None:
    body = {"input_ids": PROMPT, "sampling_params": GREEDY, "stream": True}
    body |= {"return_hidden_states": True, "return_routed_experts": True}
    found = [json.loads(event.data) for event in events(served.server.http, "POST", "generate", json=body)[:-1]]
    for chunk in found:
        assert len(chunk["meta_info"]["hidden_states"]) == len(chunk["output_ids"])
    assert [chunk for chunk in found if "routed_experts" in chunk["meta_info"]] == found[-1:]
    check_states(served, PROMPT, found[-1])
    check_routes(served, PROMPT, found[-1])


def last(states: list[float], served: Served, prompt: list[int], output: list[int]) -> None:
    np.testing.assert_allclose(states, served.states([*prompt, *output[:-1]])[-1], atol=2e-3)


def test_completions_have_the_last_state_and_the_first_choices_experts(served: Served) -> None:
    prompts = [PROMPT, OTHER]
    outputs = [served.generate(input_ids=prompt)["output_ids"] for prompt in prompts]
    body = {"prompt": prompts, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "n": 2}
    asked = {"return_hidden_states": True, "return_routed_experts": True}
    whole = served.server.http.post("v1/completions", json=body | asked).json()
    for choice, place in zip(whole["choices"], (0, 0, 1, 1), strict=True):
        last(choice["hidden_states"], served, prompts[place], outputs[place])
    check_routes(served, PROMPT, {"output_ids": outputs[0], "meta_info": whole["sglext"]})
    stream = asked | {"stream": True, "stream_options": {"include_usage": True}}
    *_, first, second, third, fourth, experts, usage, done = [
        event.data for event in events(served.server.http, "POST", "v1/completions", json=body | stream)
    ]
    for chunk, (index, place) in zip((first, second, third, fourth), enumerate((0, 0, 1, 1)), strict=True):
        (choice,) = json.loads(chunk)["choices"]
        assert (choice["index"], choice["text"], choice["finish_reason"]) == (index, "", None)
        last(choice["hidden_states"], served, prompts[place], outputs[place])
    check_routes(served, PROMPT, {"output_ids": outputs[0], "meta_info": json.loads(experts)["sglext"]})
    assert (json.loads(experts)["choices"], json.loads(usage)["choices"], done) == ([], [], "[DONE]")
    plain = served.server.http.post("v1/completions", json=body).json()
    assert "sglext" not in plain
    assert "hidden_states" not in plain["choices"][0]


def test_chats_have_the_last_state(served: Served) -> None:
    messages = [{"role": "user", "content": "hello"}]
    prompt = served.server.http.post("tokenize", json={"messages": messages}).json()["tokens"]
    output = served.generate(input_ids=prompt)["output_ids"]
    body = {"messages": messages, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_hidden_states": True}
    answer = served.server.http.post("v1/chat/completions", json=body | {"return_routed_experts": True}).json()
    last(answer["choices"][0]["hidden_states"], served, prompt, output)
    check_routes(served, prompt, {"output_ids": output, "meta_info": answer["sglext"]})
    *_, chunk, done = events(served.server.http, "POST", "v1/chat/completions", json=body | {"stream": True})
    last(json.loads(chunk.data)["choices"][0]["delta"]["hidden_states"], served, prompt, output)
    assert done.data == "[DONE]"
    one = served.server.http.post("v1/chat/completions", json=body | {"max_tokens": 1}).json()
    assert one["choices"][0]["hidden_states"] == [], "of a single token there is none after the first"
    endless = served.server.http.post("v1/chat/completions", json={k: body[k] for k in body if k != "max_tokens"})
    assert len(endless.json()["choices"][0]["hidden_states"]) == served.model.config.hidden_size


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"return_hidden_states": "all"}, "return_hidden_states"),
        ({"return_routed_experts": 1}, "return_routed_experts"),
        ({"return_routed_experts": True, "routed_experts_start_len": -1}, "at least 0"),
        ({"return_routed_experts": True, "routed_experts_start_len": 91}, "the prompt has 90 tokens"),
    ],
)
def test_what_completions_cannot_give_is_refused(served: Served, fields: Any, words: str) -> None:
    answer = served.server.http.post("v1/completions", json={"prompt": PROMPT, **fields})
    assert answer.status_code == 400
    assert words in answer.json()["message"]


def test_the_server_says_what_it_can(served: Served) -> None:
    info = served.server.http.get("server_info").json()
    assert info["enable_return_hidden_states"] is True
    assert info["enable_return_routed_experts"] is True
    assert info["return_hidden_states_mode"] == "full"
