"""Who asks nothing for a while holds no KV cache, and who asks then is answered as if nothing had been."""

import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from nbgen.engine import idle_release, kv_cache, memory
from nbgen.engine.assembly import Assembly
from nbgen.engine.block_manager import BlockManager
from nbgen.engine.idle_release import SHORT_SECONDS
from nbgen.engine.prefix_cache import COMMON
from nbgen.errors import ModelError
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import Outputs, build, generate, ids

pytestmark = pytest.mark.usefixtures("little_garbage")

HOUR = 3600.0
REQUEST = GenerateRequest(
    rid="r", input_ids=list(range(10, 60)), params=SamplingParams(max_new_tokens=20, temperature=0, ignore_eos=True)
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that idleness is measured by, in seconds."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(idle_release, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def assembly(clock: SimpleNamespace, tiny_model: Path) -> Assembly:
    return build(tiny_model, idle_release_seconds=HOUR)


@pytest.fixture
def is_short(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    return lambda short: monkeypatch.setattr(memory, "is_short", lambda _: short)


def ask(assembly: Assembly, request: GenerateRequest = REQUEST) -> Outputs:
    """As the loop does it."""
    assembly.idle_release.end()
    return generate(assembly, [request])


def tensors(assembly: Assembly) -> list[weakref.ref]:
    cache = assembly.engine._runner.cache
    return [weakref.ref(tensor) for layer in cache._layers for tensor in cache.layer(layer)]


def rests(assembly: Assembly) -> bool:
    assembly.idle_release.look()
    return assembly.occupation.rests


def test_the_cache_goes_and_the_text_after_is_the_same(assembly: Assembly, clock: SimpleNamespace) -> None:
    expected = ids(ask(assembly)["r"])
    held, before = tensors(assembly), assembly.engine.status()
    clock.now += HOUR - 1
    assert not rests(assembly), "too soon"
    clock.now += 1
    assert rests(assembly)
    assert held, "there was a cache"
    assert [tensor().shape for tensor in held if tensor() is not None] == []
    status = assembly.engine.status()
    assert (status.blocks_total, status.blocks_free, status.blocks_cached) == (before.blocks_total,) * 2 + (0,)
    assert not assembly.occupation.released, "who asks would be refused"
    outputs = ask(assembly)["r"]
    assert (ids(outputs), outputs[-1].cached_tokens) == (expected, 0)
    assert not rests(assembly), "it begins anew"
    assert ask(assembly)["r"][-1].cached_tokens > 0
    clock.now += HOUR
    assert rests(assembly), "once more"


@pytest.mark.parametrize("family", ["lfm2", "mamba", "bloom"])
def test_models_with_states_or_caches_of_their_own_go_on_as_well(
    family: str, clock: SimpleNamespace, tmp_path: Path
) -> None:
    assembly = build(save_model(tmp_path, family, **FAMILIES[family].changes), idle_release_seconds=HOUR)
    expected = ids(ask(assembly)["r"])
    clock.now += HOUR
    assert rests(assembly)
    again = ask(assembly)["r"]
    assert (ids(again), again[-1].cached_tokens) == (expected, 0)
    assert ids(ask(assembly)["r"]) == expected


def test_time_counts_from_the_end_of_the_last_answer(assembly: Assembly, clock: SimpleNamespace) -> None:
    assembly.engine.add(assembly.admission.sequences(REQUEST))
    clock.now += 2 * HOUR
    assert not rests(assembly), "somebody runs"
    assembly.engine.pause("in_place")
    clock.now += 2 * HOUR
    assert not rests(assembly), "somebody is paused"
    assembly.engine.abort("r")
    clock.now += HOUR - 1
    assert not rests(assembly)
    clock.now += 1
    assert rests(assembly)


def test_who_waits_for_a_grammar_is_not_forgotten(assembly: Assembly, clock: SimpleNamespace) -> None:
    assembly.engine.add(assembly.admission.sequences(REQUEST), prepared=False)
    clock.now += 2 * HOUR
    assert not assembly.engine.has_work
    assert not rests(assembly)


def test_what_is_released_is_left_alone(assembly: Assembly, clock: SimpleNamespace) -> None:
    assembly.occupation.release({"kv_cache"})
    clock.now += 2 * HOUR
    assert not rests(assembly)
    assert ask(assembly)["r"][0].finish_reason.status == 503, "whoever released it is to resume it"
    assembly.occupation.resume({"kv_cache"})
    clock.now += HOUR - 1
    assert not rests(assembly), "the time before counts as well"


def test_what_rests_can_be_released_and_resumed(assembly: Assembly, clock: SimpleNamespace) -> None:
    expected = ids(ask(assembly)["r"])
    clock.now += HOUR
    assert rests(assembly)
    assembly.occupation.release({"kv_cache", "weights"})
    assert not rests(assembly)
    assembly.occupation.resume({"kv_cache", "weights"})
    assert ids(ask(assembly)["r"]) == expected


def test_none_is_never(clock: SimpleNamespace, tiny_model: Path, is_short: Callable[[bool], None]) -> None:
    assembly = build(tiny_model, idle_release_seconds=None)
    is_short(True)
    clock.now += 1000 * HOUR
    assert not rests(assembly)


def test_where_memory_is_short_a_minute_is_enough(
    assembly: Assembly, clock: SimpleNamespace, is_short: Callable[[bool], None]
) -> None:
    is_short(True)
    clock.now += SHORT_SECONDS - 1
    assert not rests(assembly)
    is_short(False)
    clock.now += 1
    assert not rests(assembly)
    is_short(True)
    assert rests(assembly)


def test_prompts_may_be_as_long_after_a_rest(
    assembly: Assembly, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = assembly.engine.status().blocks_total
    monkeypatch.setattr(memory, "device_memory", lambda _: (2**18, 2**30))
    clock.now += HOUR
    assert rests(assembly)
    assert len(ids(ask(assembly)["r"])) == 20
    assert assembly.engine.status().blocks_total == before


def test_a_cache_that_cannot_be_had_again_is_told_and_tried_again(
    assembly: Assembly, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, zeros, held = ids(ask(assembly)["r"]), kv_cache._zeros, []

    def full_at_the_third(slots: int, like: torch.Tensor) -> torch.Tensor:
        if len(held) == 2:
            raise MemoryError
        held.append(weakref.ref(made := zeros(slots, like)))
        return made

    clock.now += HOUR
    assert rests(assembly)
    with monkeypatch.context() as patch:
        patch.setattr(kv_cache, "_zeros", full_at_the_third)
        (refused,) = ask(assembly)["r"]
    assert (refused.finish_reason.type, refused.finish_reason.status) == ("error", 503)
    assert "not free now: free some and ask again" in refused.finish_reason.message
    assert [record.levelno for record in caplog.records if record.name == idle_release.__name__] == [logging.ERROR]
    caplog.clear()
    assert [tensor().shape for tensor in held if tensor() is not None] == []
    assert ids(ask(assembly)["r"]) == expected


def test_a_refused_wake_raises_for_who_asked_for_it(assembly: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    assembly.occupation.rest()
    monkeypatch.setattr(kv_cache, "_zeros", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(ModelError, match="do not fit"):
        assembly.occupation.wake()
    assert assembly.occupation.rests


def test_what_a_wake_that_fails_has_taken_goes_back(assembly: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    assembly.occupation.rest()
    taken: list[weakref.ref] = []
    given_back = []
    monkeypatch.setattr(idle_release.log, "disabled", True)  # pytest keeps what is logged, with its frames

    def full(_: kv_cache.KVCache, blocks: int) -> None:
        tensor = torch.zeros(blocks)
        taken.append(weakref.ref(tensor))
        if blocks:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(kv_cache.KVCache, "resize", full)
    monkeypatch.setattr(memory, "give_back", lambda _: given_back.append([each() for each in taken]))
    assembly.idle_release.end()
    assert given_back == [[None] * len(taken)]
    assert taken


@pytest.mark.parametrize("grows", [True, False])
def test_where_memory_is_short_what_is_merely_kept_goes_first(
    tiny_model: Path, is_short: Callable[[bool], None], grows: bool
) -> None:
    is_short(not grows)
    assembly = build(tiny_model)
    long = [msgspec.structs.replace(REQUEST, input_ids=[start] * 100) for start in range(10, 20)]
    found = [ids(ask(assembly, request)["r"]) for request in long]
    used = assembly.engine.status().blocks_cached
    assert used > 60 if grows else used <= 8, "119 tokens take 8 blocks of 16"
    assert [ids(generate(build(tiny_model), [request])["r"]) for request in long] == found


def test_who_runs_gets_what_it_needs_however_short_memory_is(
    tiny_model: Path, is_short: Callable[[bool], None]
) -> None:
    is_short(True)
    assembly = build(tiny_model)
    requests = [msgspec.structs.replace(REQUEST, rid=str(start), input_ids=[start] * 100) for start in range(10, 14)]
    found = generate(assembly, requests)
    assert [len(ids(outputs)) for outputs in found.values()] == [20] * 4
    assert assembly.engine.status().preemptions == 0


def test_memory_is_looked_up_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looked = [5.0], []
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(memory, "is_short", lambda device: looked.append(device) or len(looked) > 1)
    plenty = memory.Plenty(torch.device("cpu"))
    assert [plenty() for _ in range(3)] == [True] * 3
    assert len(looked) == 1
    now[0] += 1
    assert [plenty() for _ in range(3)] == [False] * 3
    assert len(looked) == 2


@pytest.mark.parametrize(
    ("free", "total", "short"),
    [(2**30, 2**36, False), (2**30 - 1, 2**36, True), (2**27, 2**31, False), (2**27 - 1, 2**31, True)],
)
def test_short_is_a_sixteenth_and_a_gibibyte_at_most(
    free: int, total: int, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "device_memory", lambda _: (free, total))
    assert memory.is_short(torch.device("cpu")) is short
    assert not memory.is_short(torch.device("cuda"))


def test_a_block_that_was_used_is_preferred() -> None:
    manager = BlockManager(8, 16)
    manager.may_grow = lambda: False
    assert [manager._take(), manager._take()] == [0, 1], "nothing is kept that could go"
    manager.cache.add(manager.cache.root(COMMON), tuple(range(16)), 0)
    manager._free.append(1)
    assert manager._take() == 1, "free, and used before"
    assert manager._take() == 0, "kept for nobody"
    assert manager._take() == 2
