"""The process for plain modules from the server's side: who is told what when it ends or is asked twice."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from nbgen.engine_config import EngineConfig
from nbgen.errors import EngineStopped, Unavailable
from nbgen.server import repository as repositories
from nbgen.server.tensor_engine import TensorEngine
from nbgen.server.tensor_model import TensorModel
from tests.conftest import PATIENCE


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[TensorEngine]:
    """With no process yet."""
    engine = TensorEngine(EngineConfig(device="cpu", threads=1), logging.getLogger("test"))
    yield engine
    await engine.close()


def echo(repository: Path) -> repositories.Entry:
    return next(entry for entry in repositories.scan(repository) if entry.name == "echo")


async def load(engine: TensorEngine, repository: Path) -> str:
    """Load `echo`; its device."""
    entry = echo(repository)
    assert entry.spec
    return (await asyncio.wait_for(engine.load(entry.spec, str(entry.folder)), PATIENCE)).device


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


async def test_a_fault_in_hearing_leaves_nobody_waiting(
    engine: TensorEngine, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(messages: object) -> None:
        raise RuntimeError("a fault of our own")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_hear", fault)
        with pytest.raises(EngineStopped):
            await load(engine, repository)
    assert await load(engine, repository) == "cpu"
