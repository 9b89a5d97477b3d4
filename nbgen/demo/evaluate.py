"""Measures the demo model on what training never showed it: `python -m nbgen.demo.evaluate`.

Prints a Markdown table of the share of right answers, of answers ended by the end token, and of right sampled answers.
"""

import argparse
import os
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from nbgen.demo import (
    arithmetic,
    chats,
    corpus,
    extraction,
    facts,
    function_chats,
    functions,
    intents,
    reviews,
    stories,
    tasks,
    unknown,
)
from nbgen.demo.exchanges import Message
from nbgen.demo.words import made_up_word, with_article

MODEL = Path(__file__).parent / "model"
SEED = 10**6
DRAWS = 100
TOGETHER = 50
LONGEST = 512


@dataclass(frozen=True)
class Case:
    """One chat to answer, and its right answers."""

    kind: str
    messages: list[Message]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Score:
    """What came of the cases of one kind."""

    kind: str
    cases: int
    right: float
    ended: float
    sampled: float


def question(kind: str, asked: str, *answers: str) -> Case:
    """A case of one question."""
    return Case(kind, [{"role": "user", "content": asked}], answers)


def intent_cases() -> list[Case]:
    """Every held-out phrasing of every intent."""
    titles = {
        "nbgen": "questions about nbgen",
        "jupyter": "questions about Jupyter and models",
        "code": "small pieces of Python",
        "talk": "small talk",
    }
    return [
        question(f"{titles[intent.topic]}, unseen phrasings", asked, *intent.answers)
        for intent in intents.intents()
        for asked in intent.held_out
    ]


def sum_cases() -> list[Case]:
    """One-digit sums: pairs unseen in their phrasing, and phrasings unseen altogether."""
    kinds = {
        "one-digit sums, pair unseen in this phrasing": arithmetic.held_out_sums(),
        "one-digit sums, unseen phrasings": arithmetic.held_out_phrasings(),
    }
    return [question(kind, *exchange) for kind, sums in kinds.items() for exchange in sums]


def task_cases(rng: random.Random) -> list[Case]:
    """Tasks drawn anew from their generators."""
    makers = {
        "sums with two digits": arithmetic.larger_sum,
        "differences": arithmetic.difference,
        "products": arithmetic.product,
        "counting": arithmetic.count,
        "JSON extraction": extraction.json_extraction,
        "sentiment of a review": reviews.sentiment,
        "repeating words": tasks.echo,
        "reversing a list": tasks.reversal,
        "capitals and other facts": facts.fact,
    }
    return [question(f"{kind}, fresh draws", *maker(rng)) for kind, maker in makers.items() for _ in range(DRAWS)]


def memory_cases(rng: random.Random) -> list[Case]:
    """Chats at whose end something is asked that was told before."""
    drawn = [chats.remembered(rng) for _ in range(DRAWS)]
    return [Case("something told earlier, fresh draws", chat[:-1], (chat[-1]["content"],)) for chat in drawn]


def call_cases(rng: random.Random) -> list[Case]:
    """Questions to one of the functions that a chat offers, and what is said of its result."""
    kinds = {
        "calls of functions": functions.any_function,
        "calls of functions with made-up names": lambda rng: functions.other_function(rng, made_up_word(rng)),
    }
    found = []
    for kind, maker in kinds.items():
        for _ in range(DRAWS):
            some = function_chats.distinct([maker(rng), *function_chats.offered(rng)])
            turns = function_chats.one_call(some[0], rng)
            start = function_chats.listing(rng.sample(some, len(some)))
            found.append(Case(f"{kind}, fresh draws", [start, turns[0]], (turns[1]["content"],)))
            found.append(Case("what a function returned, fresh draws", [start, *turns[:3]], (turns[3]["content"],)))
    return found


def unknown_cases(rng: random.Random) -> list[Case]:
    """Questions that it should say it cannot answer, of held-out templates."""
    return [
        question("says that it does not know, unseen phrasings", asked, *answers)
        for asked, answers in unknown.held_out(rng, 12)
    ]


def cases() -> list[Case]:
    """All cases, always the same."""
    rng = random.Random(SEED)
    return [*intent_cases(), *unknown_cases(rng), *sum_cases(), *task_cases(rng), *memory_cases(rng), *call_cases(rng)]


class Answerer:
    """A model and its tokenizer, asked many chats at a time."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()

    def answers(self, asked: list[Case], *, sampled: bool) -> list[tuple[str, bool]]:
        """The answer to each case, and whether it was ended; cases of like length go together."""
        order = sorted(range(len(asked)), key=lambda place: (asked[place].kind, len(str(asked[place].messages))))
        found: dict[int, tuple[str, bool]] = {}
        for start in range(0, len(order), TOGETHER):
            places = order[start : start + TOGETHER]
            found |= zip(places, self.batch([asked[place].messages for place in places], sampled=sampled), strict=True)
        return [found[place] for place in range(len(asked))]

    def batch(self, together: list[list[Message]], *, sampled: bool) -> list[tuple[str, bool]]:
        """The answers to some chats at once."""
        prompts = [corpus.rendered(corpus.chat_document(chat)) + corpus.ROLES["assistant"] for chat in together]
        inputs = self.tokenizer(prompts, add_special_tokens=False, padding=True, return_tensors="pt")
        greedy = {} if sampled else {"do_sample": False, "temperature": None, "top_p": None}
        outputs = self.model.generate(**inputs, max_new_tokens=LONGEST, **greedy)
        written = outputs[:, inputs["input_ids"].shape[1] :]
        ended = (written == self.tokenizer.eos_token_id).any(dim=1).tolist()
        return list(zip(self.tokenizer.batch_decode(written, skip_special_tokens=True), ended, strict=True))


def scores(answerer: Answerer, asked: list[Case]) -> list[Score]:
    """One score for each kind of case."""
    greedy, sampled = (answerer.answers(asked, sampled=how) for how in (False, True))
    return [score(kind, asked, greedy, sampled) for kind in dict.fromkeys(case.kind for case in asked)]


def score(kind: str, asked: list[Case], greedy: list[tuple[str, bool]], sampled: list[tuple[str, bool]]) -> Score:
    """The shares of one kind."""
    places = [place for place, case in enumerate(asked) if case.kind == kind]
    right, drawn = ([answers[place][0] in asked[place].answers for place in places] for answers in (greedy, sampled))
    ended = [greedy[place][1] for place in places]
    return Score(kind, len(places), *(sum(each) / len(places) for each in (right, ended, drawn)))


def story_score(answerer: Answerer, rng: random.Random) -> Score:
    """Whether stories are about the hero who was asked for."""
    heroes = [rng.choice(stories.HEROES) for _ in range(DRAWS)]
    asked = [question("stories with the right hero", f"Tell me a story about {with_article(hero)}.") for hero in heroes]
    greedy, sampled = (answerer.answers(asked, sampled=how) for how in (False, True))
    right, drawn = (
        [f" {hero} named " in text.split(".")[0] for hero, (text, _) in zip(heroes, answers, strict=True)]
        for answers in (greedy, sampled)
    )
    return Score(asked[0].kind, DRAWS, *(sum(each) / DRAWS for each in (right, [ended for _, ended in greedy], drawn)))


def table(found: list[Score]) -> str:
    """The scores in Markdown, with the share ended of them all."""
    rows = [
        f"| {each.kind} | {each.cases} | {each.right:.1%} | {each.ended:.1%} | {each.sampled:.1%} |" for each in found
    ]
    count = sum(each.cases for each in found)
    whole = [sum(getattr(each, name) * each.cases for each in found) / count for name in ("right", "ended", "sampled")]
    rows.append(f"| **all** | {count} | " + " | ".join(f"{share:.1%}" for share in whole) + " |")
    head = "| what | cases | right, greedy | ended, greedy | right, sampled |\n|---|---|---|---|---|"
    return "\n".join([head, *rows])


def measure(folder: Path, *, wrong: bool = False) -> str:
    """The table for the model in a folder; with `wrong`, greedy misses are printed as well."""
    torch.manual_seed(SEED)
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    answerer, asked = Answerer(folder), cases()
    if wrong:
        for case, (text, _) in zip(asked, answerer.answers(asked, sampled=False), strict=True):
            if text not in case.answers:
                print(f"{case.kind}: {case.messages[-1]['content']!r} gave {text!r}")
    return table([*scores(answerer, asked), story_score(answerer, random.Random(SEED))])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=MODEL, help="of the model (default: %(default)s)")
    parser.add_argument("--wrong", action="store_true", help="print the wrong greedy answers first")
    options = parser.parse_args()
    print(measure(options.folder, wrong=options.wrong))


if __name__ == "__main__":
    main()
