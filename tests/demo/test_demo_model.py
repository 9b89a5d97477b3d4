"""The shipped demo model: its folder, its tokenizer, some of its answers; and the text it was trained on."""

import json
import logging
import random
import re
import warnings
from itertools import islice
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

import nbgen.demo
from nbgen.demo import (
    arithmetic,
    batches,
    corpus,
    evaluate,
    exchanges,
    function_chats,
    intents,
    phrasing,
    tokenizer,
    unknown,
)
from nbgen.messages import ChatMessage, GenerateRequest
from nbgen.notebook.schema import Schema
from nbgen.notebook.tools import Tools
from nbgen.sampling_params import SamplingParams
from tests.engine.conftest import build, constrain

FOLDER = Path(nbgen.demo.__file__).parent / "model"
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "README.md",
}
ODD_TEXTS = [
    "日本語のテキスト 😀👩‍👩‍👧",
    "  two  spaces\tand\r\nlines\n\n",
    "naïve café ß €½",
    "\u202eright to left \u0301",
    "1, 2, 30 + 4.5",
    "\x00\x7f",
    "a" * 300,
    "",
]


@pytest.fixture(scope="module")
def answerer():
    return evaluate.Answerer(FOLDER)


@pytest.fixture(scope="module")
def shipped():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def text():
    """Some of the training text of both mixes, each document by itself."""
    mixes = (corpus.EARLY, corpus.LATE)
    return [corpus.rendered(pieces) for mix in mixes for pieces in islice(corpus.documents(0, mix), 5000)]


def ask(answerer, *messages):
    case = evaluate.Case("", [{"role": role, "content": content} for role, content in messages], ())
    return answerer.answers([case], sampled=False)[0]


def test_folder_holds_only_what_a_model_needs():
    assert {path.name for path in FOLDER.iterdir()} == FILES


def test_weights_are_small_bf16_llama():
    config = json.loads((FOLDER / "config.json").read_text())
    assert (FOLDER / "model.safetensors").stat().st_size <= 12_000_000
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")


def test_loads_without_a_warning():
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    transformers_logging.add_handler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model, loading = AutoModelForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
            AutoTokenizer.from_pretrained(FOLDER)
    finally:
        transformers_logging.remove_handler(handler)
    assert not records
    assert not any(loading.values())
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("odd", ODD_TEXTS)
def test_tokenizer_gives_any_text_back(shipped, odd):
    assert shipped.decode(shipped(odd, add_special_tokens=False)["input_ids"]) == odd


def test_digits_are_single_tokens(shipped):
    assert shipped.tokenize("2024+7", add_special_tokens=False) == ["2", "0", "2", "4", "+", "7"]


def test_bare_text_begins_with_the_begin_token(shipped):
    assert shipped("Once")["input_ids"][0] == shipped.bos_token_id


def test_chat_template_renders_the_roles(shipped):
    messages = [{"role": role, "content": role[0]} for role in ("system", "user", "assistant")]
    rendered = shipped.apply_chat_template([*messages, messages[1]], tokenize=False, add_generation_prompt=True)
    assert rendered == "<|begin|><|system|>s<|end|><|user|>u<|end|><|assistant|>a<|end|><|user|>u<|end|><|assistant|>"


def test_chat_template_takes_text_parts_and_refuses_other_roles(shipped):
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert "<|user|>hello<|end|>" in shipped.apply_chat_template(parts, tokenize=False)
    with pytest.raises(Exception, match="roles are system, user, assistant and tool, not critic"):
        shipped.apply_chat_template([{"role": "critic", "content": "x"}], tokenize=False)


def test_chat_template_shows_functions_by_their_signatures(shipped):
    def forecast(city: str, days: int = 1, units=None) -> str:
        """The weather in a city.

        By the day.
        """

    def now() -> str: ...

    rendered = shipped.apply_chat_template(
        [{"role": "user", "content": "hello"}], tools=Tools([forecast, now]).json, tokenize=False
    )
    shown = "forecast(city: string, days?: integer, units?: any) The weather in a city.\nnow()"
    assert rendered == f"<|begin|><|tools|>{shown}<|end|><|user|>hello<|end|>"


def test_training_sees_what_the_chat_template_renders(shipped):
    chat = exchanges.messages([("Hello", "Hi")], "Be kind.")
    assert corpus.rendered(corpus.chat_document(chat)) == shipped.apply_chat_template(chat, tokenize=False)


def test_training_sees_calls_as_the_chat_template_renders_them(shipped):
    """Whatever functions a chat offers, told as OpenAI's JSON."""
    rng = random.Random(3)
    for _ in range(200):
        some = function_chats.offered(rng)
        turns = [turn for function in some for turn in function_chats.two_calls(function, rng)]
        told = [openai_turn(turn) for turn in turns]
        written = shipped.apply_chat_template(told, tools=[openai_tool(each) for each in some], tokenize=False)
        assert written == corpus.rendered(corpus.chat_document([function_chats.listing(some), *turns]))


def openai_tool(function):
    """A function of the training text as OpenAI's API has it."""
    properties = {
        each.name: {"enum": each.options} if each.options else {"type": each.type} for each in function.arguments
    }
    required = [name for name in properties if name not in function.optional]
    parameters = {"type": "object", "properties": properties, "required": required}
    told = {"name": function.name, "description": function.tells, "parameters": parameters}
    return {"type": "function", "function": told}


def openai_turn(turn):
    """A turn of the training text as OpenAI's API has it."""
    calls = [json.loads(call) for call in re.findall("<tool_call>(.*?)</tool_call>", turn["content"])]
    told = [{"type": "function", "function": call} for call in calls]
    return {"role": turn["role"], "content": None, "tool_calls": told} if calls else turn


def test_only_answers_are_learned(shipped):
    one = batches.sample(corpus.chat_document(exchanges.messages([("Hello", "Bye")])), shipped.backend_tokenizer)
    learned = [token for token, yes in zip(one.ids, one.learned, strict=True) if yes]
    assert shipped.decode(learned) == "Bye<|end|>"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("What is nbgen?", "runs a language model from a Jupyter notebook"),
        ("Hello", "Hello!"),
        ("What is 3 + 4?", "3 + 4 = 7"),
        ("How do I stop an answer?", "**Stop**"),
        ("How do I load a model?", "%nbgen load"),
        ("What is a kernel?", "runs the code"),
        ("Count from 1 to 20", ", ".join(map(str, range(1, 21)))),
        ("Tell me a story about a fox", " fox named "),
    ],
)
def test_answers_are_right_and_ended(answerer, asked, words):
    answer, ended = ask(answerer, ("user", asked))
    assert words in answer
    assert ended


def test_long_answer_runs_past_two_hundred_tokens(answerer):
    answer, ended = ask(answerer, ("user", "Count from 1 to 100."))
    assert answer == ", ".join(map(str, range(1, 101)))
    assert ended
    assert len(answerer.tokenizer(answer)["input_ids"]) > 200


def test_extracted_json_is_json(answerer):
    answer, _ = ask(answerer, ("user", "Extract name and age as JSON: Ada is 36 years old."))
    assert json.loads(answer) == {"name": "Ada", "age": 36}


def test_function_is_called_and_its_result_told(answerer):
    offered = ("tools", "forecast(city: string) The weather in a city.\nadd(a: integer, b: integer) Adds two numbers.")
    called = '<tool_call>{"name": "forecast", "arguments": {"city": "Oslo"}}</tool_call>'
    assert ask(answerer, offered, ("user", "Will it rain in Oslo?")) == (called, True)
    assert ask(answerer, offered, ("user", "What is nbgen?"))[0].startswith("nbgen")
    turns = (("user", "Will it rain in Oslo?"), ("assistant", called), ("tool", "12 degrees and rain"))
    assert ask(answerer, offered, *turns) == ("The answer is 12 degrees and rain.", True)


def test_name_is_remembered(answerer):
    answer, _ = ask(
        answerer,
        ("user", "My name is Ada."),
        ("assistant", "Hello Ada! How can I help you?"),
        ("user", "What is my name?"),
    )
    assert answer == "Your name is Ada."


def test_system_prompt_changes_the_answer(answerer):
    answer, _ = ask(answerer, ("system", "You are a pirate."), ("user", "What is nbgen?"))
    assert answer.startswith("Arr, matey!")


def test_plain_text_is_continued(answerer):
    inputs = answerer.tokenizer("1, 2, 3", return_tensors="pt")
    written = answerer.model.generate(**inputs, do_sample=False, temperature=None, top_p=None, max_new_tokens=12)
    assert answerer.tokenizer.decode(written[0], skip_special_tokens=True).startswith("1, 2, 3, 4, 5, 6, 7,")


def test_corpus_is_the_same_for_one_seed():
    first, second, other = (list(islice(corpus.documents(seed, corpus.LATE), 100)) for seed in (7, 7, 8))
    assert first == second != other


def test_tokenizer_is_the_same_for_one_seed(monkeypatch):
    monkeypatch.setattr(tokenizer, "SAMPLE", 1000)
    assert tokenizer.trained(3).to_str() == tokenizer.trained(3).to_str()


def asked_by_users(text):
    """What the users of chats say."""
    return [turn.split("<|end|>")[0] for document in text for turn in document.split("<|user|>")[1:]]


def test_held_out_phrasings_are_not_in_the_training_text(text):
    assert len(intents.held_out_texts()) > 500
    assert not [turn for turn in asked_by_users(text) if intents.holds_held_out(turn)]


def test_every_intent_keeps_phrasings_for_both():
    assert all(len(intent.trained) >= 9 and len(intent.held_out) >= 2 for intent in intents.intents())


def test_held_out_sums_and_templates_are_not_in_the_training_text(text):
    """But where a function adds."""
    turns = set(asked_by_users([document for document in text if corpus.ROLES["tools"] not in document]))
    drawn = unknown.held_out(random.Random(0), 50)
    assert not turns & {asked for asked, _ in arithmetic.held_out_sums() + arithmetic.held_out_phrasings() + drawn}


def test_every_digit_pair_is_held_out_of_some_phrasing_only():
    places = range(len(arithmetic.say.sums))
    kept = [sum(arithmetic.is_held_out(a, b, place) for place in places) for a in range(10) for b in range(10)]
    assert min(kept) > 0
    assert max(kept) < len(places) / 2


def test_variations_of_a_phrasing_keep_most_of_its_words():
    rng, asked = random.Random(0), "How do I stop a long answer of the panel?"
    varied = [set(phrasing.normal(phrasing.vary(asked, rng)).split()) for _ in range(300)]
    assert sum(len(words & {"stop", "long", "answer", "panel"}) >= 2 for words in varied) > 270


class Person(msgspec.Struct):
    name: str
    city: str


def test_it_answers_the_readmes_question_for_an_object() -> None:
    schema, assembly = Schema(Person), build(FOLDER)
    asked = [ChatMessage(role="user", content="Anna lives in Rome.")]
    for seed in range(10):
        params = SamplingParams(json_schema=schema.json, sampling_seed=seed)
        (sequence,) = assembly.admission.sequences(GenerateRequest(rid=str(seed), messages=asked, params=params))
        constrain(assembly, [sequence])
        outputs = list(assembly.engine.add([sequence]))
        while assembly.engine.has_work:
            outputs += assembly.engine.step()
        assert schema.parse("".join(output.text for output in outputs)) == Person("Anna", "Rome")
