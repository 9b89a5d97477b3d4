"""Whatever requests come together, and whenever: with guesses each gets what it gets alone where nothing is guessed."""

import random
from collections import deque
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from nbgen.engine.adapter_folder import Adapter
from nbgen.engine.assembly import Assembly
from nbgen.messages import GenerateOutput, GenerateRequest
from tests.adapters import save_adapter
from tests.conftest import save_model
from tests.engine.conftest import build, constrain
from tests.engine.disturbances import DISTURBANCES, disarm
from tests.engine.random_requests import GRAMMARS, Draw, Place
from tests.engine.test_native_decoder import DTYPES, TAKEN
from tests.soak import TIMES, seldom

#: Of each kind of engine.
SCENARIOS = 5 * TIMES
#: Of two layers' keys and values: 16 tokens of two heads of 16 numbers.
BLOCK_BYTES = {"float32": 2 * 2 * 16 * 2 * 16 * 4, "bfloat16": 2 * 2 * 16 * 2 * 16 * 2}

Found = dict[tuple[str, int], list[GenerateOutput]]


class Run:
    """Requests on their way through one engine."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly, self.engine = assembly, assembly.engine
        self.found: Found = {}
        self._unloaded: list[Adapter] = []

    def add(self, request: GenerateRequest) -> None:
        sequences = self._assembly.admission.sequences(request)
        constrain(self._assembly, sequences)
        self.keep(self.engine.add(sequences))

    def keep(self, outputs: list[GenerateOutput]) -> None:
        for output in outputs:
            self.found.setdefault((output.rid, output.index), []).append(output)

    def step(self) -> None:
        self.keep(self.engine.step())

    def reload(self, name: str, folder: Path) -> None:
        """Have another version of an adapter, beside the one that some may still use."""
        self._unloaded.append(self._assembly.adapters.unload(name))
        self.engine.install(self._assembly.adapters.load(name, str(folder)))

    def let_go(self) -> None:
        """Take out the versions that nobody uses any more."""
        for adapter in [adapter for adapter in self._unloaded if not self.engine.uses(adapter)]:
            self._unloaded.remove(adapter)
            self.engine.remove(adapter)

    def finish(self) -> Found:
        while self.engine.has_work:
            self.step()
        return self.found


def alone(place: Place, request: GenerateRequest) -> Found:
    """What the request gets where nothing runs beside it, nothing is cached and nothing guessed."""
    place.plain.engine.flush_cache()
    run = Run(place.plain)
    run.add(request)
    return run.finish()


def described(outputs: list[GenerateOutput]) -> dict[str, object]:
    """All that an answer is, but how it is cut into pieces."""
    return {
        "ids": [token for output in outputs for token in output.token_ids],
        "text": "".join(output.text for output in outputs),
        "logprobs": [msgspec.to_builtins(one) for output in outputs for one in output.logprobs],
        "prompt_logprobs": [msgspec.to_builtins(one) for output in outputs for one in output.prompt_logprobs],
        "finish": outputs[-1].finish_reason,
        "tensors": joined(outputs),
        "echo": [(output.prompt_text, output.prompt_ids) for output in outputs if output.prompt_tokens][:1],
        "counts": (outputs[-1].prompt_tokens, outputs[-1].completion_tokens),
        "order": [output.completion_tokens for output in outputs if output.token_ids],
    }


def joined(outputs: list[GenerateOutput]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for piece in (piece for output in outputs for piece in output.tensors):
        found[piece.name] = found.get(piece.name, b"") + bytes(piece.data)
    return found


def disturb(rng: random.Random, place: Place, run: Run, aborted: set[str], rids: list[str]) -> None:
    """Whatever happens to an engine between two steps."""
    if rids and rng.random() < 0.02:
        rid = rng.choice(rids)
        aborted.add(rid)
        run.keep(run.engine.abort(rid))
    chance = rng.random()
    if chance < 0.05:
        run.keep(DISTURBANCES[rng.choice([*DISTURBANCES])](place.guessing))
    elif chance < 0.06 and place.adapters:
        run.reload(*rng.choice([*place.adapters.items()]))
    elif chance < 0.062:
        aborted.update(rids)
        run.keep(run.engine.pause("abort"))
        run.engine.resume()
    run.let_go()


def scenario(seed: int, place: Place) -> None:
    """Some requests, one after another, and what happens to the engine meanwhile."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        place.guessing.engine.flush_cache()
    draw = Draw(rng, place)
    requests = [draw.request(f"{seed}-{i}") for i in range(rng.choice([1, 1, 2, 3, 5, 9]))]
    run, aborted = Run(place.guessing), set()
    waiting = list(requests)
    while waiting or run.engine.has_work:
        while waiting and (rng.random() < 0.15 or not run.engine.has_work):
            run.add(waiting.pop())
        run.step()
        disturb(rng, place, run, aborted, [r.rid for r in requests if r not in waiting])
    disarm(place.guessing)
    status = place.guessing.engine.status()
    assert status.blocks_free == status.blocks_total, "blocks leaked"
    check(seed, place, requests, run.found, aborted)


def check(seed: int, place: Place, requests: list[GenerateRequest], found: Found, aborted: set[str]) -> None:
    for request in requests:
        expected = alone(place, request)
        if request.input_ids:
            place.said.append((request.input_ids + described(expected[request.rid, 0])["ids"])[: place.longest - 1])
        for key, outputs in expected.items():
            one, other = described(found[key]), described(outputs)
            if request.rid in aborted:
                assert other["ids"][: len(one["ids"])] == one["ids"], (seed, request)
                continue
            for name in other:
                same = one[name] == other[name] or (place.rounds and _are_close(one[name], other[name]))
                assert same, (seed, name, request)


def _are_close(one: object, other: object) -> bool:
    """Whether the numbers in both are about the same, and everything else is the same."""
    if isinstance(one, bytes):
        one, other = (np.frombuffer(each, np.float32).tolist() for each in (one, other))
    if isinstance(one, dict):
        one, other = [[*each.items()] for each in (one, other)]
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_are_close, one, other))
    return one == other or (isinstance(one, float) and abs(one - other) < 1e-3)


#: Families with windows and without, with shared keys, and with states of each kind, in room enough and too little.
KINDS = {
    "llama": ({}, {}, "float32", 128),
    "cramped": ({}, {"kv_cache_bytes": 20 * BLOCK_BYTES["bfloat16"], "prefill_chunk": 24}, "bfloat16", 128),
    "qwen2": ({"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}, {}, "float32", 320),
    "rounded": ({}, {"quantization": "int4", "grammar_backend": "llguidance"}, "float32", 200),
    "qwen3_5_text": (TAKEN["qwen3_5_text"], {}, "bfloat16", 200),
    "lfm2": (TAKEN["lfm2"], {"kv_cache_bytes": 160 * 1024, "prefill_chunk": 24}, "float32", 128),
    "gemma4_text": (TAKEN["gemma4_text"], {"kv_cache_bytes": 320 * 1024}, "float32", 200),
    "bamba": (TAKEN["bamba"], {"kv_cache_bytes": 320 * 1024}, "float32", 200),
    "lfm2_moe": (TAKEN["lfm2_moe"], {"kv_cache_bytes": 320 * 1024}, "float32", 128),
    "qwen3_moe": (TAKEN["qwen3_moe"], {"kv_cache_bytes": 320 * 1024, "prefill_chunk": 24}, "float32", 128),
    "bloom": ({}, {"kv_cache_bytes": 320 * 1024}, "float32", 128),
}
#: Of these, which guess only where they are told to, and those that never can.
ASKED, NEVER = {"lfm2_moe", "qwen3_moe"}, {"bloom"}
#: What adapters change where they cannot change all: experts, or layers of other names.
LAYERS = {
    "qwen3_moe": ({"target_modules": ["k_proj", "o_proj"]}, {"target_modules": ["q_proj", "v_proj"]}),
    "bloom": ({}, {"target_modules": ["query_key_value"]}),
}


def place_of(kind: str, dtype: str, folder: Path) -> Place:
    changes, options, _, longest = KINDS[kind]
    model = save_model(
        folder / "model", kind if kind in {*TAKEN, *NEVER} else "llama", noise=0.0, tie_word_embeddings=True, **changes
    )
    given = {"dtype": dtype, "enable_custom_logit_processor": True}
    guessing = build(model, **given, **options, **({"draft_tokens": 7} if kind in ASKED else {}))
    kept = {name: options[name] for name in options.keys() & {"quantization", "grammar_backend"}}
    plain = build(model, **given, **kept, draft_tokens=0)
    assert (guessing.model.draft_tokens, plain.model.draft_tokens) == (0 if kind in NEVER else 7, 0)
    of_first, of_second = LAYERS.get(kind, ({}, {"target_modules": ["q_proj", "v_proj"]}))
    adapters = {"a": of_first, "b": {"seed": 1, "r": 7, **of_second}} if dtype == "float32" else {}
    saved = {name: save_adapter(folder / name, model, **options) for name, options in adapters.items()}
    for name, adapter in saved.items():
        for assembly in (guessing, plain):
            assembly.engine.install(assembly.adapters.load(name, str(adapter)))
    grammars = ["regex", "json_schema"] if kind == "rounded" else [*GRAMMARS]
    return Place(guessing, plain, grammars, saved, longest, deque(maxlen=9), kind in NEVER | ASKED)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("kind", seldom(KINDS, ASKED | NEVER | {"lfm2", "bamba", "qwen2"}))
def test_every_answer_is_what_it_is_alone_and_without_guesses(kind: str, tmp_path: Path) -> None:
    dtype = KINDS[kind][2]
    if getattr(torch, dtype) not in DTYPES:
        pytest.skip(f"no product of our own for {dtype} here")
    place = place_of(kind, dtype, tmp_path)
    for seed in range(SCENARIOS):
        scenario(seed, place)
    status = place.guessing.engine.status()
    assert kind in NEVER or status.drafted_tokens > status.accepted_tokens > 0
    for assembly in place[:2]:
        assembly.grammars.close()
