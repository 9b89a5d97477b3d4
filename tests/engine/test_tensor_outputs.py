"""The model's own numbers as requests get them: those of transformers' float32 forward, however they were computed."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine.live_model import LiveModel
from nbgen.engine_config import EngineConfig
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateOutput, GenerateRequest, Tensor, TensorOptions
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids

PROMPT = [(7 * i) % 250 + 4 for i in range(150)]
EVERYTHING = TensorOptions(logits=True, hidden_states=True, generation_logits=True, logprobs=True)


def request(tensors: TensorOptions, new: int = 5, rid: str = "a", **options: object) -> GenerateRequest:
    params = SamplingParams(**{"max_new_tokens": new, "temperature": 0.0, "ignore_eos": True, **options})
    return GenerateRequest(rid=rid, input_ids=PROMPT, params=params, tensors=tensors)


def rows(outputs: list[GenerateOutput], name: str, width: int) -> np.ndarray:
    data = b"".join(piece.data for output in outputs for piece in output.tensors if piece.name == name)
    return np.frombuffer(data, np.float32).reshape(-1, width)


def reference(folder: Path, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Scores and last hidden states `[tokens, …]`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        output = model(torch.tensor([tokens]), output_hidden_states=True)
    return output.logits[0].numpy(), output.hidden_states[-1][0].numpy()


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "bloom", "mamba"])
def test_every_tensor_equals_the_reference(model_type: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    assembly = build(folder, prefill_chunk=40)
    outputs = generate(assembly, [request(EVERYTHING)])["a"]
    tokens = PROMPT + ids(outputs)
    logits, hidden = reference(folder, tokens)
    vocab, count = logits.shape[1], len(PROMPT)
    np.testing.assert_allclose(rows(outputs, "logits", vocab), logits[:count], atol=2e-3)
    np.testing.assert_allclose(rows(outputs, "hidden_states", hidden.shape[1]), hidden[:count], atol=2e-3)
    np.testing.assert_allclose(rows(outputs, "generation_logits", vocab), logits[count - 1 : -1], atol=2e-3)
    chosen = torch.log_softmax(torch.tensor(logits), dim=-1).numpy()
    expected = [[chosen[count - 1 + i, token]] for i, token in enumerate(tokens[count:])]
    np.testing.assert_allclose(rows(outputs, "logprobs", 1), expected, atol=2e-3)


class ScoresOfAll(LlamaForCausalLM):
    """As somebody may write one: it makes scores of every token, whichever are wanted."""

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, **others: object) -> object:
        return super().forward(input_ids, position_ids=position_ids, **others)


def test_states_are_those_of_their_tokens_where_the_model_picks_no_rows(tiny_model: Path) -> None:
    model = ScoresOfAll.from_pretrained(tiny_model, dtype=torch.float32)
    live = LiveModel(model, AutoTokenizer.from_pretrained(tiny_model))
    assembly = assemble(EngineConfig(model="live", prefill_chunk=512), lambda *_: None, live)
    assert assembly.model.tier == "A"
    outputs = generate(assembly, [request(TensorOptions(hidden_states=True), new=1)])["a"]
    _, hidden = reference(tiny_model, PROMPT)
    np.testing.assert_allclose(rows(outputs, "hidden_states", hidden.shape[1]), hidden, atol=2e-3)


def test_a_prompt_alone_is_one_pass_without_a_token(tiny_model: Path, tiny_engine: Assembly) -> None:
    outputs = generate(tiny_engine, [request(TensorOptions(logits=True), new=0)])["a"]
    logits, _ = reference(tiny_model, PROMPT)
    np.testing.assert_allclose(rows(outputs, "logits", logits.shape[1]), logits, atol=2e-3)
    assert ids(outputs) == []
    assert outputs[-1].finish_reason.type == "length"


def test_sampling_options_leave_the_numbers_alone(tiny_model: Path, tiny_engine: Assembly) -> None:
    options = {"temperature": 0.7, "top_k": 2, "repetition_penalty": 1.5, "logit_bias": {9: 50.0}, "sampling_seed": 1}
    outputs = generate(tiny_engine, [request(TensorOptions(generation_logits=True, logprobs=True), 3, **options)])["a"]
    logits, _ = reference(tiny_model, PROMPT + ids(outputs))
    np.testing.assert_allclose(
        rows(outputs, "generation_logits", logits.shape[1]), logits[len(PROMPT) - 1 : -1], atol=2e-3
    )


def test_beside_others_and_after_preemption(tiny_model: Path, tiny_engine: Assembly) -> None:
    assembly = build(tiny_model, kv_cache_bytes=2**18, prefill_chunk=40)
    prompts = {str(first): [first, *PROMPT[1:]] for first in range(4, 8)}
    many = [
        msgspec.structs.replace(request(EVERYTHING, 100, rid=rid), input_ids=tokens) for rid, tokens in prompts.items()
    ]
    outputs = generate(assembly, many)
    assert assembly.engine.status().preemptions
    for rid, found in outputs.items():
        logits, hidden = reference(tiny_model, prompts[rid] + ids(found))
        vocab, count = logits.shape[1], len(PROMPT)
        np.testing.assert_allclose(rows(found, "logits", vocab), logits[:count], atol=2e-3)
        np.testing.assert_allclose(rows(found, "hidden_states", hidden.shape[1]), hidden[:count], atol=2e-3)
        np.testing.assert_allclose(rows(found, "generation_logits", vocab), logits[count - 1 : -1], atol=2e-3)
    mean = request(TensorOptions(pooled="mean"), new=0)
    pieces, whole = (rows(generate(each, [mean])["a"], "pooled", 64) for each in (assembly, tiny_engine))
    np.testing.assert_array_equal(pieces, whole)


def test_nobody_who_does_not_ask_gets_any(tiny_engine: Assembly) -> None:
    plain = GenerateRequest(rid="p", input_ids=PROMPT, params=SamplingParams(max_new_tokens=2))
    outputs = generate(tiny_engine, [plain, request(EVERYTHING)])["p"]
    assert all(not output.tensors for output in outputs)


def test_an_echo_is_the_prompts_text_and_fit_cuts_what_is_too_much(tiny_engine: Assembly) -> None:
    params = SamplingParams(max_new_tokens=10**6, ignore_eos=True, temperature=0.0)
    with pytest.raises(InvalidRequest, match="context length"):
        tiny_engine.admission.sequences(GenerateRequest(rid="f", text="Hello", params=params))
    fitted = GenerateRequest(rid="f", text="Hello", params=params, fit=True, echo=True)
    outputs = generate(tiny_engine, [fitted])["f"]
    assert outputs[0].prompt_text == "Hello"
    assert len(ids(outputs)) == 512 - 2 - 5


def test_more_than_one_request_may_have_is_refused(tiny_engine: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbgen.engine.answer_size.MAX_TENSOR_BYTES", 1000)
    with pytest.raises(InvalidRequest, match="at most 1000"):
        tiny_engine.admission.sequences(request(TensorOptions(logits=True), new=0))


@pytest.mark.parametrize(
    ("limit", "options", "words"),
    [
        ("MAX_TENSOR_BYTES", TensorOptions(generation_logits=True), "3 times, may take"),
        ("MAX_STATE_NUMBERS", TensorOptions(generation_hidden_states=True), "3 times, are"),
    ],
)
def test_the_tensors_of_all_samples_count(
    tiny_engine: Assembly, monkeypatch: pytest.MonkeyPatch, limit: str, options: TensorOptions, words: str
) -> None:
    model, one = tiny_engine.model, request(options, new=4)
    fits = 4 * model.vocab_size * 4 if options.generation_logits else (len(PROMPT) + 4) * model.hidden_size
    monkeypatch.setattr(f"nbgen.engine.answer_size.{limit}", fits)
    assert tiny_engine.admission.sequences(one)
    three = msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, n=3))
    with pytest.raises(InvalidRequest, match=words):
        tiny_engine.admission.sequences(three)


@pytest.mark.parametrize("name", ["generation_logits", "generation_hidden_states"])
def test_the_requests_of_one_call_share_it(tiny_engine: Assembly, name: str) -> None:
    asked = request(TensorOptions(**{name: True}), new=300)
    assert tiny_engine.admission.sequences(msgspec.structs.replace(asked, batch=256))
    with pytest.raises(InvalidRequest, match="each of 4096 requests in one call gets at most"):
        tiny_engine.admission.sequences(msgspec.structs.replace(asked, batch=4096))


def test_experts_states_and_embeddings_outlive_preemption(tmp_path: Path) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    folder = save_model(tmp_path, "qwen3_moe", **experts)
    wanted = TensorOptions(hidden_states=True, generation_hidden_states=True, routed_experts=0)
    table = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).get_input_embeddings().weight
    requests = []
    for first in range(4, 8):
        rows_given = table[[first, *PROMPT[1:]]].detach().numpy()
        embeds = Tensor(name="", datatype="FP32", shape=rows_given.shape, data=memoryview(rows_given).cast("B"))
        plain = request(wanted, 40, str(first))
        plain = msgspec.structs.replace(plain, input_ids=[first, *PROMPT[1:]])
        requests += [plain, msgspec.structs.replace(plain, rid=f"e{first}", input_ids=None, input_embeds=embeds)]
    assembly = build(folder, kv_cache_bytes=2**18, prefill_chunk=40)
    crowded, roomy = generate(assembly, requests), generate(build(folder), requests)
    assert assembly.engine.status().preemptions > 0
    for rid in crowded:
        assert ids(crowded[rid]) == ids(roomy[rid]) == ids(roomy[rid.removeprefix("e")])
        for name, width, count in (("hidden_states", 64, 150), ("generation_hidden_states", 64, 39)):
            found, expected = (rows(outputs[rid], name, width) for outputs in (crowded, roomy))
            assert len(found) == count
            np.testing.assert_allclose(found, expected, atol=2e-3)
        found, expected = (rows(outputs[rid], "routed_experts", 4).view(np.int32) for outputs in (crowded, roomy))
        assert len(found) == 189
        np.testing.assert_array_equal(found, expected)


def test_embeddings_that_are_cut_end_with_the_prompt(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    given = model.get_input_embeddings().weight[PROMPT].detach().numpy()
    embeds = Tensor(name="", datatype="FP32", shape=given.shape, data=memoryview(given).cast("B"))
    assembly = build(tiny_model, context_length=100)
    params = SamplingParams(max_new_tokens=20, temperature=0.0, ignore_eos=True)
    as_ids = GenerateRequest(rid="ids", input_ids=PROMPT, params=params, truncate=True)
    as_embeds = GenerateRequest(rid="embeds", input_embeds=embeds, params=params, truncate=True)
    outputs = generate(assembly, [as_ids, as_embeds])
    sequence = assembly.admission.sequences(as_embeds)[0]
    assert sequence.embeds.shape[0] == sequence.num_prompt < len(PROMPT)
    assert ids(outputs["embeds"]) == ids(outputs["ids"])


def test_experts_that_are_all_computed_are_those_of_the_router(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "llama4_text", **FAMILIES["llama4_text"].changes)
    model, found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), {}
    for number, layer in enumerate(model.model.layers):
        if hasattr(layer.feed_forward, "router"):
            layer.feed_forward.router.register_forward_hook(
                lambda _, __, output, number=number: found.update({number: output[1].argmax(-1).numpy()})
            )
    assembly = build(folder, prefill_chunk=40)
    outputs = generate(assembly, [request(TensorOptions(routed_experts=0))])["a"]
    with torch.inference_mode():
        model(torch.tensor([PROMPT + ids(outputs)[:-1]]))
    experts = rows(outputs, "routed_experts", assembly.model.routed_experts).view(np.int32)
    assert len(found) == 2
    for number in range(4):
        np.testing.assert_array_equal(experts[:, number], found.get(number, 0))
