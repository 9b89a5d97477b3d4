"""Random schedules, with disturbances between their steps, give with lookahead what they give without."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbgen.engine.assembly import Assembly
from nbgen.messages import LogprobOptions, TensorOptions
from nbgen.word_lists import WordLists
from tests.adapters import save_adapter
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build
from tests.engine.disturbances import DISTURBANCES
from tests.engine.test_cuda_graphs import with_graphs
from tests.engine.test_grammar import constrained
from tests.engine.test_launcher import UNINSTALLED, answers, check_idle, drive, looking_ahead, request, values
from tests.soak import TIMES

pytestmark = pytest.mark.usefixtures("little_garbage")

OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5, "sampling_seed": 1},
    {"temperature": 1.2, "top_p": 0.9, "sampling_seed": 2},
    {"temperature": 1.0, "top_k": 20, "min_p": 0.02, "sampling_seed": 3, "n": 2},
    {"frequency_penalty": 1.5, "min_new_tokens": 5},
    {"stop_token_ids": tuple(range(4, 60)), "ignore_eos": False},
    {"temperature": 1.5, "sampling_seed": 4, "stop": ("a", "e", "\n", "1")},
    {"logprobs": LogprobOptions(top=2)},
    {"logprobs": LogprobOptions(start=0)},
    {"tensors": TensorOptions(generation_logits=True, last_hidden_state=True)},
    {"regex": "([a-f]{3,9} )+", "temperature": 1.0, "sampling_seed": 5, "ignore_eos": False},
    {"json_schema": '{"enum": ["same", "again"]}', "ignore_eos": False},
    {"adapter": "a"},
    {"adapter": "a", "temperature": 1.0, "sampling_seed": 6, "words": WordLists(bad=("ab", "e"))},
    {"stop_regex": ("[a-z][0-9]",), "temperature": 1.5, "sampling_seed": 7},
]

requests_strategy = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 60), st.lists(st.integers(20, 22), min_size=1, max_size=4)).map(
            lambda parts: [*range(100, 100 + parts[0]), *parts[1]]
        ),
        st.integers(0, 20),
        st.sampled_from(OPTIONS),
        st.integers(0, 25),
        st.one_of(st.none(), st.none(), st.integers(0, 30)),
    ),
    min_size=1,
    max_size=8,
)


class Pair(NamedTuple):
    """An engine that looks ahead, and one that does not; whether the first is to run its decodes in graphs."""

    ahead: Assembly
    plain: Assembly
    graphs: bool


@pytest.fixture(scope="module", params=["llama", "llama in graphs", "falcon_h1"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both with an adapter; the one that looks ahead with few blocks and snapshots."""
    family, _, graphs = request.param.partition(" ")
    folder = save_model(tmp_path_factory.mktemp("pair"), family, **FAMILIES[family].changes)
    adapter = save_adapter(tmp_path_factory.mktemp("adapter"), folder, target_modules=["q_proj", "v_proj"])
    plain = build(folder)
    runner = plain.engine._runner
    few = 6 * runner.bytes_per_state + 20 * runner.cache.bytes_per_block
    ahead = looking_ahead(folder, max_running=6, kv_cache_bytes=few)
    ahead.engine._scheduler.blocks.worth = 16
    for assembly in (ahead, plain):
        assembly.engine.install(assembly.adapters.load("a", str(adapter)))
    yield Pair(ahead, plain, bool(graphs))
    for assembly in (ahead, plain):
        assembly.close()


@pytest.mark.filterwarnings(*UNINSTALLED, "ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it
@settings(max_examples=15 * TIMES)
@given(
    schedule=requests_strategy,
    disturbances=st.dictionaries(st.integers(0, 40), st.sampled_from([*DISTURBANCES]), max_size=3),
)
def test_random_schedules_give_what_they_give_without(pair: Pair, schedule: list, disturbances: dict[int, str]) -> None:
    ahead, plain, graphs = pair
    if graphs:
        with_graphs(ahead)
    requests = [
        request(f"r{i}", p, max_new_tokens=new, **options) for i, (p, new, options, _, _) in enumerate(schedule)
    ]
    without = constrained(plain, *requests)
    expected = answers(without)
    arrivals = [(each, when) for each, (_, _, _, when, _) in zip(requests, schedule, strict=True)]
    aborts = {when: f"r{i}" for i, (_, _, _, _, when) in enumerate(schedule) if when is not None}
    before = ahead.engine.generated_tokens
    outputs = drive(ahead, arrivals, aborts, disturbances)
    got = answers(outputs)
    for (rid, index), (tokens, words, reason, count) in got.items():
        whole = expected[rid, index]
        if reason.type == "abort":
            assert tokens == whole[0][:count]
            assert whole[1].startswith(words.rstrip("\ufffd")), "but for half a character at its end"
        else:
            assert (tokens, words, reason, count) == whole
            np.testing.assert_allclose(values(outputs[rid], index), values(without[rid], index), atol=1e-3)
    assert ahead.engine.generated_tokens - before == sum(len(answer[0]) for answer in got.values())
    check_idle(ahead)
