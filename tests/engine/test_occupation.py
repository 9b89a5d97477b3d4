"""Memory is given back and taken again, and the text is the same after as before."""

import shutil
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from nbgen.engine import kv_cache
from nbgen.engine.assembly import Assembly
from nbgen.errors import InvalidRequest, ModelError
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.conftest import build, generate, ids
from tests.engine.image_requests import media, picture
from tests.engine.multimodal import MULTIMODAL, save

pytestmark = pytest.mark.usefixtures("little_garbage")

REQUEST = GenerateRequest(
    rid="r", input_ids=list(range(10, 50)), params=SamplingParams(max_new_tokens=20, temperature=0, ignore_eos=True)
)


@pytest.fixture
def assembly(tiny_model: Path) -> Assembly:
    return build(tiny_model)


@pytest.mark.parametrize("tags", [{"kv_cache"}, {"kv_cache", "weights"}])
def test_the_text_after_resuming_is_the_same(tags: set, assembly: Assembly) -> None:
    expected = ids(generate(assembly, [REQUEST])["r"])
    assert assembly.occupation.release(tags) == []
    assert assembly.engine.status().blocks_total == 0
    assembly.occupation.resume(tags)
    outputs = generate(assembly, [REQUEST])["r"]
    assert ids(outputs) == expected
    assert outputs[-1].cached_tokens == 0, "the prefix cache went with the KV cache"


def test_nothing_keeps_released_tensors_alive(assembly: Assembly) -> None:
    generate(assembly, [REQUEST])
    held = [weakref.ref(parameter) for parameter in assembly.engine._runner.model.parameters()]
    assembly.occupation.release({"kv_cache", "weights"})
    assert [parameter().shape for parameter in held if parameter() is not None] == []


def test_nothing_keeps_a_released_cache_alive(assembly: Assembly) -> None:
    generate(assembly, [REQUEST])
    cache = assembly.engine._runner.cache
    held = [weakref.ref(tensor) for layer in cache._layers for tensor in cache.layer(layer)]
    assembly.occupation.release({"kv_cache"})
    assert held, "there was one"
    assert [tensor().shape for tensor in held if tensor() is not None] == []


def test_who_runs_gets_an_error_and_who_comes_is_refused(assembly: Assembly) -> None:
    assembly.engine.add(assembly.admission.sequences(REQUEST))
    first = assembly.engine.step()
    (last,) = assembly.occupation.release({"kv_cache"})
    assert (last.rid, last.finish_reason.type, last.finish_reason.status) == ("r", "error", 503)
    assert "resume" in last.finish_reason.message
    assert last.completion_tokens == len(ids(first))
    assert not assembly.engine.has_work
    (refused,) = assembly.engine.add(assembly.admission.sequences(REQUEST))
    assert refused.finish_reason == last.finish_reason


def test_memory_comes_back_in_the_order_that_makes_sense(assembly: Assembly) -> None:
    occupation = assembly.occupation
    with pytest.raises(InvalidRequest, match="kv_cache as well"):
        occupation.release({"weights"})
    occupation.release({"kv_cache"})
    occupation.release({"weights"})
    with pytest.raises(InvalidRequest, match="weights as well"):
        occupation.resume({"kv_cache"})
    occupation.resume({"weights"})
    assert occupation.released == {"kv_cache"}
    assert assembly.engine.add(assembly.admission.sequences(REQUEST)), "served without a cache"
    occupation.resume({"kv_cache", "weights"})
    occupation.resume({"kv_cache", "weights"})
    assert len(ids(generate(assembly, [REQUEST])["r"])) == 20


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": 100}, "vocab_size is 100, and was 260"),
        ({"max_position_embeddings": 16}, "context_length is 16, and was 512"),
        ({"model_type": "mistral"}, "model_type is mistral, and was llama"),
    ],
)
def test_another_model_in_the_same_folder_is_not_resumed(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    assembly = build(save_model(tmp_path / "model"))
    assembly.occupation.release({"kv_cache", "weights"})
    shutil.rmtree(tmp_path / "model")
    save_model(tmp_path / "model", **change)
    with pytest.raises(ModelError, match=f"{words}.: load it anew"):
        assembly.occupation.resume({"kv_cache", "weights"})
    assert assembly.occupation.released == {"kv_cache", "weights"}


def test_trained_weights_in_the_same_folder_are_resumed(tmp_path: Path) -> None:
    assembly = build(folder := save_model(tmp_path / "model"))
    assembly.occupation.release({"kv_cache", "weights"})
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight * 1.1 for name, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    assembly.occupation.resume({"kv_cache", "weights"})
    assert ids(generate(assembly, [REQUEST])["r"]) == ids(generate(build(folder), [REQUEST])["r"])


def test_what_cannot_be_resumed_holds_no_memory_and_may_be_resumed_later(
    assembly: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, zeros, held = ids(generate(assembly, [REQUEST])["r"]), kv_cache._zeros, []

    def full_at_the_third(slots: int, like: torch.Tensor) -> torch.Tensor:
        if len(held) == 2:
            raise MemoryError
        made = zeros(slots, like)
        held.append(weakref.ref(made))
        return made

    assembly.occupation.release({"kv_cache"})
    with monkeypatch.context() as patch:
        patch.setattr(kv_cache, "_zeros", full_at_the_third)
        with pytest.raises(ModelError, match="do not fit"):
            assembly.occupation.resume({"kv_cache"})
    assert assembly.occupation.released == {"kv_cache"}
    assert [tensor().shape for tensor in held if tensor() is not None] == []
    assert assembly.engine.add(assembly.admission.sequences(REQUEST)), "served without a cache"
    assembly.occupation.resume({"kv_cache"})
    assert ids(generate(assembly, [REQUEST])["r"]) == expected


def test_the_cache_is_sized_anew_from_what_is_free(assembly: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    before = assembly.engine.status().blocks_total
    assembly.occupation.release({"kv_cache"})
    per_block = 2 * 2 * 16 * 2 * 16 * 4
    monkeypatch.setattr("nbgen.engine.memory.device_memory", lambda _: (20 * per_block, 2**30))
    assembly.occupation.resume({"kv_cache"})
    assert assembly.engine.status().blocks_total == 5 < before, "a quarter of what is free"
    with pytest.raises(InvalidRequest, match="80"):
        assembly.admission.sequences(GenerateRequest(rid="x", input_ids=[9] * 90))


def test_who_no_longer_fits_ends_and_who_does_goes_on(assembly: Assembly, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the largest that each may become, so that none is begun in vain."""
    engine, small = assembly.engine, msgspec.structs.replace(REQUEST, rid="small", input_ids=[9] * 20)
    expected = ids(generate(assembly, [small])["small"])
    for request in (REQUEST, small):
        engine.add(assembly.admission.sequences(request))
    late = assembly.admission.sequences(msgspec.structs.replace(REQUEST, rid="late"))
    withdrawn = engine.withdraw()
    assembly.occupation.release({"kv_cache", "weights"})
    monkeypatch.setattr("nbgen.engine.assembly._num_blocks", lambda *_: 3)
    assembly.occupation.resume({"kv_cache", "weights"})
    (ended,) = engine.readmit(withdrawn)
    assert (ended.rid, ended.finish_reason.status) == ("r", 503)
    assert "too small for this request" in ended.finish_reason.message
    (refused,) = engine.add(late)
    assert refused.finish_reason == ended.finish_reason
    found = []
    while engine.has_work:
        found += engine.step()
    assert [token for output in found for token in output.token_ids] == expected


def test_who_waits_for_a_grammar_ends_as_well_and_is_not_begun_later(assembly: Assembly) -> None:
    waiting = assembly.admission.sequences(REQUEST)
    assert assembly.engine.add(waiting, prepared=False) == []
    assert assembly.engine.status().waiting == 1
    assert not assembly.engine.has_work
    (last,) = assembly.occupation.release({"kv_cache"})
    assert last.finish_reason.status == 503
    assembly.occupation.resume({"kv_cache"})
    assembly.engine.begin(waiting)
    assert not assembly.engine.has_work
    assert assembly.engine.refuse(waiting, last.finish_reason) == []
    assert assembly.engine.status().waiting == 0


def test_who_waits_with_media_ends_as_well_and_nothing_is_left_to_do(tmp_path: Path) -> None:
    name = next(name for name, family in MULTIMODAL.items() if family.type == "image")
    assembly = build(save(tmp_path / name, name))
    text = MULTIMODAL[name].placeholder.join(["What is ", "? Say."])
    requests = [
        GenerateRequest(rid=f"r{seed}", text=text, media=media(picture(seed)), params=REQUEST.params)
        for seed in range(2)
    ]
    for request in requests:
        assembly.engine.add(assembly.admission.sequences(request))
    assert len(assembly.engine.abort("r1")) == 1
    assert len(assembly.engine._unseen) == 1, "what was aborted still takes memory"
    assert [output.finish_reason.status for output in assembly.occupation.release({"kv_cache"})] == [503]
    assert not assembly.engine.has_work
    assembly.occupation.resume({"kv_cache"})
    assert [len(ids(outputs)) for outputs in generate(assembly, requests).values()] == [20, 20]


def test_what_is_withdrawn_goes_on_with_a_new_cache_as_if_nothing_had_been(assembly: Assembly) -> None:
    engine, admission = assembly.engine, assembly.admission
    expected = ids(generate(assembly, [REQUEST])["r"])
    engine.add(admission.sequences(REQUEST))
    found = [token for _ in range(5) for output in engine.step() for token in output.token_ids]
    constrained = admission.sequences(msgspec.structs.replace(REQUEST, rid="constrained"))
    assert engine.add(constrained, prepared=False) == []
    withdrawn = engine.withdraw()
    assert assembly.occupation.release({"kv_cache", "weights"}) == []
    assembly.occupation.resume({"kv_cache", "weights"})
    engine.readmit(withdrawn)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert {output.rid for output in outputs} == {"r"}, "one ran without its grammar"
    assert found + [token for output in outputs for token in output.token_ids] == expected
    engine.begin(constrained)
    assert engine.has_work
    assert len(engine.abort("constrained")) == 1
    assert engine.status().blocks_free == engine.status().blocks_total
