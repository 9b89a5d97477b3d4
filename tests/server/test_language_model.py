"""The language model as tensors through Triton's HTTP clients: numbers of torch's, counts, callers who leave."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from transformers import AutoModelForCausalLM

from nbgen.server.engine_life import State
from nbgen.server.language_model import STATES
from tests.server.conftest import BUSY, Server, events, wait_for
from tests.server.triton import WithToken, client, counts, flag, pending, tensor, text

PROMPT = list(b"Once upon a time there was a fox")
MODEL = "long-llama"


@pytest.fixture(scope="module")
def reference(long_model: Path) -> torch.nn.Module:
    """The same checkpoint, run by transformers in float32."""
    return AutoModelForCausalLM.from_pretrained(long_model, dtype=torch.float32).eval()


def scores(reference: torch.nn.Module, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    with torch.inference_mode():
        output = reference(torch.tensor([tokens]), output_hidden_states=True)
    return output.logits[0].numpy(), output.hidden_states[-1][0].numpy()


def wanted(*names: str, **options: Any) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name, **options) for name in names]


@pytest.mark.parametrize("binary", [True, False])
def test_logits_and_hidden_states_are_torchs(server: Server, reference: torch.nn.Module, binary: bool) -> None:
    logits, hidden = scores(reference, PROMPT)
    with client(server) as found:
        outputs = wanted("logits", "context_logits", "hidden_states", "num_input_tokens", binary_data=binary)
        result = found.infer(MODEL, [tensor("input_ids", np.array(PROMPT), binary=binary)], outputs=outputs)
    np.testing.assert_allclose(result.as_numpy("logits"), logits, atol=2e-3)
    np.testing.assert_allclose(result.as_numpy("context_logits"), logits, atol=2e-3)
    np.testing.assert_allclose(result.as_numpy("hidden_states"), hidden, atol=2e-3)
    assert result.as_numpy("num_input_tokens") == [len(PROMPT)]


def test_generated_tokens_come_with_what_chose_them(server: Server, reference: torch.nn.Module) -> None:
    names = ("output_ids", "generation_logits", "output_log_probs", "cum_log_probs", "finish_reason", "text_output")
    inputs = [
        tensor("input_ids", np.array(PROMPT, np.int32)),
        tensor("temperature", np.array([0.0], np.float32)),
        tensor("max_tokens", np.array([6], np.int32)),
    ]
    with client(server) as found:
        result = found.infer(MODEL, inputs, outputs=wanted(*names), request_id="seven")
    tokens = result.as_numpy("output_ids")[0].tolist()
    logits, _ = scores(reference, PROMPT + tokens)
    rows = logits[len(PROMPT) - 1 : -1]
    assert result.get_response()["id"] == "seven"
    assert tokens == rows.argmax(-1).tolist()
    np.testing.assert_allclose(result.as_numpy("generation_logits")[0], rows, atol=2e-3)
    expected = torch.log_softmax(torch.tensor(rows), -1).numpy()[range(len(tokens)), tokens]
    np.testing.assert_allclose(result.as_numpy("output_log_probs")[0], expected, atol=2e-3)
    assert result.as_numpy("cum_log_probs")[0] == pytest.approx(expected.sum(), abs=1e-2)
    assert result.as_numpy("finish_reason").tolist() in ([b"length"], [b"stop"])


def test_every_state_of_the_engine_is_one_of_the_index() -> None:
    assert set(STATES) == set(get_args(State))


def test_default_outputs_and_the_echo(server: Server) -> None:
    with client(server) as found:
        greedy = tensor("temperature", np.array([0.0], np.float32))
        whole = found.infer(MODEL, [text("abc"), greedy])
        assert [output["name"] for output in whole.get_response()["outputs"]] == ["text_output"]
        assert whole.as_numpy("text_output")[0].startswith(b"abc")
        bare = found.infer(MODEL, [text("abc"), greedy, flag("exclude_input_in_output")])
        assert b"abc" + bare.as_numpy("text_output")[0] == whole.as_numpy("text_output")[0]
        of_ids = found.infer(MODEL, [tensor("input_ids", np.array(list(b"abc"))), greedy, flag("return_log_probs")])
        assert {output["name"] for output in of_ids.get_response()["outputs"]} == {
            "text_output",
            "output_ids",
            "output_log_probs",
            "cum_log_probs",
        }


def test_classification_shows_the_likeliest_tokens(server: Server, reference: torch.nn.Module) -> None:
    logits, _ = scores(reference, PROMPT[:1])
    with client(server) as found:
        result = found.infer(
            MODEL, [tensor("input_ids", np.array(PROMPT[:1]))], outputs=wanted("logits", class_count=5)
        )
    rows = [word.decode().split(":") for word in result.as_numpy("logits")]
    assert [int(index) for _, index in rows] == torch.tensor(logits[0]).topk(5).indices.tolist()
    assert [float(value) for value, _ in rows] == pytest.approx(sorted(logits[0])[:-6:-1], abs=2e-3)


def test_several_samples_are_several_elements(server: Server) -> None:
    with client(server) as found:
        result = found.infer(MODEL, [text("abc")], parameters={"n": 3, "max_tokens": 2, "seed": 1})
    assert result.as_numpy("text_output").shape == (3,)


def test_async_infer_and_the_asyncio_client_give_the_same(server: Server) -> None:
    inputs = [tensor("input_ids", np.array(PROMPT))]
    with client(server, concurrency=4) as found:
        waiting = [found.async_infer(MODEL, inputs, outputs=wanted("logits")) for _ in range(8)]
        arrays = [request.get_result().as_numpy("logits") for request in waiting]

    async def ask() -> np.ndarray:
        url = server.root.removeprefix("http://") + "nbgen"
        async with triton_aio.InferenceServerClient(url) as found:
            found.register_plugin(WithToken())
            assert await found.is_server_ready()
            assert (await found.get_model_metadata(MODEL))["name"] == MODEL
            result = await found.infer(MODEL, inputs, outputs=wanted("logits"), response_compression_algorithm="gzip")
            return result.as_numpy("logits")

    arrays.append(asyncio.run(ask()))
    for array in arrays[1:]:
        np.testing.assert_allclose(array, arrays[0], atol=1e-3)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_bodies_may_be_compressed_both_ways(server: Server, algorithm: str) -> None:
    with client(server) as found:
        for binary in (True, False):
            result = found.infer(
                MODEL,
                [tensor("input_ids", np.array(PROMPT), binary=binary)],
                outputs=wanted("logits", binary_data=binary),
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            assert result.as_numpy("logits").shape == (len(PROMPT), 260)


def test_thirty_two_clients_at_once_are_counted_exactly(server: Server, reference: torch.nn.Module) -> None:
    before = counts(server, MODEL)

    def ask(seed: int) -> None:
        tokens = np.random.default_rng(seed).integers(4, 260, 8 + seed)
        with client(server, network_timeout=120) as found:
            for _ in range(2):
                result = found.infer(MODEL, [tensor("input_ids", tokens)], outputs=wanted("logits"))
                np.testing.assert_allclose(result.as_numpy("logits"), expected[seed], atol=2e-3)

    rows = {seed: np.random.default_rng(seed).integers(4, 260, 8 + seed) for seed in range(32)}
    expected = {seed: scores(reference, tokens.tolist())[0] for seed, tokens in rows.items()}
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, range(32)))
    after = counts(server, MODEL)
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"] == 64, name
    assert after["inference_count"] - before["inference_count"] == 64
    assert after["inference_stats"]["fail"] == before["inference_stats"]["fail"]


def test_each_piece_of_a_stream_has_the_rows_of_its_tokens(server: Server) -> None:
    """A row of scores comes as a message of its own, before its token."""
    flags = ("return_generation_logits", "return_log_probs", "return_num_output_tokens")
    options = {"stream": True, "max_tokens": 200, "ignore_eos": True, **dict.fromkeys(flags, True)}

    def ask(prompt: str) -> list[tuple[int, ...]]:
        body = {"text_input": prompt, **options}
        found = [
            json.loads(each.data)
            for each in events(server.http, "POST", f"v2/models/{MODEL}/generate_stream", json=body)
        ]
        names = ("generation_logits", "output_log_probs")
        return [(each["num_output_tokens"], *(np.size(each[name]) for name in names)) for each in found]

    with ThreadPoolExecutor(16) as pool:
        pieces = [piece for found in pool.map(ask, map(chr, range(97, 113))) for piece in found]
    assert [(tokens * 260, tokens) for tokens, *_ in pieces] == [tuple(sizes) for _, *sizes in pieces]
    assert sum(tokens for tokens, *_ in pieces) == 16 * 200


def test_computing_the_prompt_is_no_waiting(server: Server) -> None:
    before, tokens = counts(server, MODEL)["inference_stats"], np.random.default_rng(99).integers(4, 260, 6000)
    with client(server) as found:
        found.infer(MODEL, [tensor("input_ids", tokens), tensor("max_tokens", np.array([1], np.int32))])
    after = counts(server, MODEL)["inference_stats"]
    waited, computed = (after[name]["ns"] - before[name]["ns"] for name in ("queue", "compute_infer"))
    assert waited < computed


def test_whoever_leaves_is_counted_as_a_failure_and_ends_their_request(server: Server) -> None:
    before = counts(server, MODEL)["inference_stats"]
    body = {"text_input": "a", "max_tokens": 15_000, "parameters": {"ignore_eos": True, "temperature": 0}}
    assert BUSY["max_new_tokens"] == body["max_tokens"]
    for path in ("generate", "generate_stream"):
        server.left(f"v2/models/{MODEL}/{path}", body)
    server.idle()
    wait_for(
        lambda: counts(server, MODEL)["inference_stats"]["fail"]["count"] == before["fail"]["count"] + 2, "two fails"
    )
    assert counts(server, MODEL)["inference_stats"]["success"] == before["success"]


def test_who_is_cancelled_by_others_is_counted_as_well(server: Server) -> None:
    before, lost = counts(server, MODEL)["inference_stats"], cancelled(server)
    body = {"text_input": "a", "max_tokens": 15_000, "parameters": {"ignore_eos": True}}
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.http.post, f"v2/models/{MODEL}/generate", json=body)
        wait_for(lambda: pending(server, MODEL) == 1, "it runs")
        server.http.post("abort_request", json={"abort_all": True})
    assert (answer.result().status_code, answer.result().json()) == (400, {"error": "the request was cancelled"})
    after = counts(server, MODEL)["inference_stats"]
    assert (after["fail"]["count"], after["success"]) == (before["fail"]["count"] + 1, before["success"])
    assert cancelled(server) == lost + 1


def cancelled(server: Server) -> int:
    """How many of the model's requests were cancelled, as its metrics say."""
    name = f'nv_inference_request_failure{{model="{MODEL}",reason="CANCELED",version="1"}} '
    return int(server.http.get("metrics").text.partition(name)[2].partition("\n")[0])


def test_who_leaves_while_a_large_body_is_read_is_not_answered(server: Server) -> None:
    path, body = f"v2/models/{MODEL}/generate", {"text_input": "a", "ignore_eos": True, "pad": "x" * 2**24}
    before = counts(server, MODEL)["inference_stats"]
    with server.asking(path, body | {"max_tokens": 15_000}):
        pass
    assert server.http.post(path, json=body | {"max_tokens": 1}).status_code == 200, "which is read after that"
    assert pending(server, MODEL) == 0
    after = counts(server, MODEL)["inference_stats"]
    assert after["success"]["count"] == before["success"]["count"] + 1
