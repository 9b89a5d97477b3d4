"""Chats of any name have ids that the server takes, and each notebook its own."""

import re
from collections.abc import Iterator

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from nbgen.identifiers import IDENTIFIER
from nbgen.notebook.chat_name import chat_id, kept_as
from tests.conftest import PATIENCE

NAMES = ["my plans", "Pläne", "a/b", "../x", ".", "..", "a" * 129, "日本", "?", "a\nb", "plans\n", " plans", "\ud800"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_has_an_id(name: str) -> None:
    for id_of in (chat_id, kept_as):
        id = id_of(name)
        assert IDENTIFIER.fullmatch(id)
        assert id not in (".", "..")
        assert id == id_of(name)
    assert kept_as(id := kept_as(name)) == id
    assert re.fullmatch(re.escape(id) + "[.][0-9a-f]{16}", chat_id(name))


def test_an_id_says_what_the_name_was_and_no_two_are_alike() -> None:
    assert kept_as("my plans").startswith("my-plans-")
    assert kept_as("Pläne").startswith("Plane-")
    assert kept_as("Pla\u0308ne") == kept_as("Pläne"), "they look the same"
    assert len({kept_as(name) for name in NAMES}) == len(NAMES)
    assert len({kept_as("a" * n) for n in range(90, 190)}) == 100


@pytest.mark.parametrize("name", ["plans", "a.b:c-d_1", "...", "a" * 100])
def test_what_is_an_id_stays_as_it_is(name: str) -> None:
    assert kept_as(name) == name


@pytest.fixture
def kernels() -> Iterator[list[KernelManager]]:
    kernels = [KernelManager(kernel_name="python3") for _ in range(2)]
    for kernel in kernels:
        kernel.start_kernel()
    yield kernels
    for kernel in kernels:
        kernel.shutdown_kernel(now=True)


def id_in(kernel: KernelManager) -> str:
    """What the kernel prints for the id of a chat."""
    client: BlockingKernelClient = kernel.client()
    client.start_channels()
    client.wait_for_ready(timeout=PATIENCE)
    said: list[str] = []
    client.execute_interactive(
        "from nbgen.notebook.chat_name import chat_id; print(chat_id('plans'))",
        timeout=PATIENCE,
        output_hook=lambda message: said.append(message["content"].get("text", "")),
    )
    client.stop_channels()
    return "".join(said)


def test_notebooks_have_their_own_chats_also_when_their_kernels_are_restarted(kernels: list[KernelManager]) -> None:
    before = [id_in(kernel) for kernel in kernels]
    assert all(id.startswith("plans.") for id in before)
    assert len(set(before)) == 2
    kernels[0].restart_kernel(now=True)
    assert id_in(kernels[0]) == before[0]
