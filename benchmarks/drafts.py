"""`python -m benchmarks.drafts`: what it gains to guess the next tokens, on real texts and on the bundled model.

Real texts are source files of packages that are installed here: one is the prompt, and another is written after it by
engines of Qwen3-0.6B's and Qwen3.5-0.8B's shapes, whose random weights compute as slowly as trained ones and whose
sampler is told each token. The vocabulary is learned from such files. The bundled model answers chats that it was not
trained on, the likeliest token each. Both kinds of steps take turns in one process on one thread, whose CPU time is
what is compared; prompts do not count.
"""

import itertools
import json
import random
import statistics
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from benchmarks import machine, shapes
from benchmarks.results import Results
from nbgen.demo import corpus
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine.sampler import Sampler
from nbgen.engine.sequence import Sequence
from nbgen.engine_config import BUNDLED_FOLDER, EngineConfig
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams

VOCABULARY = 32_000
SHAPES = ("q06", "d08")
PROMPT_TOKENS, NEW_TOKENS, TURNS = 1000, 100, 3
SEED, CHATS = 2**31, 12

Text = tuple[list[int], list[int]]


class Told(Sampler):
    """Takes the tokens of a text, whatever their scores."""

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def sample(self, scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
        prompt, answer = self._text
        return torch.tensor([answer[len(sequence) - len(prompt)] for sequence in sequences])


def texts() -> dict[str, list[Text]]:
    """Prompts with what is written after them."""
    families = _package("transformers") / "models"

    def source(family: str, kind: str = "modeling") -> Path:
        return families / family / f"{kind}_{family}.py"

    tokenizer = _learned([*families.glob("*/modeling_*.py")][:150])
    ids = {path: tokenizer.encode(path.read_text()).ids for path in [*families.glob("*/mod*.py")]}
    llama, others = ids[source("llama")], ("mistral", "olmo")
    modular = [(ids[source(name, "modular")], ids[source(name)]) for name in ("gemma2", "olmo2")]
    numbers = random.Random(SEED)
    rows = [{"name": f"row {i}", "kind": numbers.choice("abc"), "value": numbers.random()} for i in range(40)]
    prose = [path.read_text() for path in sorted(families.parent.parent.glob("*.dist-info/METADATA"))]
    return {
        "a file, much like one in the prompt": [_cut(llama, ids[source(name)], 0) for name in others],
        "a file that is generated from the prompt's": [_cut(*pair, 0) for pair in modular],
        "JSON, row after row": [_cut(tokenizer.encode(json.dumps(rows)).ids, [], 0)],
        "new code": [_cut(ids[source(name)], [], 2000) for name in ("mamba", "clip")],
        "READMEs of packages": [_cut(tokenizer.encode(text).ids, [], 0) for text in prose if len(text) > 12_000][:2],
    }


def _package(name: str) -> Path:
    found = find_spec(name)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _learned(files: list[Path]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False)
    tokenizer.train(list(map(str, files)), trainer)
    return tokenizer


def _cut(prompt: list[int], answer: list[int], start: int) -> Text:
    """As long as is measured, the text after their licences; without an answer, the prompt's own rest."""
    if not answer:
        prompt = prompt[start : start + PROMPT_TOKENS // 2 + NEW_TOKENS]
        return prompt[:-NEW_TOKENS], prompt[-NEW_TOKENS:]
    return prompt[300 : 300 + PROMPT_TOKENS], answer[500 : 500 + NEW_TOKENS]


def decode(assembly: Assembly, request: GenerateRequest, drafts: int) -> tuple[float, int, int]:
    """CPU seconds, tokens and steps after the first token, guessing so many."""
    engine = assembly.engine
    engine.flush_cache()
    engine._scheduler.draft_tokens = drafts
    engine.add(assembly.admission.sequences(request))
    while not any(output.token_ids for output in engine.step()):
        pass
    started, steps, tokens = time.process_time(), engine.steps, 0
    while engine.has_work:
        tokens += sum(len(output.token_ids) for output in engine.step())
    return time.process_time() - started, tokens, engine.steps - steps


def decode_all(assembly: Assembly, requests: list[GenerateRequest], drafts: int) -> tuple[float, ...]:
    """The sums of all requests' seconds, tokens and steps."""
    return tuple(map(sum, zip(*(decode(assembly, request, drafts) for request in requests), strict=True)))


def compare(assembly: Assembly, requests: list[GenerateRequest]) -> dict[str, float]:
    """Tokens for a CPU second without and with guesses, medians over the turns, and tokens a step with."""
    most = assembly.engine._scheduler.draft_tokens
    turns = []
    for _ in range(TURNS):
        (slow, expected, _), (fast, tokens, steps) = (decode_all(assembly, requests, drafts) for drafts in (0, most))
        assert tokens == expected, "guesses have changed an answer"
        turns.append((expected / slow, tokens / fast, tokens / steps))
    assembly.engine._scheduler.draft_tokens = most
    without, with_guesses, a_step = (statistics.median(turn[i] for turn in turns) for i in range(3))
    gain = statistics.median(turn[1] / turn[0] for turn in turns)
    return {"without": without, "with": with_guesses, "gain": gain, "tokens_a_step": a_step}


def told(assembly: Assembly, found: list[Text]) -> dict[str, float]:
    """The texts, written by a model that is told them."""
    rows = []
    for text in found:
        assembly.engine._launcher._sampler = Told(text)
        params = SamplingParams(max_new_tokens=len(text[1]), temperature=1.0, ignore_eos=True)
        rows.append(compare(assembly, [GenerateRequest(rid="r", input_ids=text[0], params=params)]))
    return {name: statistics.mean(row[name] for row in rows) for name in rows[0]}


def chats() -> list[GenerateRequest]:
    """Beginnings of documents of the bundled model's training, under another seed, up to an answer."""
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_FOLDER)
    params = SamplingParams(max_new_tokens=120, temperature=0.0)
    requests = []
    for document in itertools.islice(corpus.documents(SEED, corpus.EARLY), CHATS):
        asked = "".join(piece.text for piece in itertools.takewhile(lambda piece: not piece.learned, document))
        ids = tokenizer.encode(asked, add_special_tokens=False)
        requests.append(GenerateRequest(rid="r", input_ids=ids, params=params))
    return requests


def main() -> None:
    rows, found = {}, texts()
    for shape in SHAPES:
        config = EngineConfig(model=str(shapes.checkpoint(shape)), dtype="bfloat16", threads=1)
        large = assemble(config, lambda *_: None)
        rows |= {f"{title} ({shape})": told(large, texts) for title, texts in found.items()}
        large.close()
    rows["the bundled model's own answers"] = compare(assemble(EngineConfig(threads=1), lambda *_: None), chats())
    Results().keep("drafts", {"machine": machine.describe(), "rows": rows})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
