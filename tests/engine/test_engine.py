"""What the engine writes does not depend on what runs beside it, on preemption or on the prefix cache."""

import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from nbgen.engine import stop_regex
from nbgen.engine.assembly import Assembly, _mixed_chunk
from nbgen.engine_config import EngineConfig
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, GenerateOutput, GenerateRequest, LogprobOptions, Tensor
from nbgen.sampling_params import SamplingParams
from nbgen.word_lists import WordLists
from tests.conftest import SPECIAL_TOKENS, save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids, text
from tests.engine.test_grammar import constrained

PROMPTS = [list(range(10, 10 + length)) for length in (30, 7, 1, 19)]
NEW_TOKENS = 24


def greedy(**changes: object) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True, **changes})


def test_preemption_changes_no_text(tiny_model: Path, tiny_engine: Assembly) -> None:
    layers, keys_and_values, block_size, heads, head_dim, float32 = 2, 2, 16, 2, 16, 4
    block = layers * keys_and_values * block_size * heads * head_dim * float32
    cramped = build(tiny_model, kv_cache_bytes=6 * block)
    requests = [GenerateRequest(rid=f"r{i}", input_ids=p, params=greedy()) for i, p in enumerate(PROMPTS)]
    roomy, tight = generate(tiny_engine, requests), generate(cramped, requests)
    assert cramped.engine.status().preemptions > 0, "the pool was large enough: nothing was tested"
    assert {rid: ids(o) for rid, o in tight.items()} == {rid: ids(o) for rid, o in roomy.items()}
    status = cramped.engine.status()
    assert status.blocks_free == status.blocks_total


def test_the_first_output_tells_how_long_its_sequence_has_run(tiny_engine: Assembly) -> None:
    request = GenerateRequest(rid="r", input_ids=PROMPTS[0], params=greedy(max_new_tokens=3))
    began = time.monotonic()
    first, *others = generate(tiny_engine, [request])["r"]
    assert 0 < first.ran_seconds < time.monotonic() - began
    assert [output.ran_seconds for output in others] == [0, 0]


def test_what_the_first_output_tells_is_told_once(tiny_engine: Assembly) -> None:
    asked = {"logprobs": LogprobOptions(start=0), "echo": True, "prompt_ids": True}
    request = GenerateRequest(rid="r", input_ids=PROMPTS[0], params=greedy(), **asked)
    tiny_engine.engine.add(tiny_engine.admission.sequences(request))
    (first,), (last,) = tiny_engine.engine.step()[-1:], tiny_engine.engine.abort("r")
    assert (len(first.prompt_logprobs), len(first.prompt_ids), bool(first.prompt_text)) == (30, 30, True)
    assert (last.prompt_logprobs, last.prompt_ids, last.prompt_text, last.ran_seconds) == ((), (), None, 0)


def test_sampled_text_depends_on_the_seed_alone(tiny_engine: Assembly) -> None:
    def request(seed: int) -> GenerateRequest:
        params = SamplingParams(max_new_tokens=20, temperature=1.5, top_p=0.95, sampling_seed=seed, ignore_eos=True)
        return GenerateRequest(rid=f"s{seed}", input_ids=PROMPTS[0], params=params)

    alone = [ids(generate(tiny_engine, [request(seed)])[f"s{seed}"]) for seed in range(6)]
    together = generate(tiny_engine, [request(seed) for seed in range(6)])
    assert [ids(together[f"s{seed}"]) for seed in range(6)] == alone
    assert len({tuple(a) for a in alone}) == 6, "six seeds, six texts"


def test_prompts_given_as_embeddings_change_no_bit_of_others(tiny_engine: Assembly) -> None:
    def bits(*requests: GenerateRequest) -> list[float | None]:
        tiny_engine.engine.flush_cache()
        outputs = generate(tiny_engine, list(requests))["ids"]
        return [one.token[0] for output in outputs for one in (*output.prompt_logprobs, *output.logprobs)]

    assert tiny_engine.model.layers_in == "C++"
    width, generator = tiny_engine.model.embed_size, torch.Generator().manual_seed(0)
    params, logprobs = greedy(), LogprobOptions(start=0)
    of_ids = GenerateRequest(rid="ids", input_ids=list(range(10, 60)), params=params, logprobs=logprobs)
    others = []
    for length in (40, 1, 17):
        data = memoryview(torch.randn(length, width, generator=generator).numpy().tobytes())
        embeds = Tensor(name="e", datatype="FP32", shape=(length, width), data=data)
        others.append(GenerateRequest(rid=f"e{length}", input_embeds=embeds, params=params))
    assert bits(of_ids, *others) == bits(of_ids)


def test_samples_of_n_differ_and_are_told_apart(tiny_engine: Assembly, idle) -> None:
    params = SamplingParams(max_new_tokens=12, temperature=1.5, n=3, sampling_seed=7, ignore_eos=True)
    outputs = generate(tiny_engine, [GenerateRequest(rid="n", text="Hello", params=params)])["n"]
    assert len({tuple(ids(outputs, index)) for index in range(3)}) == 3
    idle()


def test_stop_regexes_that_take_too_long_end_their_request_alone(
    tiny_engine: Assembly, idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_regex, "FOR_EACH_PIECE", 0.0)
    monkeypatch.setattr(stop_regex, "SAVED_UP", 0.0)
    params = {"slow": greedy(stop_regex=("never this",), n=2), "other": greedy()}
    outputs = generate(tiny_engine, [GenerateRequest(rid=r, text="Hello", params=p) for r, p in params.items()])
    for reason in [output.finish_reason for output in outputs["slow"]]:
        assert (reason.type, reason.status) == ("error", 400)
        assert "stop_regex takes too long" in reason.message
    assert len(ids(outputs["other"])) == NEW_TOKENS
    idle()


def test_stop_string_is_never_shown(tiny_engine: Assembly, idle) -> None:
    full = text(generate(tiny_engine, [GenerateRequest(rid="a", text="Hello", params=greedy())])["a"])
    stop = full[5:8]
    outputs = generate(tiny_engine, [GenerateRequest(rid="b", text="Hello", params=greedy(stop=(stop,)))])["b"]
    assert text(outputs) == full[: full.index(stop)]
    assert outputs[-1].finish_reason.matched == stop
    idle()


@pytest.mark.parametrize("skips", [True, False])
def test_a_stop_string_may_be_a_special_token(tiny_engine: Assembly, idle, skips: bool) -> None:
    likely = {index: 100.0 for index, word in enumerate(SPECIAL_TOKENS) if word == "<|user|>"}
    params = greedy(stop=("<|user|>",), logit_bias=likely, skip_special_tokens=skips)
    outputs = generate(tiny_engine, [GenerateRequest(rid="r", text="Hello", params=params)])["r"]
    assert (text(outputs), ids(outputs)) == ("", [*likely])
    assert outputs[-1].finish_reason.matched == "<|user|>"
    idle()


def test_a_stop_regex_may_begin_in_a_special_token(tiny_engine: Assembly, idle) -> None:
    likely = {index: 100.0 for index, word in enumerate(SPECIAL_TOKENS) if word == "<|user|>"}
    params = greedy(stop_regex=(r"er\|>(<\|user\|>){2}",), logit_bias=likely)
    outputs = generate(tiny_engine, [GenerateRequest(rid="r", text="Hello", params=params)])["r"]
    assert (text(outputs), ids(outputs)) == ("", [*likely] * 3)
    assert outputs[-1].finish_reason.matched == r"er\|>(<\|user\|>){2}"
    idle()


def test_stop_token_ends_and_is_counted(tiny_engine: Assembly) -> None:
    expected = ids(generate(tiny_engine, [GenerateRequest(rid="a", text="Hello", params=greedy())])["a"])
    params = greedy(ignore_eos=False, stop_token_ids=(expected[4],))
    outputs = generate(tiny_engine, [GenerateRequest(rid="b", text="Hello", params=params)])["b"]
    first = expected.index(expected[4])
    assert ids(outputs) == expected[: first + 1]
    assert outputs[-1].finish_reason.matched == expected[4]


def test_max_new_tokens_zero_runs_the_prompt_only(tiny_engine: Assembly) -> None:
    params = greedy(max_new_tokens=0)
    (output,) = generate(tiny_engine, [GenerateRequest(rid="z", text="Hello", params=params)])["z"]
    assert (output.text, output.token_ids, output.finish_reason.type) == ("", (), "length")
    assert output.prompt_tokens == 5


@pytest.mark.parametrize("budget", [0, 5])
def test_what_an_answer_begins_with_is_shown_where_nothing_follows(tiny_engine: Assembly, idle, budget: int) -> None:
    begun = tiny_engine.admission._tokenizer.encode("caf\u00e9")
    request = GenerateRequest(rid="r", text="Hello", prefix_ids=begun, params=greedy(max_new_tokens=budget))
    tiny_engine.engine.add(tiny_engine.admission.sequences(request))
    (output,) = tiny_engine.engine.abort("r") if budget else tiny_engine.engine.step()
    assert (output.text, output.token_ids) == ("caf\u00e9", ())
    idle()


LETTERS = {"regex": "[a-z]{2}([a-z ]{3}[.,]){6}", "temperature": 1.5, "sampling_seed": 3}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.5, "sampling_seed": 3},
        {"frequency_penalty": 1.5, "repetition_penalty": 1.5},
        {"words": WordLists(bad_ids=[[0, 0]])},
        {"stop": ()},
        {"stop_regex": (r"[a-z ]{2}[.,][a-z ]{2}",)},
    ],
    ids=["plain", "seeded", "penalties", "bad words", "stop", "stop_regex"],
)
@pytest.mark.parametrize("grammar", [{}, LETTERS], ids=["free", "constrained"])
def test_an_answer_goes_on_from_its_first_tokens_as_it_went(
    tiny_engine: Assembly, idle, options: dict, grammar: dict
) -> None:
    options = {"temperature": 0.0, **grammar, **options}
    words = options.pop("words", None)

    def answer(rid: str, given: list[int]) -> list[GenerateOutput]:
        params = SamplingParams(max_new_tokens=40 - len(given), **options)
        request = GenerateRequest(rid=rid, text="Hello", prefix_ids=given, params=params, words=words)
        return constrained(tiny_engine, request)[rid]

    whole = answer("free", [])
    if options.get("stop") == ():  # of two tokens
        options["stop"] = (text(whole)[8:10],)
        whole = answer("stopped", [])
        assert whole[-1].finish_reason.matched == options["stop"][0]
    if words:  # which the answer has without it
        words = WordLists(bad_ids=[ids(whole)[4:6]])
        whole = answer("without", [])
    for kept in range(1, len(tokens := ids(whole))):
        rest = answer(f"r{kept}", tokens[:kept])
        assert (ids(rest), text(rest)) == (tokens[kept:], text(whole)), kept
        assert rest[-1].finish_reason.matched == whole[-1].finish_reason.matched
    idle()


def test_whoever_says_how_much_of_a_prompt_goes_beside_streams_leaves_it_its_patience(tiny_engine: Assembly) -> None:
    usual = tiny_engine.engine._scheduler.mixed_chunk
    own = _mixed_chunk(tiny_engine.engine._runner, EngineConfig(model="m", mixed_chunk=9))
    assert own.patience == usual.patience > 0
    assert {own.tokens(decodes, context) for decodes in (1, 99) for context in (0, 9999)} == {9}


def test_abort_ends_within_a_step(tiny_engine: Assembly, idle) -> None:
    engine = tiny_engine.engine
    engine.add(tiny_engine.admission.sequences(GenerateRequest(rid="x", text="Hello", params=greedy())))
    first = engine.step()
    (last,) = engine.abort("x")
    assert last.finish_reason.type == "abort"
    assert last.completion_tokens == len(ids(first))
    assert engine.abort("x") == [] == engine.abort("unknown")
    assert not engine.has_work
    idle()


@pytest.mark.parametrize("aborted", [True, False])
def test_an_answer_whose_parts_cannot_be_found_ends_alone(tiny_engine: Assembly, idle, aborted: bool) -> None:
    engine = tiny_engine.engine
    for rid in ("x", "y"):
        engine.add(tiny_engine.admission.sequences(GenerateRequest(rid=rid, text="Hello", params=greedy())))
    engine.sequences["x"][0].parser = object()
    (reason,) = [o.finish_reason for o in (engine.abort("x") if aborted else engine.step()) if o.finish_reason]
    assert reason.type == ("abort" if aborted else "error")
    assert list(engine.sequences) == ["y"]
    engine.abort("y")
    idle()


def test_a_full_queue_refuses(tiny_model: Path) -> None:
    assembly = build(tiny_model, max_waiting=2)
    requests = [GenerateRequest(rid=f"q{i}", text="Hi", params=greedy()) for i in range(3)]
    outputs = generate(assembly, requests)
    assert outputs["q2"][0].finish_reason.status == 503
    assert len(ids(outputs["q0"])) == NEW_TOKENS


def test_more_samples_than_any_queue_holds_are_the_requests_fault(tiny_model: Path) -> None:
    assembly = build(tiny_model, max_waiting=2)
    requests = [GenerateRequest(rid=f"q{n}", text="Hi", params=greedy(n=n)) for n in (3, 2)]
    outputs = generate(assembly, requests)
    reason = outputs["q3"][0].finish_reason
    assert (reason.status, reason.message[:35]) == (400, "n is 3, and at most 2 samples may w")
    assert len(ids(outputs["q2"], 1)) == NEW_TOKENS


def test_chat_goes_through_the_template(tiny_engine: Assembly) -> None:
    chat = GenerateRequest(rid="c", messages=[ChatMessage(role="user", content="Hi")], params=greedy())
    plain = GenerateRequest(rid="p", text="<|user|>Hi<|end|><|assistant|>", params=greedy())
    outputs = generate(tiny_engine, [chat, plain])
    assert ids(outputs["c"]) == ids(outputs["p"])
    assert outputs["c"][0].prompt_tokens == 5


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"input_ids": []}, "cannot be empty"),
        ({"input_ids": [5, 10**6]}, "out-of-vocabulary"),
        ({"input_ids": [-1]}, "out-of-vocabulary"),
        ({"input_ids": [5] * 512}, "longer than the model's context length"),
        ({"text": "a" * 10_000}, "longer than the model's context length"),
        ({"text": "Hello", "params": SamplingParams(max_new_tokens=512)}, "exceeds the model's maximum context length"),
        ({"text": "Hello", "params": SamplingParams(logit_bias={5000: 1.0})}, "logit_bias"),
    ],
)
def test_what_cannot_work_is_refused_with_the_numbers(tiny_engine: Assembly, request_fields, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        tiny_engine.admission.sequences(GenerateRequest(rid="bad", **request_fields))


@pytest.mark.parametrize(
    ("prompt", "field"), [({"text": "<new>"}, "prompt"), ({"messages": [ChatMessage("user", "<new>")]}, "messages")]
)
def test_a_token_that_the_model_does_not_have_is_told_of_the_text(tmp_path: Path, prompt, field: str) -> None:
    folder = save_model(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(folder)
    admission = build(folder).admission
    with pytest.raises(InvalidRequest, match="reads it, has the id 260, which is out-of-vocabulary") as refused:
        admission.sequences(GenerateRequest(rid="new", **prompt))
    assert refused.value.field == field
    with pytest.raises(InvalidRequest, match="prefix_ids has the id 999"):
        admission.sequences(GenerateRequest(rid="prefix", text="a", prefix_ids=[999]))


def test_not_finite_scores_end_the_one_request(tiny_engine: Assembly, idle) -> None:
    bias = dict.fromkeys(range(tiny_engine.model.vocab_size), float("-inf"))
    bad = GenerateRequest(rid="bad", text="Hello", params=greedy(logit_bias=bias))
    good = GenerateRequest(rid="good", text="Hello", params=greedy())
    alone = ids(generate(tiny_engine, [good])["good"])
    outputs = generate(tiny_engine, [bad, good])
    assert outputs["bad"][-1].finish_reason.type == "error"
    assert ids(outputs["good"]) == alone
    idle()


def test_what_spoils_one_request_spoils_none_that_begins_like_it(tmp_path: Path) -> None:
    folder = save_model(tmp_path, tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][250] = float("nan")  # as where a vocabulary was enlarged
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assembly, begin = build(folder), [*range(10, 90)]
    bad = GenerateRequest(rid="bad", input_ids=[*begin, 250, 7], params=greedy())
    good = GenerateRequest(rid="good", input_ids=[*begin, 9, 7], params=greedy())
    assert generate(assembly, [bad])["bad"][-1].finish_reason.type == "error"
    assert ids(generate(assembly, [good])["good"]) == ids(generate(build(folder), [good])["good"]) != []
    status = assembly.engine.status()
    assert (status.blocks_free, status.running) == (status.blocks_total, 0)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt_oss"])
def test_a_prefix_hit_changes_no_text(model_type: str, tmp_path: Path) -> None:
    assembly = build(save_model(tmp_path, model_type, **FAMILIES[model_type].changes))
    request = GenerateRequest(rid="a", input_ids=PROMPTS[0], params=greedy())
    first, second = (generate(assembly, [request])["a"] for _ in range(2))
    assert (first[0].cached_tokens, second[0].cached_tokens) == (0, len(PROMPTS[0]) - 1)
    assert ids(second) == ids(first)
    longer = GenerateRequest(rid="b", input_ids=[*PROMPTS[0], *ids(first), 42], params=greedy())
    output = generate(assembly, [longer])["b"]
    assert output[0].cached_tokens == len(PROMPTS[0]) + NEW_TOKENS - 1
    assembly.engine._scheduler.blocks.cache.flush()
    assert ids(generate(assembly, [longer])["b"]) == ids(output)


def test_samples_share_the_whole_blocks_of_their_prompt(tiny_model: Path) -> None:
    params = SamplingParams(max_new_tokens=4, temperature=1.0, n=4, ignore_eos=True)
    outputs = generate(build(tiny_model), [GenerateRequest(rid="n", input_ids=PROMPTS[0], params=params)])["n"]
    assert {o.index: o.cached_tokens for o in outputs} == {0: 0, 1: 16, 2: 16, 3: 16}
