"""The second start of a model tries less than the first, and serves the same; what has changed is tried anew."""

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nbgen.engine import known_scores, native, probe
from nbgen.engine.assembly import Assembly
from nbgen.engine.cache_folder import cache_folder
from nbgen.engine.known_scores import MOST, KnownScores
from nbgen.engine.native_model import NativeModel
from nbgen.messages import GenerateRequest, TensorOptions
from nbgen.sampling_params import SamplingParams
from tests.adapters import save_adapter
from tests.conftest import save_model
from tests.engine.conftest import build, generate, ids
from tests.engine.test_native_decoder import REMEMBERING

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft asks for it
]
PARAMS = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
REQUEST = GenerateRequest(rid="r", input_ids=list(range(10, 40)), params=PARAMS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that nobody has loaded before; the compiled library is there."""
    with cache_folder() as compiled:
        native.library(torch.float32)
        shutil.copytree(compiled, tmp_path / "cache" / "nbgen", ignore=shutil.ignore_patterns("scores-*", "tmp*"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return save_model(tmp_path / "model")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often transformers was asked for scores since it was last said."""
    real, times = probe._stock_scores, []

    def counted(*given: object) -> list[torch.Tensor]:
        times.append(1)
        return real(*given)

    monkeypatch.setattr(probe, "_stock_scores", counted)

    def since() -> int:
        count = len(times)
        times.clear()
        return count

    return since


def kept(folder: Path) -> list[Path]:
    return sorted((folder.parent / "cache" / "nbgen").glob("scores-*"))


def said(assembly: Assembly) -> list[int]:
    return ids(generate(assembly, [REQUEST])["r"])


def test_the_second_start_asks_transformers_nothing_and_serves_the_same(folder: Path, asked: Callable[[], int]) -> None:
    first = build(folder)
    assert (first.model.layers_in, asked(), len(kept(folder))) == ("C++", 1, 1)
    second = build(folder)
    assert asked() == 0
    assert second.model == first.model
    assert said(second) == said(first)


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text"])
def test_a_model_with_states_starts_again_as_soon_and_reuses_prefixes_as_before(
    family: str, folder: Path, asked: Callable[[], int]
) -> None:
    save_model(folder, family, **REMEMBERING[family])
    first = build(folder)
    assert (first.model.layers_in, asked(), len(kept(folder))) == ("C++", 1, 1)
    second = build(folder)
    assert asked() == 0
    assert second.model == first.model
    assert second.model.caches_prefixes
    assert said(second) == said(first)
    assert said(second) == said(first), "from a snapshot"


def test_adapters_and_hidden_states_are_there_after_it(folder: Path, asked: Callable[[], int]) -> None:
    save_adapter(adapter := folder.parent / "adapter", folder, seed=3)
    found = []
    for expected in (1, 0):
        assembly = build(folder)
        assert asked() == expected
        assembly.engine.install(assembly.adapters.load("a", str(adapter)))
        adapted = GenerateRequest(rid="r", input_ids=REQUEST.input_ids, params=PARAMS, adapter="a")
        hidden = GenerateRequest(
            rid="h", input_ids=REQUEST.input_ids, params=PARAMS, tensors=TensorOptions(hidden_states=True)
        )
        outputs = generate(assembly, [adapted, hidden])
        tensors = [tensor for output in outputs["h"] for tensor in output.tensors]
        found.append((ids(outputs["r"]), ids(outputs["h"]), tensors))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1], "the adapter changed nothing"


def changed_weights(folder: Path) -> tuple[Path, dict]:
    save_model(folder, hidden_size=32)
    return folder, {}


def touched(folder: Path) -> tuple[Path, dict]:
    os.utime(folder / "model.safetensors", ns=(1, 1))
    return folder, {}


def moved(folder: Path) -> tuple[Path, dict]:
    return Path(shutil.copytree(folder, folder.parent / "other", copy_function=shutil.copy2)), {}


def other_numbers(folder: Path) -> tuple[Path, dict]:
    return folder, {"dtype": "bfloat16"}


def rounded(folder: Path) -> tuple[Path, dict]:
    return folder, {"quantization": "int8"}


@pytest.mark.parametrize("change", [changed_weights, touched, moved, other_numbers, rounded])
def test_what_may_give_other_scores_is_tried_anew(
    change: Callable[[Path], tuple[Path, dict]], folder: Path, asked: Callable[[], int]
) -> None:
    build(folder)
    changed, options = change(folder)
    assert asked() == 1
    build(changed, **options)
    assert asked() == 1


def test_other_versions_are_tried_anew(folder: Path, asked: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    build(folder)
    monkeypatch.setattr(known_scores, "transformers", SimpleNamespace(__version__="6.0.0"))
    build(folder)
    assert asked() == 2


@pytest.mark.parametrize("content", [b"", b"\0" * 100, "0.1", "7.1", "first"])
def test_what_cannot_be_read_or_says_too_little_is_made_again(
    content: bytes | str, folder: Path, asked: Callable[[], int]
) -> None:
    expected = said(build(folder))
    (file,) = kept(folder)
    whole = file.read_bytes()
    if isinstance(content, str):
        known_scores.save_file({content: torch.zeros(3)}, file)
    else:
        file.write_bytes(content)
    assert (said(build(folder)), asked()) == (expected, 2)
    assert file.read_bytes() == whole


def test_scores_that_are_not_those_that_were_found_are_looked_into(
    folder: Path, asked: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    expected = said(build(folder))
    (file,) = kept(folder)
    rows = known_scores.load_file(file)
    known_scores.save_file({name: row + (name == "0.22") * row.abs().max() for name, row in rows.items()}, file)
    again = build(folder)
    assert (said(again), asked(), again.model.layers_in) == (expected, 2, "C++")
    assert "gives other scores" in caplog.text
    caplog.clear()
    build(folder)
    assert asked() == 0, "what was found is kept"


def test_where_our_own_code_gives_other_scores_now_transformers_serves(
    folder: Path, asked: Callable[[], int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = said(build(folder))
    monkeypatch.setattr(NativeModel, "__init__", lambda *_: (_ for _ in ()).throw(ValueError("of another shape")))
    again = build(folder)
    assert (said(again), asked()) == (expected, 2)
    build(folder)
    assert asked() == 1, "kept only of what was found with it"


def test_no_more_are_kept_than_so_many(folder: Path, asked: Callable[[], int]) -> None:
    build(folder)
    (file,) = kept(folder)
    for number in range(MOST + 3):
        other = file.with_name(f"scores-{number:02}.safetensors")
        other.write_bytes(b"")
        os.utime(other, ns=(number, number))
    file.unlink()
    build(folder)
    assert len(kept(folder)) == MOST
    assert file in kept(folder)
    assert file.with_name("scores-03.safetensors") not in kept(folder)


def test_where_nothing_can_be_kept_all_goes_on(
    folder: Path, asked: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(known_scores, "save_file", full)
    assert said(build(folder)) == said(build(folder))
    assert asked() == 2
    assert kept(folder) == []


def test_where_there_is_no_place_to_keep_anything_all_goes_on(
    folder: Path, asked: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> AbstractContextManager[Path]:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(known_scores, "cache_folder", nowhere)
    assert said(build(folder)) == said(build(folder))
    assert asked() == 2


def test_a_hub_id_that_is_not_here_has_none() -> None:
    assert KnownScores.of(SimpleNamespace(model="nobody/nothing", quantization=None), torch.nn.Linear(1, 1)) is None
