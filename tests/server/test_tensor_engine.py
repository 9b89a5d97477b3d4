"""The process for plain modules from the server's side: who is told what when it ends or is asked twice."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch

from nbgen.engine_config import EngineConfig
from nbgen.errors import EngineStopped, Unavailable
from nbgen.messages import Tensor
from nbgen.module_export import export
from nbgen.protocols.inference import Inference
from nbgen.server import engine_child, silence, tensor_engine
from nbgen.server import repository as repositories
from nbgen.server.tensor_engine import TensorEngine
from nbgen.server.tensor_model import TensorModel
from tests.conftest import PATIENCE, wait_for
from tests.server.conftest import until
from tests.server.triton import ECHO_SOURCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: A module that is made once its gate, which it puts there, is taken away.
ENDLESS = """
import pathlib, time, torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        gate = pathlib.Path("{gate}")
        gate.touch()
        while gate.exists():
            time.sleep(0.01)
        gate.with_name("made").touch()
"""
#: A module that is asked by a number for one of three ways to take its time. Two keep Python's lock.
WAITS, SLEEPS, COMPUTES = 1.0, 2.0, 3.0
KEEPER = """
import ctypes, time, torch

class Model(torch.nn.Module):
    def forward(self, X):
        way = X[0].item()
        if way == 1: ctypes.PyDLL(None).sleep(3600)
        if way == 2: time.sleep(3)
        if way == 3:
            began = time.thread_time()
            sum(range(10_000_000))
            sum(range(int(30_000_000 / (time.thread_time() - began))))  # three seconds, however fast this Python is
        return X
"""
#: The process, with more signs of life.
LIVELY = """
from nbgen.engine import pulse
pulse.SIGN_SECONDS = 0.2
from nbgen.engine.__main__ import main
main()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[TensorEngine]:
    """The one for all tests here that need none of their own."""
    engine = TensorEngine(EngineConfig(device="cpu", threads=1), logging.getLogger("test"))
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keeper")
    (folder / "model.py").write_text(KEEPER)
    return folder


def echo(repository: Path) -> repositories.Entry:
    return next(entry for entry in repositories.scan(repository) if entry.name == "echo")


async def load(engine: TensorEngine, repository: Path) -> str:
    """Load `echo`; its device."""
    entry = echo(repository)
    assert entry.spec
    return (await asyncio.wait_for(engine.load(entry.spec, str(entry.folder)), PATIENCE)).device


def numbers(first: float) -> Tensor:
    data = np.full(3, first, np.float32)
    return Tensor(name="X", datatype="FP32", shape=(3,), data=memoryview(data).cast("B"))


async def asked(model: TensorModel, first: float) -> bool:
    """Ask the model for these numbers, which loads it if need be; whether it gives any."""
    answer = await asyncio.wait_for(anext(model.compute(Inference(inputs={"X": numbers(first)}))), PATIENCE)
    return len(answer[0].outputs) == 1


async def test_each_of_two_loads_of_one_module_is_answered(engine: TensorEngine, repository: Path) -> None:
    assert await asyncio.gather(load(engine, repository), load(engine, repository)) == ["cpu", "cpu"]


async def test_a_process_that_ends_takes_only_what_was_asked_of_it(engine: TensorEngine, repository: Path) -> None:
    await load(engine, repository)
    generation = engine.generation
    assert engine._process
    psutil.Process(engine._process.pid).suspend()  # or it might answer before its end
    lost = asyncio.create_task(load(engine, repository))
    await asyncio.sleep(0)
    engine.kill()
    async with asyncio.timeout(PATIENCE):
        while engine.generation == generation:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert await load(engine, repository) == "cpu"
    with pytest.raises(EngineStopped, match="signal 9"):
        await lost


async def test_a_process_that_neither_speaks_nor_computes_is_ended(
    keeper: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no limit of a request's time: halted, or in foreign code that waits and keeps Python's lock."""
    config = EngineConfig(device="cpu", threads=1, queue_seconds=None, run_seconds=None)
    engine = TensorEngine(config, logging.getLogger("test"))
    model = TensorModel(echo(repository)._replace(folder=keeper), engine)
    assert await asked(model, 0.0)
    first = engine._process
    assert first
    with monkeypatch.context() as patch:
        patch.setattr(silence, "SILENT_SECONDS", 1)
        psutil.Process(first.pid).suspend()
        halted = await asyncio.gather(asked(model, 0.0), asked(model, 0.0), return_exceptions=True)
    assert [type(each) for each in halted] == [EngineStopped] * 2
    assert "did not answer for 1 seconds" in str(halted[0])
    assert not first.alive
    assert await asked(model, 0.0), "it is loaded into a new process"
    monkeypatch.setattr(silence, "SILENT_SECONDS", 1)
    with pytest.raises(EngineStopped, match="did not answer for 1 seconds"):
        await asked(model, WAITS)
    await engine.close()


async def test_why_a_process_was_ended_is_told_though_the_next_has_begun(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TensorEngine(EngineConfig(device="cpu", threads=1), logging.getLogger("test"))
    await load(engine, repository)
    first = engine._process
    assert first
    end = first.end

    async def late(patience: float) -> str:
        await engine.begin()
        return await end(patience)

    monkeypatch.setattr(first, "end", late)
    monkeypatch.setattr(silence, "SILENT_SECONDS", 1)
    psutil.Process(first.pid).suspend()
    with pytest.raises(EngineStopped, match="did not answer for 1 seconds"):
        await asyncio.wait_for(engine.infer("echo", [numbers(0.0)], []), PATIENCE)
    await engine.close()


async def test_one_that_computes_or_lets_others_speak_is_given_its_time(
    keeper: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But no more than that: if it keeps Python's lock, nobody in it can say who is late."""
    monkeypatch.setattr(engine_child, "COMMAND", ("-c", LIVELY))
    monkeypatch.setattr(silence, "SILENT_SECONDS", 2)
    engine = TensorEngine(EngineConfig(device="cpu", threads=1), logging.getLogger("test"))
    model = TensorModel(echo(repository)._replace(folder=keeper), engine)
    for way in (SLEEPS, COMPUTES):
        assert await asked(model, way)
    monkeypatch.setattr(tensor_engine, "HALT_SECONDS", 0.5)
    engine._config = EngineConfig(queue_seconds=0.5, run_seconds=0.5)
    with pytest.raises(EngineStopped, match=r"did not answer for 1\.5 seconds"):
        await asked(model, COMPUTES)
    await until(lambda: engine.generation == 2)
    await engine.close()


async def test_a_process_that_is_just_being_started_ends_with_the_others(repository: Path) -> None:
    engine = TensorEngine(EngineConfig(device="cpu", threads=1), logging.getLogger("test"))
    loading = asyncio.create_task(load(engine, repository))
    async with asyncio.timeout(PATIENCE):
        while not engine._starting.locked():  # noqa: ASYNC110
            await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineStopped, match="the server is stopping"):
        await loading
    assert engine._process is None


async def test_what_the_process_cannot_read_is_answered(engine: TensorEngine, repository: Path) -> None:
    with pytest.raises(Unavailable, match="folder"):
        await asyncio.wait_for(engine.load(echo(repository).spec, 5), PATIENCE)  # type: ignore[arg-type]
    assert await load(engine, repository) == "cpu"


async def test_a_model_that_is_unloaded_while_it_loads_is_not_there(engine: TensorEngine, repository: Path) -> None:
    model = TensorModel(echo(repository), engine)
    loading = asyncio.create_task(model.load())
    async with asyncio.timeout(PATIENCE):
        while model.state != "LOADING":  # noqa: ASYNC110
            await asyncio.sleep(0)
        await model.unload()
        await loading
    assert (model.loaded, model.state) == (False, "UNAVAILABLE")
    await asyncio.wait_for(model.load(), PATIENCE)
    assert (model.loaded, model.state) == (True, "READY")


async def test_who_waits_while_the_interface_changes_is_told(engine: TensorEngine, repository: Path) -> None:
    """The request was checked against another one than the module now has."""
    entry = echo(repository)
    model = TensorModel(entry, engine)
    await asyncio.wait_for(model.load(), PATIENCE)
    assert entry.spec
    other = msgspec.structs.replace(entry.spec.outputs[0], name="Z")
    model.configure(entry._replace(spec=msgspec.structs.replace(entry.spec, outputs=(other,))))
    loading = asyncio.create_task(model.load())
    await asyncio.sleep(0)
    assert model.is_loading
    ones = Tensor(name="X", datatype="FP32", shape=(3,), data=memoryview(np.ones(3, np.float32)).cast("B"))
    with pytest.raises(Unavailable, match="another interface"):
        await asyncio.wait_for(anext(model.responses(Inference(inputs={"X": ones}))), PATIENCE)
    await loading
    answer = await asyncio.wait_for(anext(model.responses(Inference(inputs={"X": ones}))), PATIENCE)
    assert [output.name for output in answer.outputs] == ["Z"]


async def test_a_module_that_loads_for_ever_holds_up_no_other(
    engine: TensorEngine, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its requests nor, after a while, its load; what comes of it too late is not served."""
    await load(engine, repository)
    spec, ones = echo(repository).spec, np.ones(3, np.float32)
    (tmp_path / "model.py").write_text(ENDLESS.format(gate=tmp_path / "gate"))
    monkeypatch.setattr(tensor_engine, "LOAD_SECONDS", 3.0)
    endless = asyncio.create_task(engine.load(msgspec.structs.replace(spec, name="endless"), str(tmp_path)))
    await asyncio.to_thread(wait_for, (tmp_path / "gate").exists, "it loads")
    inputs = [Tensor(name="X", datatype="FP32", shape=(3,), data=memoryview(ones).cast("B"))]
    result = await asyncio.wait_for(engine.infer("echo", inputs, ["Y"]), PATIENCE)
    assert bytes(result.output.outputs[0].data) == ones.tobytes()
    with pytest.raises(Unavailable, match="longer than 3 seconds"):
        await endless
    monkeypatch.undo()
    assert await load(engine, repository) == "cpu"
    (tmp_path / "gate").unlink()
    await asyncio.to_thread(wait_for, (tmp_path / "made").exists, "it is loaded after all")
    with pytest.raises(Unavailable, match="endless is not loaded"):
        await asyncio.wait_for(engine.infer("endless", inputs, ["Y"]), PATIENCE)


async def test_modules_load_beside_one_that_loads_for_ever_and_its_requests_are_told(
    repository: Path, tmp_path: Path
) -> None:
    engine = TensorEngine(EngineConfig(device="cpu", threads=1, queue_seconds=0.5), logging.getLogger("test"))
    (tmp_path / "model.py").write_text(ENDLESS.format(gate=tmp_path / "gate"))
    spec = echo(repository).spec
    assert spec
    endless = TensorModel(
        repositories.Entry("endless", msgspec.structs.replace(spec, name="endless"), tmp_path), engine
    )
    ones = Tensor(name="X", datatype="FP32", shape=(3,), data=memoryview(np.ones(3, np.float32)).cast("B"))
    for _ in range(2):
        with pytest.raises(Unavailable, match="'endless' is loading: ask again later"):
            async with asyncio.timeout(PATIENCE / 2):
                await anext(endless.compute(Inference(inputs={"X": ones})))
    assert endless.state == "LOADING"
    assert await load(engine, repository) == "cpu"
    await asyncio.to_thread(wait_for, (tmp_path / "gate").exists, "it loads")
    (tmp_path / "gate").unlink()
    async with asyncio.timeout(PATIENCE):
        while endless.state != "READY":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await engine.close()


@pytest.mark.soak
async def test_who_ends_the_process_takes_no_load_along_that_is_tried_once_more(
    engine: TensorEngine, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text("import os, time; time.sleep(0.5); os._exit(3)")
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "model.py").write_text("import time; time.sleep(1)" + ECHO_SOURCE.format(sleep=0))
    spec = echo(repository).spec
    exits = asyncio.create_task(engine.load(msgspec.structs.replace(spec, name="exits"), str(tmp_path)))
    slow = engine.load(msgspec.structs.replace(spec, name="slow"), str(tmp_path / "slow"))
    async with asyncio.timeout(PATIENCE):
        assert (await slow).device == "cpu"
        with pytest.raises(EngineStopped, match="exit code 3"):
            await exits


async def test_exported_programs_are_loaded_at_once(engine: TensorEngine, repository: Path, tmp_path: Path) -> None:
    await engine.begin()
    for name in "abc":
        export(tmp_path / name, torch.nn.Linear(3, 3), {"x": ("FP32", [3])}, 0)
    spec = echo(repository).spec
    loads = [engine.load(msgspec.structs.replace(spec, name=f"{n}"), str(tmp_path / "abc"[n % 3])) for n in range(12)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*loads)


async def test_a_fault_in_hearing_leaves_nobody_waiting(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TensorEngine(EngineConfig(device="cpu", threads=1), logging.getLogger("test"))

    def fault(messages: object) -> None:
        raise RuntimeError("a fault of our own")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_hear", fault)
        with pytest.raises(EngineStopped):
            await load(engine, repository)
    assert await load(engine, repository) == "cpu"
    await engine.close()
