"""Embedding models over HTTP: equal to transformers' float32 forward, pooled here by hand, alone and in batches."""

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

import nbgen
from nbgen.engine.embedding_model import EmbeddingModel, is_embedding
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError
from nbgen.notebook import session
from tests.conftest import edit, save_tokenizer
from tests.server.conftest import Server

TEXTS = ["a text", "another text, which is longer than the first", "x"]
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}


class Case(NamedTuple):
    """An architecture, how sentence-transformers' files beside it pool, and whether they normalize.

    `dense` has the activation and the width of each layer between.
    """

    model_type: str
    pooling: str | None
    normalizes: bool = True
    dense: tuple[tuple[torch.nn.Module, int], ...] = ()


CASES = {
    "bert-mean": Case("bert", "mean_tokens"),
    "bert-cls-raw": Case("bert", "cls_token", normalizes=False),
    "qwen3-last": Case("qwen3", "lasttoken"),
    "qwen3-bare": Case("qwen3", None),
    "roberta-bare": Case("roberta", None),
    # As EmbeddingGemma, whose tokens see those behind them, and as LaBSE.
    "gemma3-dense": Case("gemma3_text", "mean_tokens", dense=((torch.nn.Identity(), 256), (torch.nn.Identity(), 48))),
    # Which has no mask: a text's places and those of its padding are mixed alike.
    "fnet-mean": Case("fnet", "mean_tokens"),
    "bert-dense": Case("bert", "cls_token", dense=((torch.nn.Tanh(), 64),)),
}
#: What an architecture has besides.
MORE: dict[str, dict[str, Any]] = {
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 16, "use_bidirectional_attention": True},
}
#: Those that are asked over HTTP.
SERVED = ("bert-dense", "qwen3-bare")


def save(folder: Path, case: Case) -> Path:
    folder.mkdir()
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": save_tokenizer(folder), **MORE.get(case.model_type, {})}
    model = AutoModel.from_config(AutoConfig.for_model(case.model_type, **sizes)).float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    if case.pooling:
        (folder / "1_Pooling").mkdir()
        modes = {f"pooling_mode_{name}": name == case.pooling for name in ("cls_token", "mean_tokens", "lasttoken")}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
        save_modules(
            folder, "Transformer", "Pooling", *["Dense" for _ in case.dense], *["Normalize"][: case.normalizes]
        )
        for place, layer in enumerate(layers(case), 2):
            save_dense(folder / f"{place}_Dense", *layer)
    return folder


def save_modules(folder: Path, *kinds: str) -> None:
    modules = [
        {"idx": i, "name": f"{i}", "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def layers(case: Case) -> list[tuple[torch.nn.Module, dict[str, torch.Tensor]]]:
    """Activations and weights of those behind the pooling; only one that bends has a bias."""
    made, width, numbers = [], SIZES["hidden_size"], torch.Generator().manual_seed(1)
    for activation, wide in case.dense:
        weights = {"linear.weight": torch.randn(wide, width, generator=numbers) / width**0.5}
        if not isinstance(activation, torch.nn.Identity):
            weights["linear.bias"] = torch.randn(wide, generator=numbers)
        made.append((activation, weights))
        width = wide
    return made


def save_dense(folder: Path, activation: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    outputs, inputs = weights["linear.weight"].shape
    kind, bias = type(activation), "linear.bias" in weights
    config = {"in_features": inputs, "out_features": outputs, "bias": bias}
    config["activation_function"] = f"{kind.__module__}.{kind.__name__}"
    (folder / "config.json").write_text(json.dumps(config))


def vectors(folder: Path, case: Case) -> np.ndarray:
    """Those of the texts that are right."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = []
    for text in TEXTS:
        with torch.inference_mode():
            states = model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0]
        pooling = case.pooling or ("mean_tokens" if case.model_type == "roberta" else "")
        pooled = {"mean_tokens": states.mean(0), "cls_token": states[0]}.get(pooling, states[-1])
        for activation, weights in layers(case):
            pooled = activation(
                torch.nn.functional.linear(pooled, weights["linear.weight"], weights.get("linear.bias"))
            )
        found.append(pooled / pooled.norm() if case.normalizes else pooled)
    return torch.stack(found).numpy()


class Served(NamedTuple):
    """A server of an embedding model, and the vectors that are right."""

    server: Server
    folder: Path
    case: Case

    def expected(self) -> np.ndarray:
        return vectors(self.folder, self.case)


@pytest.fixture(scope="module", params=SERVED)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Case]:
    """A model's folder, and what is in it."""
    case = CASES[request.param]
    return save(tmp_path_factory.mktemp("embedding") / "model", case), case


@pytest.fixture
def served(changing: Server, saved: tuple[Path, Case]) -> Served:
    return Served(changing.serving(saved[0]), *saved)


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_transformers_own_pooled_as_the_files_say(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    folder = save(tmp_path / "model", case)
    config = EngineConfig(model=str(folder), dtype="float32")
    assert is_embedding(config, lambda *_: None)
    model = EmbeddingModel(config, lambda *_: None)
    ids = [model.tokenizer.encode(text) for text in TEXTS]
    np.testing.assert_allclose(model.encode(ids), expected := vectors(folder, case), atol=1e-4)
    assert model.model.hidden_size == expected.shape[1]
    longest = 127 if case.model_type == "roberta" else 128  # whose positions begin behind that of its padding
    assert model.model.context_length == longest
    assert model.encode([[5] * longest, [6]]).isfinite().all()
    model.close()


def test_openai_s_client_gets_the_vectors_in_both_encodings(served: Served) -> None:
    expected = served.expected()
    with served.server.openai() as client:
        for encoding in ("float", "base64", None):
            options: dict[str, Any] = {"encoding_format": encoding} if encoding else {}
            answer = client.embeddings.create(model="m", input=TEXTS, **options)
            written = [entry.embedding for entry in answer.data]
            assert all(isinstance(one, str) == (encoding == "base64") for one in written)
            found = [np.frombuffer(base64.b64decode(one), "<f4") if isinstance(one, str) else one for one in written]
            np.testing.assert_allclose(np.array(found), expected, atol=1e-4)
            assert answer.usage.prompt_tokens == sum(map(len, TEXTS))
        one = client.embeddings.create(model="m", input=TEXTS[0], dimensions=8).data[0].embedding
    np.testing.assert_allclose(one, expected[0, :8] / np.linalg.norm(expected[0, :8]), atol=1e-4)


def test_encode_answers_an_object_or_a_list(served: Served) -> None:
    expected = served.expected()
    single = served.server.http.post("encode", json={"text": TEXTS[1]}).json()
    np.testing.assert_allclose(single["embedding"], expected[1], atol=1e-4)
    assert single["meta_info"]["prompt_tokens"] == len(TEXTS[1])
    ids = served.server.http.post("tokenize", json={"prompt": TEXTS}).json()["tokens"]
    assert "id" in single["meta_info"]
    assert single["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    batch = served.server.http.post("encode", json={"input_ids": ids, "rid": ["a", "b", "c"]}).json()
    assert [item["meta_info"]["id"] for item in batch] == ["a", "b", "c"]
    np.testing.assert_allclose([item["embedding"] for item in batch], expected, atol=1e-4)
    short = served.server.http.post("encode", json={"text": TEXTS[1], "dimensions": 8}).json()["embedding"]
    np.testing.assert_allclose(short, expected[1, :8] / np.linalg.norm(expected[1, :8]), atol=1e-4)


def refused(answer: httpx.Response, *words: str) -> None:
    assert answer.status_code == 400, answer.text
    assert all(word in answer.text for word in words), answer.text


def test_what_is_refused(served: Served) -> None:
    http = served.server.http
    refused(http.post("generate", json={"text": "a"}), "embedding model", "/v1/embeddings")
    for size in (200, 20_000):
        too_long = http.post("v1/embeddings", json={"input": "x" * size})
        refused(too_long, "maximum context length is 128 tokens", str(size))
        assert (too_long.json()["param"], too_long.json()["code"]) == ("input", "context_length_exceeded")
    longest = http.post("v1/embeddings", json={"input": ["x" * 128, "y"]})
    assert longest.status_code == 200, longest.text
    refused(http.post("v1/embeddings", json={"input": []}), "input")
    strange = http.post("v1/embeddings", json={"input": [[999]]})
    refused(strange, "input has the id 999, which is out-of-vocabulary")
    assert strange.json()["param"] == "input"
    refused(http.post("v1/embeddings", json={"input": "x", "dimensions": 65}), "65", "64")
    refused(http.post("encode", json={"text": "x", "dimensions": 65}), "65", "64")
    refused(http.post("encode", json={"text": ""}), "empty")
    refused(http.post("encode", json={"text": ["a", "b"], "rid": ["x", "x"]}), "Duplicate request ID")
    for route, name in (("encode", "text"), ("v1/embeddings", "input"), ("v1/classify", "input")):
        refused(http.post(route, json={name: "a", "rid": 5}), "rid")


def test_how_texts_are_read_stands_in_a_file_of_any_architecture_s_name(changing: Server, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", case := CASES["bert-mean"])
    told = {"max_seq_length": 60, "do_lower_case": True}
    (folder / "sentence_roberta_config.json").write_text(json.dumps(told))
    http = changing.serving(folder).http
    answer = http.post("v1/embeddings", json={"input": [text.upper() for text in TEXTS]})
    np.testing.assert_allclose([each["embedding"] for each in answer.json()["data"]], vectors(folder, case), atol=1e-4)
    refused(http.post("v1/embeddings", json={"input": "x" * 61}), "maximum context length is 60 tokens")


def test_a_model_that_embeds_nothing_is_refused_at_load(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    save_tokenizer(tmp_path)
    AutoModel.from_config(AutoConfig.for_model("vit", image_size=16, patch_size=8, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="does not run on token ids alone"):
        EmbeddingModel(EngineConfig(model=str(tmp_path), dtype="float32"), lambda *_: None)


@pytest.mark.parametrize(
    ("kind", "words"), [("LSTM", "has a LSTM module behind its model"), ("Pooling", "served is the order")]
)
def test_a_module_that_is_not_served_is_named_before_weights_are_read(tmp_path: Path, kind: str, words: str) -> None:
    folder = save(tmp_path / "model", CASES["bert-mean"])
    save_modules(folder, "Transformer", "Pooling", "Dense", kind)
    assert words in refusal(folder)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"activation_function": "evil.Evil"}, "2_Dense of .* has the activation 'evil.Evil'; served are torch.nn"),
        ({"activation_function": ["evil.Evil"]}, "has the activation"),
        ({"use_residual": True}, "has use_residual=True"),
        ({"module_output_name": "scores"}, "has module_output_name='scores'"),
        ({"out_features": 10**12}, "does not hold the layer that its config.json tells of"),
        ({"in_features": None}, "does not hold the layer"),
        ({"bias": False}, "does not hold the layer"),
    ],
)
def test_a_dense_module_that_is_not_served_is_refused(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    folder = save(tmp_path / "model", CASES["bert-dense"])
    edit(folder / "2_Dense" / "config.json", **changed)
    assert re.search(words, refusal(folder))


def test_the_files_of_a_dense_module_are_safe_ones_in_the_model_s_folder(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", CASES["bert-dense"])
    weights = folder / "2_Dense" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "does not hold the layer" in refusal(folder)
    weights.rename(weights.with_name("pytorch_model.bin"))
    assert "has no model.safetensors, and nbgen reads safetensors only" in refusal(folder)
    (folder / "modules.json").write_text((folder / "modules.json").read_text().replace("2_Dense", "../2_Dense"))
    assert "names '../2_Dense', which is no folder in the model's" in refusal(folder)


def test_dense_modules_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", CASES["gemma3-dense"])
    shutil.rmtree(folder / "2_Dense")
    (folder / "3_Dense").rename(folder / "2_Dense")
    save_modules(folder, "Transformer", "Pooling", "Dense")
    with pytest.raises(ModelError, match="do not fit one another, or its vectors of 64 numbers"):
        EmbeddingModel(EngineConfig(model=str(folder), dtype="float32"), lambda *_: None)


def refusal(folder: Path) -> str:
    """What is said of a folder before weights are read."""
    stages = set[str]()
    with pytest.raises(ModelError) as caught:
        EmbeddingModel(EngineConfig(model=str(folder)), lambda stage, *_: stages.add(stage))
    assert "loading weights" not in stages
    return str(caught.value)


def test_the_server_says_what_it_is(served: Served) -> None:
    http = served.server.http
    assert http.get("model_info").json()["is_generation"] is False
    assert http.get("server_info").json()["is_embedding"] is True
    assert http.get("health_generate").status_code == 200


def test_a_generation_model_embeds_nothing(server: Server) -> None:
    for route, body in (
        ("encode", {"text": "a"}),
        ("v1/embeddings", {"input": "a"}),
        ("v1/classify", {"input": "a"}),
    ):
        refused(server.http.post(route, json=body), "does not appear to be an embedding model")
    too_long = server.http.post("v1/embeddings", json={"input": "x" * 300_000, "pooling": "mean"})
    refused(too_long, "maximum context length", "the input is too long")
    assert too_long.json()["param"] == "input"


def test_who_leaves_ends_the_call(server: Server) -> None:
    def steps() -> int:
        server.idle()
        return int(server.model()["status"]["steps"])

    def body(start: str, texts: int) -> dict[str, Any]:
        return {"input": [f"{start}{number} " + "a text " * 20 for number in range(texts)], "pooling": "mean"}

    before = steps()
    assert server.http.post("v1/embeddings", json=body("a", 160)).status_code == 200
    between = steps()
    server.left("v1/embeddings", body("b", 640))
    assert steps() - between < 3 * (between - before), "it was computed far beyond three quarters"


def test_the_helper_gives_an_array(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_client", None)
    http = served.server.http
    root = str(http.base_url).split("nbgen/")[0]
    client = nbgen.connect(root, http.headers["authorization"].split()[-1])
    found = nbgen.embed(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, served.expected(), atol=1e-4)
    np.testing.assert_allclose(nbgen.embed(TEXTS[0]), found[0], atol=1e-5)
    client.close()
