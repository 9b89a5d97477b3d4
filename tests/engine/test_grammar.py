"""Constrained answers match what constrains them, with every back end; the others never notice."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from nbgen.engine.assembly import Assembly
from nbgen.engine.grammar import Grammar
from nbgen.errors import InvalidRequest
from nbgen.messages import FinishReason, GenerateRequest, LogprobOptions
from nbgen.sampling_params import SamplingParams
from tests.conftest import SPECIAL_TOKENS, save_model
from tests.engine.conftest import Outputs, build, constrain, generate, ids, text

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"leaf": {"enum": ["a", "b"]}, "left": {"$ref": "#"}},
    "required": ["leaf"],
}
DAY = {"type": "string", "format": "date"}
EOS = 0


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def engine(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Assembly]:
    assembly = build(tiny_model, grammar_backend=request.param)
    yield assembly
    assembly.grammars.close()


def constrained(assembly: Assembly, *requests: GenerateRequest) -> Outputs:
    """As `generate`, with each request's grammar compiled first."""
    admit = assembly.admission.sequences

    class Admission:
        def sequences(self, request: GenerateRequest) -> list:
            sequences = admit(request)
            constrain(assembly, sequences)
            return sequences

    return generate(assembly._replace(admission=Admission()), list(requests))


def ask(rid: str = "r", *, logprobs: LogprobOptions | None = None, **options: object) -> GenerateRequest:
    params = SamplingParams.parse({"max_new_tokens": 120, "sampling_seed": 5, **options})
    return GenerateRequest(rid=rid, input_ids=[10, 20, 30], params=params, logprobs=logprobs)


def ended(outputs: list, index: int = 0) -> FinishReason:
    return next(output.finish_reason for output in outputs if output.index == index and output.finish_reason)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"regex": r"[0-9]{3}-[a-f]+!"}, r"[0-9]{3}-[a-f]+!"),
        ({"regex": r"^(yes|no)$"}, r"yes|no"),
        ({"regex": r"[0-9]\$"}, r"[0-9]\$"),
        ({"regex": r"[0-9]\\$"}, r"[0-9]\\"),
        ({"regex": "[a-zé]{4}ß?"}, "[a-zé]{4}ß?"),
        ({"ebnf": 'root ::= greeting " " name\ngreeting ::= "hi" |\n  "hello"\nname ::= [A-Z] [a-z]{2,4}'}, None),
        ({"ebnf": 'root ::= "(" root ")" | "x"'}, r"\(*x\)*"),
    ],
)
def test_the_whole_answer_matches(engine: Assembly, options: dict[str, str], pattern: str | None) -> None:
    for seed in range(4):
        outputs = constrained(engine, ask(**options, sampling_seed=seed))["r"]
        assert re.fullmatch(pattern or "(hi|hello) [A-Z][a-z]{2,4}", text(outputs)), text(outputs)
        assert ended(outputs) == FinishReason(type="stop", matched=EOS)


@pytest.mark.parametrize("schema", [PERSON, TREE, {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}])
def test_json_follows_its_schema(engine: Assembly, schema: dict[str, object]) -> None:
    outputs = constrained(engine, ask(json_schema=json.dumps(schema), n=3))["r"]
    for index in range(3):
        if ended(outputs, index).type == "stop":
            jsonschema.validate(json.loads(text(outputs, index)), schema)
        else:
            assert ended(outputs, index) == FinishReason(type="length", length=120, incomplete=True)
    assert len({text(outputs, index) for index in range(3)}) > 1, "each sample has a matcher of its own"


def test_forty_constrained_and_free_requests_at_once(engine: Assembly) -> None:
    kinds = [{"json_schema": json.dumps(PERSON)}, {"regex": "[ab]{5,9}"}, {"ebnf": 'root ::= "x" | "y" root'}, {}]
    requests = [ask(f"r{i}", **kinds[i % 4], sampling_seed=i, temperature=i % 2) for i in range(40)]
    together = constrained(engine, *requests)
    for i, request in enumerate(requests):
        answer, reason = text(together[request.rid]), ended(together[request.rid])
        if i % 4 < 3:
            assert reason.type == "stop" or reason == FinishReason(type="length", length=120, incomplete=True)
        if i % 4 == 0 and reason.type == "stop":
            jsonschema.validate(json.loads(answer), PERSON)
        if i % 4 == 1:
            assert re.fullmatch("[ab]{5,9}", answer)
        if i % 8 >= 6:  # a few alone again, free ones among them
            assert ids(constrained(engine, request)[request.rid]) == ids(together[request.rid])


def test_structural_tags_constrain_what_follows_a_trigger(engine: Assembly) -> None:
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": PERSON, "end": "</f>"}],
        "triggers": ["<f"],
    }
    forced = dict.fromkeys(engine.admission._tokenizer.encode("<"), 100.0)
    outputs = constrained(engine, ask(structural_tag=json.dumps(tag), logit_bias=forced, max_new_tokens=20))["r"]
    assert text(outputs).startswith("<"), "free text comes first"


def test_the_forms_of_structural_tags(tiny_model: Path) -> None:
    engine = build(tiny_model)
    elements = [{"type": "const_string", "value": "n="}, {"type": "regex", "pattern": "[0-9]{2}"}]
    sequence = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    once = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"enum": [7]}, "end": "</f>"}],
        "triggers": ["<f>"],
        "at_least_one": True,
    }
    try:
        assert re.fullmatch("n=[0-9]{2}", text(constrained(engine, ask(structural_tag=json.dumps(sequence)))["r"]))
        assert "<f>7</f>" in text(constrained(engine, ask(structural_tag=json.dumps(once), temperature=0))["r"])
        tag = json.dumps(sequence).replace("n=", "<|user|>").replace("[0-9]{2}", ".{40}")
        biased = {1: 50.0, 2: 40.0, 3: 50.0}
        first, *others = ids(constrained(engine, ask(structural_tag=tag, logit_bias=biased))["r"])
        assert first == SPECIAL_TOKENS.index("<|user|>")
        assert not {1, 3}.intersection(others)
    finally:
        engine.grammars.close()


def test_a_complete_grammar_ends_the_answer_where_end_tokens_do_not(engine: Assembly) -> None:
    outputs = constrained(engine, ask(regex="abc", ignore_eos=True))["r"]
    assert (text(outputs), ended(outputs)) == ("abc", FinishReason(type="stop", matched=EOS))


def test_a_stop_string_ends_it_earlier(engine: Assembly) -> None:
    outputs = constrained(engine, ask(regex="abcdef", stop=["cd"]))["r"]
    assert (text(outputs), ended(outputs)) == ("ab", FinishReason(type="stop", matched="cd"))


def test_what_nothing_can_satisfy_fails_alone(engine: Assembly) -> None:
    """The grammar leaves only the end, and `min_new_tokens` forbids it."""
    outputs = constrained(engine, ask("bad", regex="ab", min_new_tokens=9), ask("good", regex="ab"))
    assert ended(outputs["bad"]).type == "error"
    assert "min_new_tokens" in (ended(outputs["bad"]).message or "")
    assert text(outputs["good"]) == "ab"


def test_a_bias_cannot_break_the_grammar(engine: Assembly) -> None:
    biased = {engine.admission._tokenizer.encode("z")[0]: 100.0}
    assert set(text(constrained(engine, ask(regex="[ab]{8}", logit_bias=biased))["r"])) <= {"a", "b"}


@pytest.mark.parametrize("skipped", [True, False])
def test_a_special_token_counts_as_what_it_is_in_the_text(engine: Assembly, skipped: bool) -> None:
    schema = {"type": "string", "minLength": 9, "maxLength": 20}
    biased = dict.fromkeys(range(1, len(SPECIAL_TOKENS)), 50.0)
    options = {"json_schema": json.dumps(schema), "logit_bias": biased, "skip_special_tokens": skipped, "n": 8}
    outputs = constrained(engine, ask(**options))["r"]
    for index in range(8):
        assert ended(outputs, index).type == "stop"
        jsonschema.validate(json.loads(text(outputs, index)), schema)


def test_logprobs_are_those_of_what_is_allowed(engine: Assembly) -> None:
    outputs = constrained(engine, ask(regex="[ab]{3}", logprobs=LogprobOptions(top=3)))["r"]
    for entry in [entry for output in outputs for entry in output.logprobs][:3]:
        first, second, third = [value for value, _, _ in entry.top]
        assert math.exp(first) + math.exp(second) == pytest.approx(1, abs=1e-5)
        assert third == -math.inf


def test_preemption_keeps_the_place_in_the_grammar(tiny_model: Path) -> None:
    layers, keys_and_values, block_size, heads, head_dim, float32 = 2, 2, 16, 2, 16, 4
    block = layers * keys_and_values * block_size * heads * head_dim * float32
    engine = build(tiny_model, kv_cache_bytes=6 * block)
    try:
        # Different prompts: equal ones would share their blocks.
        requests = [
            msgspec.structs.replace(ask(f"r{i}", regex="[ab]{40}c", temperature=0), text=f"{i} and more")
            for i in range(3)
        ]
        outputs = constrained(engine, *requests)
        assert engine.engine.status().preemptions > 0
        assert all(re.fullmatch("[ab]{40}c", text(outputs[f"r{i}"])) for i in range(3))
    finally:
        engine.grammars.close()


def save_sentencepiece(folder: Path) -> None:
    """Replace the folder's tokenizer by one with `▁` for spaces and bytes to fall back on."""
    letters = [chr(code) for code in range(33, 127)]
    tokens = ["</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁he", "llo", *letters]
    model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>").save_pretrained(folder)


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_sentencepiece_and_rows_that_no_token_has(backend: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, vocab_size=400)
    save_sentencepiece(folder)
    engine = build(folder, grammar_backend=backend)
    try:
        for seed in range(3):
            outputs = constrained(engine, ask(regex="[a-z]{2} é[0-9]{2}", sampling_seed=seed))["r"]
            assert re.fullmatch("[a-z]{2} é[0-9]{2}", text(outputs).lstrip()), text(outputs)
            assert max(ids(outputs)) < 400 - 40
    finally:
        engine.grammars.close()


def test_a_back_end_of_none_and_one_that_is_unknown(tiny_model: Path) -> None:
    assert build(tiny_model, grammar_backend="none").grammars is None
    with pytest.raises(Exception, match="xgrammar, llguidance or none"):
        build(tiny_model, grammar_backend="outlines")


@pytest.mark.parametrize(
    ("kind", "grammar", "words"),
    [
        ("json_schema", '{"type":', "json grammar: the json text is not JSON"),
        ("json_schema", '{"type": "foo"}', "json grammar"),
        ("json_schema", '{"enum": []}', "json grammar"),
        ("regex", "(", "regex grammar"),
        ("regex", r"(a)\1", "regex grammar"),
        ("regex", "(?=a)b", "regex grammar"),
        ("regex", r"[^\s\S]", "matches no text"),
        ("ebnf", 'rot ::= "a"', "ebnf grammar"),
        ("ebnf", "root ::= root", "matches no text"),
        ("structural_tag", '{"format": {"type": "nothing"}}', "structural_tag grammar"),
    ],
)
def test_a_grammar_that_cannot_be_is_refused_in_words(engine: Assembly, kind: str, grammar: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match="Failed to compile") as raised:
        engine.grammars.submit(Grammar(kind, grammar)).result()
    assert words in raised.value.message
    assert not re.search(r"\.cc|0x|Traceback|site-packages", raised.value.message)


def test_any_json_may_be_asked_for_by_the_schema_true(engine: Assembly) -> None:
    compiled = engine.grammars.submit(Grammar("json_schema", "true")).result()
    for value in ("[1, null]", '"a"'):
        ids = engine.admission._tokenizer.encode(value)
        assert compiled.matcher().num_allowed(ids) == len(ids)
    with pytest.raises(InvalidRequest, match=r"(?i)schema .*false"):
        engine.grammars.submit(Grammar("json_schema", "false")).result()


def test_llguidance_says_what_is_wrong_with_a_regex(tiny_model: Path) -> None:
    engine = build(tiny_model, grammar_backend="llguidance")
    try:
        for regex, words in (("(", "unclosed group"), (r"(a)\1", "backreferences are not supported")):
            with pytest.raises(InvalidRequest, match=words):
                engine.grammars.submit(Grammar("regex", regex)).result()
    finally:
        engine.grammars.close()


def test_who_does_not_read_larks_grammars_says_who_does(tiny_model: Path) -> None:
    engines = [build(tiny_model, grammar_backend=name) for name in ("xgrammar", "llguidance")]
    try:
        refused, taken = (engine.grammars.submit(Grammar("ebnf", 'start: "a"')) for engine in engines)
        with pytest.raises(InvalidRequest, match=r"--grammar-backend=llguidance"):
            refused.result()
        assert taken.result()
    finally:
        for engine in engines:
            engine.grammars.close()


def test_times_are_ones_that_exist(engine: Assembly) -> None:
    schema = {"type": ["string", "null"], "format": "time"}
    compiled = engine.grammars.submit(Grammar("json_schema", json.dumps(schema))).result()
    for time, exists in (("23:59:59Z", True), ("23:59:60Z", False), ("10:00:00.1234567Z", False)):
        ids = engine.admission._tokenizer.encode(json.dumps(time))
        assert (compiled.matcher().num_allowed(ids) == len(ids)) is exists


def test_what_is_lenient_is_held_to_what_the_back_end_knows(engine: Assembly) -> None:
    lenient = {"x-guidance": {"lenient": True}}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}, "day": DAY},
        "required": ["day"],
    }
    assert engine.grammars.submit(Grammar("json_schema", json.dumps(schema | lenient))).result()
    assert engine.grammars.submit(Grammar("json_schema", json.dumps({**PERSON, **lenient}))).result()


def test_who_does_not_take_a_form_of_tags_says_who_does(tiny_model: Path) -> None:
    engine = build(tiny_model, grammar_backend="llguidance")
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    try:
        with pytest.raises(InvalidRequest, match=r"--grammar-backend=xgrammar"):
            engine.grammars.submit(Grammar("structural_tag", json.dumps(tag))).result()
    finally:
        engine.grammars.close()


@pytest.mark.parametrize("ends", ["abort", "pause", "late"])
def test_who_waits_for_a_grammar_may_be_ended(ends: str, tiny_model: Path) -> None:
    engine = build(tiny_model, queue_seconds=0.0).engine
    admitted = build(tiny_model).admission.sequences(ask("waits", n=2))
    assert engine.add(admitted, prepared=False) == []
    end = {"abort": lambda: engine.abort("waits"), "pause": lambda: engine.pause("abort"), "late": engine.end_late}
    outputs = end[ends]()
    assert [output.index for output in outputs] == [0, 1]
    assert {output.finish_reason.type for output in outputs} == {"error" if ends == "late" else "abort"}
    engine.begin(admitted)
    assert engine.status().waiting == 0


def test_what_the_context_does_not_hold_is_cut_where_the_owner_says_so(tiny_engine: Assembly) -> None:
    prompt = [10 + i % 200 for i in range(5000)]
    params = SamplingParams(max_new_tokens=4000)
    request = GenerateRequest(rid="r", input_ids=prompt, params=params)
    with pytest.raises(InvalidRequest, match="longer than the model's context length"):
        tiny_engine.admission.sequences(request)
    (sequence,) = tiny_engine.admission.sequences(msgspec.structs.replace(request, truncate=True))
    assert sequence.prompt_ids == prompt[: len(sequence.prompt_ids)]
    assert sequence.budget == 1
    (short,) = tiny_engine.admission.sequences(msgspec.structs.replace(request, input_ids=prompt[:9], truncate=True))
    assert (short.num_prompt, short.budget) == (9, len(sequence.prompt_ids) + 1 - 9)
    texts = [
        msgspec.structs.replace(request, input_ids=None, text=text, truncate=True) for text in ("é" * 4000, "é" * 10**6)
    ]
    some, more = [tiny_engine.admission.sequences(each)[0].prompt_ids for each in texts]
    assert some == more
    with pytest.raises(InvalidRequest, match="longer than the model's context length"):
        tiny_engine.admission.sequences(msgspec.structs.replace(texts[1], truncate=False))
