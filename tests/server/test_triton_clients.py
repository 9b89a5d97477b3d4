"""Every one of Triton's Python clients, thirty-two at once: a server that stands alone, and one inside Jupyter."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http.aio as triton_aio

from tests.server.conftest import Server
from tests.server.triton import TOKEN_METADATA, WithToken, client, counts, grpc_address, tensor

CLIENTS = 32


@pytest.fixture(params=["server", "jupyter"])
def place(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


def numbers(number: int, kind: Any = None) -> list[Any]:
    array = np.full((1, 16), number, np.int32)
    return [tensor(f"INPUT{index}", array, **({"kind": kind} if kind else {})) for index in (0, 1)]


def first(result: Any) -> int:
    return int(result.as_numpy("OUTPUT0")[0, 0])


def over_http(place: Server) -> list[int]:
    def ask(number: int) -> int:
        with client(place) as found:
            return first(found.infer("simple", numbers(number)))

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(ask, range(CLIENTS)))


def over_http_async_infer(place: Server) -> list[int]:
    with client(place, concurrency=8) as found:
        waiting = [found.async_infer("simple", numbers(number)) for number in range(CLIENTS)]
        return [first(request.get_result()) for request in waiting]


def over_http_aio(place: Server) -> list[int]:
    async def ask() -> list[int]:
        url = place.root.removeprefix("http://") + "nbgen"
        async with triton_aio.InferenceServerClient(url) as found:
            found.register_plugin(WithToken())
            return [
                first(result)
                for result in await asyncio.gather(*(found.infer("simple", numbers(n)) for n in range(CLIENTS)))
            ]

    return asyncio.run(ask())


def over_grpc(place: Server) -> list[int]:
    def ask(number: int) -> int:
        with triton_grpc.InferenceServerClient(grpc_address(place)) as found:
            return first(found.infer("simple", numbers(number, triton_grpc), headers=TOKEN_METADATA))

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(ask, range(CLIENTS)))


def over_grpc_aio(place: Server) -> list[int]:
    async def ask() -> list[int]:
        async with triton_grpc_aio.InferenceServerClient(grpc_address(place)) as found:
            calls = [found.infer("simple", numbers(n, triton_grpc), headers=TOKEN_METADATA) for n in range(CLIENTS)]
            return [first(result) for result in await asyncio.gather(*calls)]

    return asyncio.run(ask())


def over_grpc_stream(place: Server) -> list[int]:
    """Answers come in the order of their requests."""
    found: list[Any] = []
    with triton_grpc.InferenceServerClient(grpc_address(place)) as asked:
        asked.start_stream(lambda result, error: found.append(error or first(result)), headers=TOKEN_METADATA)
        for number in range(CLIENTS):
            asked.async_stream_infer("simple", numbers(number, triton_grpc))
        asked.stop_stream()
    return found


@pytest.mark.parametrize(
    "ask",
    [over_http, over_http_async_infer, over_http_aio, over_grpc, over_grpc_aio, over_grpc_stream],
)
def test_each_client_gets_its_own_answer(place: Server, ask: Any) -> None:
    before = counts(place, "simple")
    assert ask(place) == [2 * number for number in range(CLIENTS)]
    after = counts(place, "simple")
    assert after["inference_count"] - before["inference_count"] == CLIENTS
    assert after["inference_stats"]["fail"] == before["inference_stats"]["fail"]
