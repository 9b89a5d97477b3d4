"""Documents ranked over HTTP: scores are those of transformers' float32 forward, of models that classify and of such
that write their verdict.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from nbgen.engine.embedding_model import EmbeddingModel, is_embedding
from nbgen.engine_config import EngineConfig
from nbgen.messages import ChatMessage
from tests.conftest import SPECIAL_TOKENS, edit, save_model, save_tokenizer
from tests.server.conftest import Server
from tests.soak import soaking

QUERY = "what is a kernel?"
DOCUMENTS = ["a process that runs code", "x", "the kernel runs what a cell says, and keeps its variables", "a panda"]
WISH = "be strict"
#: As those of Qwen's rerankers: turns by their roles; and as SGLang's example, by their places.
BY_ROLE = (
    '{% set wish = messages | selectattr("role", "eq", "system") | map(attribute="content") | first %}'
    'Say "yes" or "no". {{ wish | default("find") }} '
    'Q: {{ (messages | selectattr("role", "eq", "query") | first).content }} '
    'D: {{ (messages | selectattr("role", "eq", "document") | first).content }}<|assistant|>'
)
BY_PLACE = (
    'Say "yes" or "no". {{ instruct | default("find") }} Q: {{ messages[0]["content"] }} '
    'D: {{ messages[1]["content"] }}<|assistant|>'
)
CLASSIFIER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}


class Reranker(NamedTuple):
    """A model's folder, and the scores that are right, by what is to be looked for."""

    folder: Path
    scores: Callable[[str], np.ndarray]


def prompts(wish: str, yes: str = "yes", no: str = "no") -> list[str]:
    """What either template makes."""
    return [f'Say "{yes}" or "{no}". {wish} Q: {QUERY} D: {document}<|assistant|>' for document in DOCUMENTS]


def retold(folder: Path, template: str | None, *words: str) -> PreTrainedTokenizerFast:
    """The folder's tokenizer, with this template, and yes and no, or what is said instead, as tokens of their own."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(words or ("yes", "no")))
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return tokenizer


def writer(folder: Path, template: str, *words: str) -> Reranker:
    """One that writes yes or no, with what sentence-transformers says of it: also what else it writes."""
    size = len(SPECIAL_TOKENS) + 256
    save_model(folder, "qwen3", vocab_size=size + 2, head_dim=16)
    tokenizer = retold(folder, template, *words)
    modules = [{"type": f"sentence_transformers.base.modules.{kind}"} for kind in ("Transformer", "LogitScore")]
    (folder / "modules.json").write_text(json.dumps(modules))
    if words:
        (folder / "1_LogitScore").mkdir()
        told = {"true_token_id": size, "false_token_id": size + 1, "module_input_name": "causal_logits"}
        (folder / "1_LogitScore" / "config.json").write_text(json.dumps(told))

    @torch.inference_mode()
    def scores(wish: str) -> np.ndarray:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in prompts(wish, *words)]
        return torch.stack([model(torch.tensor([each])).logits[0, -1, size:].softmax(0)[0] for each in ids]).numpy()

    return Reranker(folder, scores)


def classifier(folder: Path, model_type: str, template: str | None, labels: int = 1, **more: Any) -> Reranker:
    """One that classifies, which pads with what its configuration does not name."""
    folder.mkdir()
    torch.manual_seed(0)
    sizes = {**CLASSIFIER, "vocab_size": save_tokenizer(folder) + 2, "num_labels": labels, "pad_token_id": None, **more}
    config = AutoConfig.for_model(model_type, **sizes)
    model = AutoModelForSequenceClassification.from_config(config).float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tokenizer = retold(folder, template)

    @torch.inference_mode()
    def scores(wish: str) -> np.ndarray:
        pairs = [(text,) for text in prompts(wish)] if template else [(QUERY, document) for document in DOCUMENTS]
        inputs = [tokenizer(*pair, return_tensors="pt") for pair in pairs]
        taken = [{k: v for k, v in each.items() if k != "token_type_ids" or model_type == "bert"} for each in inputs]
        logits = torch.cat([model(**each).logits for each in taken])
        return (logits.sigmoid() if more else logits).numpy()[:, 0]

    return Reranker(folder, scores)


def refused(answer: httpx.Response, *words: str) -> None:
    assert answer.status_code == 400, answer.text
    assert all(word in answer.text for word in words), answer.text


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    folder = tmp_path_factory.mktemp("bert") / "model"
    return classifier(folder, "bert", None, max_position_embeddings=128, sentence_transformers=SIGMOID)


@pytest.mark.parametrize(
    ("template", "words"),
    [(BY_ROLE, ()), soaking(BY_PLACE.replace("yes", "fit").replace("no", "unfit"), ("fit", "unfit"))],
    ids=["roles", "places, in words of its own"],
)
def test_a_model_that_writes_its_verdict(
    changing: Server, tmp_path: Path, template: str, words: tuple[str, ...]
) -> None:
    reranker = writer(tmp_path / "model", template, *words)
    http = changing.serving(reranker.folder).http
    for body, wish in (({}, "find"), ({"instruct": WISH}, WISH), ({"instruction": WISH}, WISH)):
        answer = http.post("v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, **body})
        assert answer.status_code == 200, answer.text
        expected = reranker.scores(wish)
        assert [item["index"] for item in answer.json()] == np.argsort(-expected).tolist()
        assert [item["document"] for item in answer.json()] == [DOCUMENTS[i] for i in np.argsort(-expected)]
        np.testing.assert_allclose([item["score"] for item in answer.json()], sorted(expected)[::-1], rtol=1e-3)
    refused(http.post("v1/rerank", json={"query": QUERY, "documents": ["x" * 600]}), "maximum context length")


def test_a_model_that_classifies(changing: Server, bert: Reranker) -> None:
    http, expected = changing.serving(bert.folder).http, bert.scores("")
    best = np.argsort(-expected).tolist()
    body = {"query": QUERY, "documents": DOCUMENTS, "return_documents": False, "top_n": 3}
    answer = http.post("v1/rerank", json=body).json()
    assert [item["index"] for item in answer] == best[:3]
    assert not any("document" in item for item in answer)
    np.testing.assert_allclose([item["score"] for item in answer], expected[best[:3]], rtol=1e-4)
    assert answer[0]["meta_info"]["prompt_tokens"] == len(QUERY) + len(DOCUMENTS[best[0]])
    refused(http.post("v1/rerank", json={"query": QUERY, "documents": ["x" * 128]}), "maximum context length", "145")
    refused(
        http.post("v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, "instruct": WISH}), "reads no instruct"
    )
    too_long = http.post("v1/classify", json={"input": "x" * 200})  # asked first, the engine would say that
    refused(too_long, "tells no classes apart", "/v1/rerank")
    alone = http.post("classify", json={"text": QUERY}).json()["embedding"]
    assert http.post("encode", json={"text": QUERY}).json()["embedding"] == alone
    assert len(alone) == 1


def test_texts_are_aborted_by_the_id_of_their_caller(changing: Server, bert: Reranker) -> None:
    http = changing.serving(bert.folder).http

    def aborted(abort: dict[str, Any]) -> httpx.Response:
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(http.post, "classify", json={"text": "a", "rid": "mine"})
            while not asked.done():
                http.post("abort_request", json=abort)
            return asked.result()

    http.post("pause_generation", json={"mode": "retract"})
    for answer in (aborted({"rid": "mine"}), aborted({"abort_all": True})):
        assert (answer.status_code, "the request was aborted" in answer.text) == (503, True), answer.text
    http.post("continue_generation", json={})
    assert http.post("classify", json={"text": "a", "rid": "mine"}).status_code == 200


@pytest.mark.parametrize("route", ["rerank", "v2/rerank"])
def test_the_shape_that_clients_of_jina_and_cohere_read(changing: Server, bert: Reranker, route: str) -> None:
    http, expected = changing.serving(bert.folder).http, bert.scores("")
    parts = [{"text": DOCUMENTS[0]}, [{"type": "text", "text": DOCUMENTS[1]}], *DOCUMENTS[2:]]
    answer = http.post(route, json={"model": "m", "query": QUERY, "documents": parts}).json()
    best = np.argsort(-expected).tolist()
    assert [item["index"] for item in answer["results"]] == best
    assert [item["document"]["text"] for item in answer["results"]] == [DOCUMENTS[index] for index in best]
    np.testing.assert_allclose([item["relevance_score"] for item in answer["results"]], expected[best], rtol=1e-4)
    assert answer["usage"]["total_tokens"] == len(DOCUMENTS) * len(QUERY) + sum(map(len, DOCUMENTS))
    assert "document" not in http.post(route, json={"query": "a", "documents": ["b"], "return_documents": False}).text


@pytest.mark.parametrize("template", [None, BY_ROLE], ids=["bare", "templated"])
def test_one_that_looks_back_finds_the_end_of_each_document(tmp_path: Path, template: str | None) -> None:
    sizes: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16}
    reranker = classifier(
        tmp_path / "model", "qwen3", template, **sizes, sbert_ce_default_activation_function="m.Sigmoid"
    )
    config = EngineConfig(model=str(reranker.folder), dtype="float32")
    assert is_embedding(config, lambda *_: None)
    model = EmbeddingModel(config, lambda *_: None)
    query = ChatMessage(role="query", content=QUERY)
    pairs = [model.tokenizer.encode_pair([query, ChatMessage(role="document", content=each)]) for each in DOCUMENTS]
    found = model.encode([ids for ids, _ in pairs], [types for _, types in pairs])[:, 0]
    np.testing.assert_allclose(found, reranker.scores("find"), atol=1e-4)
    model.close()


def test_a_text_may_end_with_any_token_where_the_model_knows_none_of_padding(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "model", "qwen3", None, num_key_value_heads=2, head_dim=16).folder
    reference = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    model = EmbeddingModel(EngineConfig(model=str(folder), dtype="float32"), lambda *_: None)
    texts = [[9, 8, 7, last] for last in range(6)]
    with torch.inference_mode():
        expected = torch.cat([reference(torch.tensor([ids])).logits for ids in texts])
    np.testing.assert_allclose(torch.cat([model.encode([ids]) for ids in texts]), expected, atol=1e-4)
    np.testing.assert_allclose(model.encode([*texts, [5] * 9])[:-1], expected, atol=1e-4)
    model.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"query": " "}, "query must not be empty"),
        ({"documents": []}, "0 documents, not 1 to 2048"),
        ({"documents": ["a", ""]}, "documents must not be empty"),
        ({"documents": [[{"type": "image_url", "image_url": {"url": "x"}}]]}, "documents must be text"),
        ({"query": "a" * 2**14, "documents": ["b"] * 1024}, "at most 16777216"),
        ({"documents": 3}, "documents"),
        ({"top_n": -1}, "top_n must be at least 1, got -1"),
        ({}, "does not appear to be a reranker"),
    ],
)
def test_what_is_not_ranked(server: Server, wrong: dict[str, Any], words: str) -> None:
    refused(server.http.post("v1/rerank", json={"query": "a", "documents": ["b"], **wrong}), words)


def test_a_model_that_tells_several_classes_apart_ranks_nothing(changing: Server, tmp_path: Path) -> None:
    several = classifier(tmp_path / "model", "bert", None, labels=3, max_position_embeddings=128)
    edit(several.folder / "config.json", id2label={"0": "bad", "1": "so so", "2": "good"})
    http = changing.serving(several.folder).http
    refused(http.post("v1/rerank", json={"query": "a", "documents": ["b"]}), "3 classes apart")
    scores = [item["embedding"] for item in http.post("classify", json={"text": DOCUMENTS}).json()]
    told = http.post("v1/classify", json={"input": DOCUMENTS, "model": "m"}).json()
    names = ["bad", "so so", "good"]
    for index, (item, row) in enumerate(zip(told["data"], scores, strict=True)):
        chances = torch.tensor(row).softmax(0)
        assert (item["index"], item["label"], item["num_classes"]) == (index, names[int(chances.argmax())], 3)
        np.testing.assert_allclose(item["probs"], chances.numpy(), rtol=1e-5)
    assert told["usage"]["prompt_tokens"] == sum(map(len, DOCUMENTS))


@pytest.mark.parametrize(
    "said",
    [
        {"problem_type": "multi_label_classification"},
        {"problem_type": "regression"},
        soaking({"sentence_transformers": SIGMOID}),
    ],
    ids=["own", "measures", "bent"],
)
def test_scores_may_be_of_several_classes_or_measures(changing: Server, tmp_path: Path, said: dict[str, Any]) -> None:
    several = classifier(tmp_path / "model", "bert", None, labels=3, max_position_embeddings=128)
    edit(several.folder / "config.json", **said)
    http = changing.serving(several.folder).http
    scores = [item["embedding"] for item in http.post("classify", json={"text": DOCUMENTS}).json()]
    reference = AutoModelForSequenceClassification.from_pretrained(several.folder, dtype=torch.float32).eval()
    inputs = [AutoTokenizer.from_pretrained(several.folder)(each, return_tensors="pt") for each in DOCUMENTS]
    with torch.inference_mode():
        expected = torch.cat([reference(**each).logits for each in inputs])
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    told = http.post("v1/classify", json={"input": DOCUMENTS, "model": "m"}).json()
    meant = expected if "regression" in said.values() else expected.sigmoid()
    np.testing.assert_allclose([each["probs"] for each in told["data"]], meant, atol=1e-4)
