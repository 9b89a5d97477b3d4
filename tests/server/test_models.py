"""The table of models: what a load takes in of the repository's folder, and when."""

import asyncio
import logging
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from nbgen.engine_config import EngineConfig
from nbgen.errors import InvalidRequest, ModelError, Unavailable
from nbgen.server import models as models_module
from nbgen.server import repository
from nbgen.server.engine_client import EngineClient
from nbgen.server.language_model import LanguageModel
from nbgen.server.models import Models
from nbgen.server.repository import Entry
from nbgen.server.runs import Runs
from nbgen.server.tensor_engine import TensorEngine
from nbgen.server.tensor_model import TensorModel
from tests.conftest import PATIENCE
from tests.server.triton import ECHO, ECHO_SOURCE, add_model

pytestmark = pytest.mark.asyncio(loop_scope="module")


def add(folder: Path, name: str) -> None:
    add_model(folder, name, ECHO.format(datatype="FP32", batch=0, delay=0), ECHO_SOURCE.format(sleep=0))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def modules() -> AsyncIterator[TensorEngine]:
    """The process of all tests here."""
    modules = TensorEngine(EngineConfig(device="cpu", threads=1), logging.getLogger("test"))
    yield modules
    await modules.close()


@pytest_asyncio.fixture(loop_scope="module")
async def models(modules: TensorEngine, tmp_path: Path) -> AsyncIterator[Models]:
    """Those of a folder with `a`, `b` and `c`."""
    engine = EngineClient(EngineConfig(), logging.getLogger("test"))
    for name in "abc":
        add(tmp_path, name)
    models = Models(LanguageModel(engine, Runs(engine, lambda: None)), modules, tmp_path)
    yield models
    for name in names(models):
        modules.unload(name)


def names(models: Models) -> list[str]:
    """Of the modules, without the language model."""
    return sorted(model.spec.name for model in list(models)[1:])


async def test_versions_are_numbers(models: Models) -> None:
    assert models.find("a").spec == models.find("a", "1").spec == models.find("a", "01").spec
    for wrong in ("-1", "1.0", "٣", "x", str(2**63)):
        with pytest.raises(InvalidRequest, match=f"version string '{wrong}'"):
            models.find("a", wrong)


async def test_a_load_takes_in_one_model_and_forgets_those_that_are_gone(models: Models, tmp_path: Path) -> None:
    await models.load("a")
    add(tmp_path, "d")
    add(tmp_path, "e")
    for name in "ab":
        shutil.rmtree(tmp_path / name)
    await models.load("d")
    assert names(models) == ["a", "c", "d"], "what is loaded is served on, what was not asked for is not there yet"
    with pytest.raises(InvalidRequest, match="failed to load 'a', no such model is configured"):
        await models.load("a")
    assert names(models) == ["c", "d"]


async def test_a_load_forgets_nothing_that_another_load_has_found_since(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, looked, on = repository.scan, threading.Event(), threading.Event()

    def look(folder: Path) -> list[Entry]:
        """The first time, as the folder was a while ago."""
        found, first = scan(folder), not looked.is_set()
        looked.set()
        assert not first or on.wait(PATIENCE)
        return found

    monkeypatch.setattr(repository, "scan", look)
    first = asyncio.create_task(models.load("a"))
    await asyncio.to_thread(looked.wait)
    add(tmp_path, "d")
    second = asyncio.create_task(models.load("d"))
    async with asyncio.timeout(PATIENCE):
        while "d" not in names(models) or models.find("d").state != "LOADING":  # noqa: ASYNC110
            await asyncio.sleep(0)
    on.set()
    await asyncio.gather(first, second)
    assert (models.serving("a").state, models.serving("d").state) == ("READY", "READY")


async def test_a_model_whose_configuration_is_wrong_is_refused_with_what_is_wrong(
    models: Models, tmp_path: Path
) -> None:
    (tmp_path / "b" / "config.toml").write_text(ECHO.format(datatype="FP99", batch=0, delay=0))
    with pytest.raises(Unavailable, match=r"failed to load 'b': .*FP99"):
        await models.load("b")
    with pytest.raises(Unavailable, match=r"failed to load 'b': .*FP99"):
        models.serving("b")
    assert models.find("b").state == "UNAVAILABLE"


async def test_a_module_of_the_language_models_name_is_refused(
    models: Models, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(tmp_path, "bundled")
    with pytest.raises(InvalidRequest, match="'bundled': that is the language model's own name: give the module"):
        await models.load("bundled")
    await models.load_modules(logging.getLogger("test"))
    assert "own name" in caplog.text
    assert [models.find(name).state for name in "abc"] == ["READY"] * 3


async def test_a_module_that_hangs_at_the_start_holds_up_no_other(models: Models, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    source = f"import pathlib, time\nwhile pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
    (tmp_path / "a/1/model.py").write_text(source + ECHO_SOURCE.format(sleep=0))
    starting = asyncio.create_task(models.load_modules(logging.getLogger("test")))
    async with asyncio.timeout(PATIENCE):
        while not all(models.find(name).loaded for name in "bc"):  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert models.find("a").state == "LOADING"
        gate.unlink()
        await starting
    assert models.find("a").state == "READY"


async def test_files_that_cannot_be_read_are_a_fault_of_their_model_alone(models: Models, tmp_path: Path) -> None:
    (tmp_path / "b" / "config.toml").unlink()
    (tmp_path / "b" / "config.toml").symlink_to("/proc/self/mem")
    with pytest.raises(Unavailable, match=r"failed to load 'b': the folder of b cannot be read: Input/output error"):
        await models.load("b")
    config = ECHO.format(datatype="FP32", batch=0, delay=0)
    (tmp_path / "c" / "config.toml").write_text(config.replace("dims", 'label_filename = "labels.txt", dims'))
    (tmp_path / "c" / "labels.txt").write_bytes(b"\xff\n")
    with pytest.raises(Unavailable, match=r"failed to load 'c': .*'labels.txt' is not UTF-8"):
        await models.load("c")
    await models.load("a")
    models._folder = tmp_path / ("x" * 300)
    with pytest.raises(Unavailable, match="the model repository cannot be read: File name too long"):
        await models.load("a")


async def test_what_cannot_be_loaded_again_is_served_on_as_it_was(models: Models, tmp_path: Path) -> None:
    await models.load("a")
    model, source, config = models.find("a"), tmp_path / "a/1/model.py", tmp_path / "a/config.toml"
    interface, shown = model.spec, config.read_text()
    source.write_text("raise OSError")
    config.write_text(shown.replace('"X"', '"Z"'))
    for words in ("cannot be loaded", "FP99"):
        with pytest.raises(Unavailable, match=f"failed to load 'a': .*{words}"):
            await models.load("a")
        assert (model.state, model.reason, model.spec) == ("READY", "", interface)
        config.write_text(shown.replace("FP32", "FP99"))
    config.write_text(shown)
    await models.unload("a")
    with pytest.raises(Unavailable, match="cannot be loaded"):
        await models.load("a")
    assert (model.state, "OSError" in model.reason) == ("UNAVAILABLE", True), "nothing is left of it"


async def test_a_load_after_an_unload_says_why_it_failed(tmp_path: Path) -> None:
    engine = EngineClient(EngineConfig(model=str(tmp_path / "nothing")), logging.getLogger("test"))
    model = LanguageModel(engine, Runs(engine, lambda: None))
    await model.unload()
    assert (model.state, model.reason) == ("UNAVAILABLE", "unloaded")
    with pytest.raises(Unavailable, match="there is no folder"):
        await model.load()
    assert (model.state, "there is no folder" in model.reason) == ("UNAVAILABLE", True)
    await engine.close(0)


async def test_what_another_dialect_loads_again_is_no_longer_unloaded(tmp_path: Path) -> None:
    engine = EngineClient(EngineConfig(model=str(tmp_path / "nothing")), logging.getLogger("test"))
    model = LanguageModel(engine, Runs(engine, lambda: None))
    await model.unload()
    with pytest.raises(ModelError):
        await engine.start()
    assert (model.unloaded, model.state, "there is no folder" in model.reason) == (False, "UNAVAILABLE", True)
    await engine.close(0)


async def test_the_table_changes_on_the_event_loop_alone(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_on: list[threading.Thread] = []

    def made(entry: Entry, engine: TensorEngine) -> TensorModel:
        made_on.append(threading.current_thread())
        return TensorModel(entry, engine)

    monkeypatch.setattr(models_module, "TensorModel", made)
    add(tmp_path, "d")
    await models.load("d")
    assert made_on == [threading.current_thread()]
