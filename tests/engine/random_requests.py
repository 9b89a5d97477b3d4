"""Random requests: with whatever options together, on prompts that have parts in common."""

import random
from collections import deque
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from nbgen.engine.assembly import Assembly
from nbgen.messages import GenerateRequest, LogprobOptions, Tensor, TensorOptions
from nbgen.sampling_params import SamplingParams
from nbgen.word_lists import WordLists
from tests.engine.test_logit_processors import wire

SCHEMA = {"type": "array", "items": {"enum": ["same", "again"]}, "minItems": 3, "maxItems": 9}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["a"],
        "tags": [{"type": "tag", "begin": "a", "content": {"type": "regex", "pattern": "(bc ){4}"}, "end": "a"}],
    },
}
GRAMMARS = {
    "regex": "((ab|cd) of some kind, ){2,6}",
    "json_schema": msgspec.json.encode(SCHEMA).decode(),
    "ebnf": 'root ::= ("ab " | "cde ")+',
    "structural_tag": msgspec.json.encode(TAG).decode(),
}

#: What requests want of the model's own numbers.
TENSORS = [
    TensorOptions(hidden_states=True),
    TensorOptions(generation_logits=True, last_hidden_state=True),
    TensorOptions(logits=True, logprobs=True, generation_hidden_states=True),
    TensorOptions(pooled="mean"),
    TensorOptions(pooled="last", hidden_states=True),
    TensorOptions(routed_experts=0),
    TensorOptions(routed_experts=1, generation_logits=True),
]

#: Prefers a token that depends on how long the answer is.
SHIFTED = """
    def __call__(self, logits, custom_param_list):
        for row, params in enumerate(custom_param_list):
            logits[row, 40 + len(params["__req__"].output_ids) % 3] += 20
        return logits
"""


class Place(NamedTuple):
    """Two engines of one model: one guesses, the other never does."""

    guessing: Assembly
    plain: Assembly
    grammars: list[str]
    #: Folders by their names.
    adapters: dict[str, Path]
    #: Tokens of a prompt and its answer.
    longest: int
    #: The latest prompts, and what was answered, for others to begin with.
    said: deque[list[int]]
    #: Whether numbers depend a little on what is computed beside them.
    rounds: bool

    def shows(self, tensors: TensorOptions) -> bool:
        """Whether the model has such."""
        return tensors.routed_experts is None or self.plain.model.routed_experts > 0


class Draw:
    """A random request."""

    def __init__(self, rng: random.Random, place: Place) -> None:
        self._rng, self._place = rng, place

    def request(self, rid: str) -> GenerateRequest:
        rng = self._rng
        fields = {"rid": rid, "streamed": rng.random() < 0.5, "priority": rng.choice([0, 0, 1]), **self._more()}
        prompt = self._prompt()
        room = self._place.longest - len(prompt)
        given = self._text()[: room - 1] if rng.random() < 0.1 else []
        params = self._params(room - len(given))
        fields["prefix_ids"] = [] if params.grammar else given  # which a grammar might forbid
        if rng.random() < 0.06 and not params.grammar and self._place.plain.model.embed_size:
            values = np.random.default_rng(rng.randrange(99)).standard_normal((len(prompt), 64), np.float32)
            return GenerateRequest(**fields, input_embeds=tensor(values), params=params)
        return GenerateRequest(**fields, input_ids=prompt, params=params)

    def _prompt(self) -> list[int]:
        """A text of its own, or as much of one before it and then another."""
        rng, said = self._rng, self._place.said
        prompt = self._text()
        if said and rng.random() < 0.4:
            known = rng.choice(said)
            prompt = (known[: rng.randint(1, len(known))] + prompt[: rng.choice([0, 1, 9])])[: self._place.longest - 1]
        said.append(prompt)
        return prompt

    def _text(self) -> list[int]:
        rng = self._rng
        few = [rng.randrange(4, 250) for _ in range(rng.randint(1, 12))]
        length = rng.randint(1, self._place.longest - 1) if rng.random() < 0.7 else rng.randint(1, 20)
        if rng.random() < 0.3:
            return [rng.choice(few) for _ in range(length)]
        return [few[i % len(few)] for i in range(length)]

    def _params(self, room: int) -> SamplingParams:
        rng = self._rng
        budget = rng.choice([0, 1]) if rng.random() < 0.06 else rng.randint(1, min(room, 90))
        chosen: dict[str, object] = {"max_new_tokens": budget, "ignore_eos": rng.random() < 0.5, "custom_params": {}}
        chosen |= {"temperature": 0.0} if rng.random() < 0.5 else self._drawn()
        for options in self._options():
            if rng.random() < 0.12:
                chosen |= options
        if rng.random() < 0.2 and self._place.grammars:
            kind = rng.choice(self._place.grammars)
            chosen |= {kind: GRAMMARS[kind], "ignore_eos": False}
        return SamplingParams(**chosen)

    def _drawn(self) -> dict[str, object]:
        rng = self._rng
        few = dict.fromkeys(rng.sample(range(30, 60), rng.randint(1, 3)), 40.0) if rng.random() < 0.7 else {}
        return {
            "temperature": rng.choice([0.3, 1.0, 3.0]),
            "sampling_seed": rng.randrange(99),
            "logit_bias": few,
            **rng.choice([{}, {"top_p": 0.9}, {"top_k": 4}, {"min_p": 0.02}, {"top_p": 0.8, "top_k": 40}]),
        }

    def _options(self) -> list[dict[str, object]]:
        rng = self._rng
        return [
            {"n": rng.randint(2, 3)},
            {"frequency_penalty": 0.05, "presence_penalty": 0.1, "repetition_penalty": 1.05},
            {"min_new_tokens": rng.randint(1, 30), "ignore_eos": False},
            {"stop": (chr(rng.randrange(33, 120)),)},
            {"stop_regex": (chr(rng.randrange(65, 120)) + "[a-z]",)},
            {"stop_token_ids": tuple(rng.sample(range(1, 250), 40)), "ignore_eos": False},
            {"stop_token_ids": (45,), "ignore_eos": False, "no_stop_trim": True},
            {"logit_bias": {rng.randrange(1, 250): 30.0}},
            {"skip_special_tokens": False, "logit_bias": dict.fromkeys(range(4), 20.0)},
        ]

    def _more(self) -> dict[str, object]:
        rng = self._rng
        chosen: dict[str, object] = {}
        if rng.random() < 0.5:
            top, start, tokens = rng.choice([0, 3]), rng.choice([None, None, 0, 1]), rng.choice([[], [], [5, 9]])
            chosen["logprobs"] = LogprobOptions(top=top, start=start, token_ids=tokens, text=rng.random() < 0.3)
        if rng.random() < 0.08:
            chosen["tensors"] = rng.choice([each for each in TENSORS if self._place.shows(each)])
        if rng.random() < 0.06:
            chosen["logit_processor"] = wire(SHIFTED)
        if rng.random() < 0.1:
            stops = [[rng.randrange(40, 90)] for _ in range(rng.choice([0, 2]))]
            bad = [rng.randrange(4, 250), rng.randrange(4, 250)]
            chosen["words"] = WordLists(
                bad=[chr(rng.randrange(65, 120)), "ab"], bad_ids=[bad], stop_ids=stops, in_order=rng.random() < 0.5
            )
        if rng.random() < 0.25 and self._place.adapters:
            chosen["adapter"] = rng.choice([*self._place.adapters])
        chosen["namespace"] = rng.choice([(), (), (), ("a",)])
        return chosen | {"echo": rng.random() < 0.1, "prompt_ids": rng.random() < 0.1}


def tensor(values: np.ndarray) -> Tensor:
    return Tensor("input_embeds", "FP32", list(values.shape), values.tobytes())
