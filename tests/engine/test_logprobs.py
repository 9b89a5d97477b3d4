"""Log-probabilities are transformers' own float32 log-softmax, whatever was cached, cut or batched."""

from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from nbgen.engine import answer_size
from nbgen.engine.assembly import Assembly
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest, LogprobOptions, TensorOptions, TokenLogprobs
from nbgen.sampling_params import SamplingParams
from tests.conftest import at_least, save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids

PROMPT = [(7 * i) % 250 + 4 for i in range(150)]
CLOSE = 2e-4


def request(start: int | None = None, rid: str = "a", params: dict | None = None, **options) -> GenerateRequest:
    sampling = SamplingParams(**{"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True, **(params or {})})
    return GenerateRequest(rid=rid, input_ids=PROMPT, params=sampling, logprobs=LogprobOptions(start=start, **options))


def expected(folder: Path, tokens: list[int]) -> torch.Tensor:
    """`[tokens, vocab]`: at each position, of the token that follows."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)


def logprobs(outputs: list) -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
    """Of the prompt and of the output."""
    prompt = next((o.prompt_logprobs for o in outputs if o.prompt_logprobs), [])
    return prompt, [entry for output in outputs for entry in output.logprobs]


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "bloom"])
@pytest.mark.parametrize("start", [0, 100, 149])
def test_prompt_and_output_equal_the_reference(model_type: str, start: int, tmp_path: Path) -> None:
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    assembly = build(folder, prefill_chunk=40)
    outputs = generate(assembly, [request(start, top=3, token_ids=[9, 5, 9])])["a"]
    tokens = PROMPT + ids(outputs)
    reference = expected(folder, tokens)
    prompt, output = logprobs(outputs)
    assert prompt[0] == TokenLogprobs((None, PROMPT[start], None))
    assert len(prompt) == len(PROMPT) - start
    for position, entry in zip(range(start + 1, len(tokens)), prompt[1:] + output, strict=True):
        row = reference[position - 1]
        assert entry.token[1] == tokens[position]
        assert entry.token[0] == pytest.approx(float(row[tokens[position]]), abs=CLOSE)
        assert [value for value, _, _ in entry.top] == pytest.approx(row.topk(3).values.tolist(), abs=CLOSE)
        assert [token for _, token, _ in entry.chosen] == [9, 5, 9]
        assert [value for value, _, _ in entry.chosen] == pytest.approx(row[[9, 5, 9]].tolist(), abs=CLOSE)


@pytest.mark.skipif(not at_least("transformers", "5.24"), reason="an older one has no model with fewer scores than ids")
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"logit_bias": {230: 9.0}}])
def test_an_id_that_a_model_has_no_score_for_never_comes(params: dict, tmp_path: Path) -> None:
    folder = save_model(tmp_path, "apertus1p5_text", output_vocab_size=200)
    ask = request(0, params=params, top=2, token_ids=[230])
    outputs = generate(build(folder), [msgspec.structs.replace(ask, tensors=TensorOptions(generation_logits=True))])[
        "a"
    ]
    prompt, output = logprobs(outputs)
    assert [entry.token[0] == float("-inf") for entry in prompt[1:]] == [token >= 200 for token in PROMPT[1:]]
    assert [entry.chosen[0][:2] for entry in output] == [(float("-inf"), 230)] * 6
    assert max(ids(outputs)) < 200
    assert sum(len(piece.data) for each in outputs for piece in each.tensors) == 6 * 260 * 4, "of all ids"


def test_a_prefix_hit_stops_where_logprobs_begin(tiny_engine: Assembly) -> None:
    first = generate(tiny_engine, [request(0)])["a"]
    again = generate(tiny_engine, [request(100)])["a"]
    assert first[0].cached_tokens == 0
    assert 0 < again[0].cached_tokens <= 100
    values = [[e.token[0] for e in logprobs(outputs)[0]] for outputs in (first, again)]
    assert values[1][1:] == pytest.approx(values[0][101:], abs=CLOSE)
    assert generate(tiny_engine, [request(None)])["a"][0].cached_tokens == 149


def test_beside_other_requests_and_for_each_sample(tiny_engine: Assembly) -> None:
    params = {"temperature": 1.0, "sampling_seed": 3, "n": 2}
    busy = GenerateRequest(rid="b", text="Hello", params=SamplingParams(max_new_tokens=30, ignore_eos=True))
    alone = generate(tiny_engine, [request(140, params=params)])["a"]
    beside = generate(tiny_engine, [busy, request(140, params=params)])["a"]
    for index in (0, 1):
        pair = [logprobs([o for o in outputs if o.index == index]) for outputs in (alone, beside)]
        for ours, theirs in zip(pair[0][0] + pair[0][1], pair[1][0] + pair[1][1], strict=True):
            assert ours.token[1] == theirs.token[1]
            assert ours.token[0] == pytest.approx(theirs.token[0], abs=CLOSE) if ours.token[0] else True


def test_requests_of_one_batch_get_what_each_asked_for(tiny_engine: Assembly) -> None:
    hot = {"temperature": 1.7, "sampling_seed": 3}
    asked = [
        request(None, "a", top=2),
        request(None, "b", top=5, token_ids=[9]),
        GenerateRequest(rid="c", input_ids=PROMPT, params=SamplingParams(max_new_tokens=6, ignore_eos=True)),
        request(None, "d", hot),
        request(None, "e", hot, top=3, token_ids=[9]),
    ]
    together = generate(tiny_engine, asked)
    for one in asked:
        alone, beside = (logprobs(outputs[one.rid])[1] for outputs in (generate(tiny_engine, [one]), together))
        assert len(alone) == len(beside) == (6 if one.logprobs else 0)
        for ours, theirs in zip(beside, alone, strict=True):
            assert ours.token[0] == pytest.approx(theirs.token[0], abs=CLOSE)
            for name in ("top", "chosen"):
                pair = [getattr(entry, name) or [] for entry in (ours, theirs)]
                assert [token for _, token, _ in pair[0]] == [token for _, token, _ in pair[1]]
                assert [v for v, _, _ in pair[0]] == pytest.approx([v for v, _, _ in pair[1]], abs=CLOSE)


@pytest.mark.parametrize("beside", [511, 510])
def test_a_prompt_that_a_step_has_one_token_of_beside_a_whole_one(
    beside: int, tiny_model: Path, tiny_engine: Assembly
) -> None:
    """The step has room for 512 tokens: the row of the prompt comes after one that is sampled from, or several do."""
    other = GenerateRequest(rid="b", input_ids=(PROMPT * 4)[:beside], params=SamplingParams(max_new_tokens=1))
    outputs = generate(tiny_engine, [other, request(start=0)])
    before, _ = logprobs(outputs["a"])
    numbers = expected(tiny_model, PROMPT)
    own = [float(numbers[i, token]) for i, token in enumerate(PROMPT[1:])]
    assert [entry.token[0] for entry in before[1:]] == pytest.approx(own, abs=CLOSE)


def test_output_is_described_after_temperature_penalties_and_bias(tiny_model: Path, tiny_engine: Assembly) -> None:
    params = {"temperature": 0.5, "top_k": 3, "logit_bias": {9: 2.0}, "sampling_seed": 1, "max_new_tokens": 1}
    outputs = generate(tiny_engine, [request(None, params=params, token_ids=[9])])["a"]
    scores = expected(tiny_model, PROMPT)[-1].clone()
    scores[9] += 2.0
    reference = torch.log_softmax(scores / 0.5, dim=-1)
    (entry,) = outputs[0].logprobs
    assert entry.token[0] == pytest.approx(float(reference[entry.token[1]]), abs=CLOSE)
    assert entry.chosen[0][0] == pytest.approx(float(reference[9]), abs=CLOSE)


def test_a_prompt_alone_is_scored_with_the_token_that_would_come(tiny_engine: Assembly) -> None:
    (output,) = generate(tiny_engine, [request(0, params={"max_new_tokens": 0}, top=1)])["a"]
    assert output.token_ids == ()
    assert len(output.prompt_logprobs) == len(PROMPT)
    assert output.logprobs[0].token == output.logprobs[0].top[0]


def test_texts_join_to_the_text(tiny_engine: Assembly) -> None:
    options = LogprobOptions(start=3, text=True)
    ask = GenerateRequest(rid="t", text="Hello, you", params=SamplingParams(max_new_tokens=0), logprobs=options)
    (output,) = generate(tiny_engine, [ask])["t"]
    assert "".join(entry.token[2] for entry in output.prompt_logprobs) == "lo, you"


def test_nobody_who_does_not_ask_pays(tiny_engine: Assembly) -> None:
    plain = GenerateRequest(rid="p", input_ids=PROMPT, params=SamplingParams(max_new_tokens=2))
    outputs = generate(tiny_engine, [plain])["p"]
    assert all(not o.logprobs and not o.prompt_logprobs for o in outputs)


@pytest.mark.parametrize(
    ("options", "words"), [({"start": 151}, "logprob_start_len"), ({"token_ids": [9999]}, "out-of-vocabulary")]
)
def test_what_cannot_be_described_is_refused(tiny_engine: Assembly, options, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        tiny_engine.admission.sequences(request(**options))


@pytest.mark.parametrize(
    ("start", "params", "most"),
    [(0, {"max_new_tokens": 0, "n": 2}, 2 * 150), (145, {"n": 3}, 3 * 11), (None, {"n": 4}, 4 * 6), (None, {}, 6)],
)
def test_the_log_probabilities_of_a_prompt_and_of_all_answers_have_a_limit(
    tiny_engine: Assembly, monkeypatch: pytest.MonkeyPatch, start: int | None, params: dict, most: int
) -> None:
    asked = request(start=start, top=3, token_ids=[7], params=params)
    monkeypatch.setattr(answer_size, "MAX_LOGPROBS", 4 * most)
    assert tiny_engine.admission.sequences(asked)
    monkeypatch.setattr(answer_size, "MAX_LOGPROBS", 4 * most - 1)
    with pytest.raises(
        InvalidRequest, match=f"are {4 * most} log-probabilities; one request gets at most {4 * most - 1}"
    ) as refusal:
        tiny_engine.admission.sequences(asked)
    assert refusal.value.message.startswith("top_logprobs_num and token_ids_logprob for")
    assert ("logprob_start_len" in refusal.value.message) == (start is not None)
    assert tiny_engine.admission.sequences(msgspec.structs.replace(asked, logprobs=LogprobOptions(start=start)))


def test_the_requests_of_one_call_share_it(tiny_engine: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_size, "MAX_LOGPROBS", 3 * 4 * 156)
    asked = request(start=0, top=4)
    assert tiny_engine.admission.sequences(msgspec.structs.replace(asked, batch=3))
    with pytest.raises(InvalidRequest, match="624 log-probabilities; each of 4 requests in one call gets at most 468"):
        tiny_engine.admission.sequences(msgspec.structs.replace(asked, batch=4))


def test_where_nobody_said_how_long_an_answer_may_be_its_log_probabilities_do(
    tiny_engine: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_size, "MAX_LOGPROBS", 4 * 2 * 11)
    asked = request(start=145, top=4, params={"max_new_tokens": None, "n": 2})
    assert [len(ids(generate(tiny_engine, [asked])["a"], index)) for index in range(2)] == [6, 6]
    monkeypatch.setattr(answer_size, "MAX_LOGPROBS", 4 * 2 * 5)
    with pytest.raises(InvalidRequest, match="ask for fewer"):
        tiny_engine.admission.sequences(asked)
