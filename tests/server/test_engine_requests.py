"""Requests on their way to one engine's client and back: what is large, what cannot be read, and faults in hearing."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import pytest_asyncio

from nbgen import pieces
from nbgen.commands import ReleaseMemory
from nbgen.engine_config import EngineConfig
from nbgen.errors import EngineStopped, InvalidRequest
from nbgen.messages import GenerateOutput, GenerateRequest, Tensor
from nbgen.sampling_params import SamplingParams
from nbgen.server.engine_client import EngineClient
from nbgen.server.runs import Run, Runs
from tests.server.conftest import PATIENCE, until
from tests.server.test_engine_client import Heard, long_request

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(long_model: Path) -> AsyncIterator[EngineClient]:
    """The one for all tests here."""
    client = EngineClient(EngineConfig(model=str(long_model), dtype="float32"), logging.getLogger("test"))
    yield client
    await client.close(0)


def large_request(rid: str, *, tokens: int = 300) -> GenerateRequest:
    """Embeddings of several pieces."""
    rows = np.random.default_rng(0).standard_normal((tokens, 64), dtype="<f4")
    embeds = Tensor(name="input_embeds", datatype="FP32", shape=rows.shape, data=memoryview(rows.tobytes()))
    return GenerateRequest(rid=rid, input_embeds=embeds, params=SamplingParams(max_new_tokens=1, temperature=0.0))


async def test_a_large_request_travels_in_pieces_and_others_pass_it(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2**14)
    assert len(pieces.cut_request(large_request("r"))[0]) == 4
    waited, large, small, aborted = Heard(), Heard(), Heard(), Heard()
    await client.stop()
    client.submit(large_request("waited"), waited)
    await client.start()
    client.submit(large_request("large"), large)
    client.submit(large_request("aborted"), aborted)
    client.submit(GenerateRequest(rid="small", text="a", params=SamplingParams(max_new_tokens=1)), small)
    client.abort("aborted")
    assert [output.finish_reason.type for output in aborted.outputs] == ["abort"]
    await until(lambda: small.outputs and large.outputs and waited.outputs)
    assert large.outputs[0].token_ids == waited.outputs[0].token_ids
    assert large.outputs[0].prompt_tokens == 300
    client.forget("aborted")
    client.submit(large_request("aborted"), again := Heard())
    await until(lambda: again.outputs)
    assert again.outputs[0].prompt_tokens == 300


async def test_what_the_engine_cannot_read_ends_that_request_alone(client: EngineClient) -> None:
    await client.load()
    first, wrong, right = client.pid, Heard(), Heard()
    with pytest.raises(InvalidRequest, match="folder"):
        await client.load_adapter("a", 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="tags"):
        await client.change_memory(ReleaseMemory, ["all"])
    many = SamplingParams(min_new_tokens="many")  # type: ignore[arg-type]  # which no parser lets through
    client.submit(GenerateRequest(rid="wrong", text="a", params=many), wrong)
    client.submit(GenerateRequest(rid="right", text="a", params=SamplingParams(max_new_tokens=2)), right)
    await until(lambda: wrong.error and any(output.finish_reason for output in right.outputs))
    assert isinstance(wrong.error, InvalidRequest)
    assert "min_new_tokens" in wrong.error.message
    assert client.pid == first


class Faulty(Heard):
    """A listener with a fault of its own."""

    def add(self, *outputs: GenerateOutput) -> None:
        raise RuntimeError("secret words")


async def test_a_fault_in_what_is_done_with_outputs_is_a_crash_that_all_who_wait_hear_of(client: EngineClient) -> None:
    await client.load()
    first, faulty = psutil.Process(client.pid), Faulty()
    client.submit(long_request("faulty"), faulty)
    with pytest.raises(EngineStopped):
        await asyncio.wait_for(client.change_memory(ReleaseMemory, ["kv_cache"]), PATIENCE)
    await until(lambda: faulty.error)
    assert "could not take in what the engine said; it is starting again" in faulty.error.message
    await client.start()
    assert not first.is_running()
    client.submit(long_request("after"), heard := Heard())
    await until(lambda: heard.outputs)
    await client.change_memory(ReleaseMemory, ["kv_cache"])
    assert client.state == "released"


async def test_a_large_request_that_is_still_on_its_way_when_the_engine_is_stopped_has_its_end(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2**14)
    runs = Runs(client, lambda: None)
    await client.load()
    request = large_request("large", tokens=3000)
    request = msgspec.structs.replace(request, params=SamplingParams(max_new_tokens=1, n=2))
    runs.start(run := Run(request, chat="c", kept=True, messages=[]))
    await client.stop()
    assert run.error is not None
    assert runs.find("large") is run
