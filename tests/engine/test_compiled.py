"""A compiled decoder writes what the same model writes as it is, and steps aside where it cannot."""

import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from nbgen.engine.assembly import Assembly
from nbgen.errors import ModelError
from nbgen.messages import GenerateRequest, TensorOptions
from nbgen.sampling_params import SamplingParams
from tests.adapters import save_adapter
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),  # inductor's own
    pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"),  # torch
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft asks for it
]


def requests(**changes: object) -> list[GenerateRequest]:
    """Prompts of different lengths, which begin and end at different steps."""
    params = [SamplingParams(max_new_tokens=12 + 5 * n, temperature=0, ignore_eos=True) for n in range(5)]
    prompts = [[10 + (7 * i + n) % 200 for i in range(30 * n + 1)] for n in range(5)]
    return [
        GenerateRequest(rid=str(n), input_ids=prompt, params=options, **changes)
        for n, (prompt, options) in enumerate(zip(prompts, params, strict=True))
    ]


def texts(assembly: Assembly, asked: list[GenerateRequest]) -> dict[str, list[int]]:
    return {rid: ids(outputs) for rid, outputs in generate(assembly, asked).items()}


#: A layer that is not run in C++ of our own, with a window and with experts.
CHANGES = {
    "qwen2_moe": {
        "num_hidden_layers": 1,
        "layer_types": ["sliding_attention"],
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 0,
        "shared_expert_intermediate_size": 36,  # no whole vectors
    }
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("compiled")
    return {
        name: save_model(place / name, name, **{**FAMILIES[name].changes, **changes})
        for name, changes in CHANGES.items()
    }


@pytest.fixture(scope="module")
def compile_once(folders: dict[str, Path]) -> Iterator[Callable[[str], Assembly]]:
    """A family's compiled engine, which the tests of this module share, for compiling takes long.

    The compiler that the environment names has two words, as with ccache.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "env g++")
        yield cache(lambda name: build(folders[name], compile=True))


@pytest.fixture(params=CHANGES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(family: str, folders: dict[str, Path]) -> Path:
    return folders[family]


@pytest.fixture
def compiled(family: str, compile_once: Callable[[str], Assembly]) -> Assembly:
    return compile_once(family)


def test_layers_of_our_own_are_left_as_they_are(tiny_model: Path) -> None:
    assembly = build(tiny_model, compile=True)
    assert assembly.engine._runner.stock.layers
    assert not assembly.model.compiled


def test_it_writes_the_same_and_compiles_no_more(folder: Path, compiled: Assembly) -> None:
    assert compiled.model.compiled
    asked = requests()
    expected = texts(build(folder), asked)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert texts(compiled, asked) == expected
        assert texts(compiled, asked[3:4]) == {"3": expected["3"]}


def test_what_is_watched_inside_is_seen(folder: Path, compiled: Assembly) -> None:
    plain = build(folder)
    experts = 0 if plain.model.routed_experts else None
    asked = requests(tensors=TensorOptions(hidden_states=True, routed_experts=experts))
    for one, other in zip(generate(compiled, asked).items(), generate(plain, asked).items(), strict=True):
        assert one[0] == other[0]
        pieces = [[(p.name, len(p.data)) for output in found[1] for p in output.tensors] for found in (one, other)]
        assert sorted(pieces[0]) == sorted(pieces[1])
        assert ids(one[1]) == ids(other[1])


def test_adapters_come_and_go(
    folders: dict[str, Path], compile_once: Callable[[str], Assembly], tmp_path: Path
) -> None:
    folder = folders["qwen2_moe"]
    assemblies = compile_once("qwen2_moe"), build(folder)
    adapter, adapted = save_adapter(tmp_path / "adapter", folder), requests(adapter="mine")
    before = texts(assemblies[1], requests())
    for assembly in assemblies:
        assembly.engine.install(assembly.adapters.load("mine", str(adapter)))
    assert texts(assemblies[0], adapted) == texts(assemblies[1], adapted) != before
    assemblies[0].engine.remove(assemblies[0].adapters.unload("mine"))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert texts(assemblies[0], requests()) == before


def numbers(assembly: Assembly) -> list[int]:
    """Those in the graphs, by which operators find modules."""
    found = (vars(module).get("_nbgen_number") for module in assembly.engine._runner.model.modules())
    return [number for number in found if number is not None]


def test_released_weights_come_back_compiled(compile_once: Callable[[str], Assembly]) -> None:
    compiled = compile_once("qwen2_moe")
    expected = texts(compiled, requests())
    before, weights = numbers(compiled), weakref.ref(next(compiled.engine._runner.model.parameters()))
    compiled.occupation.release({"weights", "kv_cache"})
    assert weights() is None, "the graphs keep them"
    compiled.occupation.resume({"weights", "kv_cache"})
    assert numbers(compiled) == before, "torch's cache knows no graph with other numbers"
    with torch.compiler.set_stance("fail_on_recompile"):
        assert texts(compiled, requests()) == expected


def test_without_a_compiler_the_owner_is_told(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    with pytest.raises(ModelError, match=r"needs a C\+\+ compiler, and there is none of g\+\+"):
        build(folders["qwen2_moe"], compile=True)


def test_a_model_that_cannot_be_compiled_runs_as_it_is(tmp_path: Path) -> None:
    family = FAMILIES["bloom"]
    folder = save_model(tmp_path / "bloom", "bloom", **family.changes)
    assembly = build(folder, compile=True)
    assert not assembly.model.compiled
    assert texts(assembly, requests()) == texts(build(folder), requests())
