"""The bytes of a CPU's cache are settled once, and hold for that device alone."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nbgen.engine import memory, occupation
from nbgen.engine.cache_size import CacheSize
from nbgen.engine_config import EngineConfig
from tests.engine.conftest import build

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
MB = 2**20


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What of the machine's memory is free."""
    free = SimpleNamespace(bytes=400 * MB)
    monkeypatch.setattr(memory, "device_memory", lambda _: (free.bytes, 2**40))
    return free


def test_a_rest_changes_nothing_and_a_release_does(free: SimpleNamespace) -> None:
    size = CacheSize(EngineConfig())
    assert size.anew(CPU).kv_cache_bytes == 100 * MB
    free.bytes = 40 * MB
    assert size.again(CPU).kv_cache_bytes == 100 * MB
    assert size.anew(CPU).kv_cache_bytes == 10 * MB
    assert size.again(CPU).kv_cache_bytes == 10 * MB


def test_a_model_that_was_moved_has_what_is_free_there(free: SimpleNamespace) -> None:
    size = CacheSize(EngineConfig())
    size.anew(CPU)
    assert size.again(GPU).kv_cache_bytes is None, "what is free as it is taken"
    free.bytes = 40 * MB
    assert size.again(CPU).kv_cache_bytes == 10 * MB


@pytest.mark.parametrize("device", [CPU, GPU])
def test_the_owners_number_holds_everywhere(device: torch.device) -> None:
    assert CacheSize(EngineConfig(kv_cache_bytes=7 * MB)).again(device).kv_cache_bytes == 7 * MB


def test_a_rest_keeps_what_the_last_resume_found(free: SimpleNamespace, tiny_model: Path) -> None:
    assembly = build(tiny_model)
    assembly.occupation.release({"kv_cache"})
    free.bytes = MB
    assembly.occupation.resume({"kv_cache"})
    found = assembly.engine.status().blocks_total
    free.bytes = 400 * MB
    assembly.occupation.rest()
    assembly.occupation.wake()
    assert assembly.engine.status().blocks_total == found


def test_memory_is_given_back_where_the_model_was_moved_to(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded anew there; the device is a stand-in."""
    assembly, given_back = build(tiny_model), []
    held, load = assembly.occupation, assembly.occupation._load

    def moved() -> object:
        runner = load()
        runner.device = GPU
        return runner

    monkeypatch.setattr(held, "_load", moved)
    held.release({"kv_cache", "weights"})
    monkeypatch.setattr(held, "_provide", lambda runner: assembly.engine._scheduler)
    held.resume({"kv_cache", "weights"})
    monkeypatch.setattr(occupation.memory, "give_back", given_back.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    held.rest()
    assert given_back == [GPU]
