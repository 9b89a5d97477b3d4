"""A kernel with a console: Jupyter's, Qt's and Spyder's print each output once, and never change it."""

import os
from collections.abc import Iterator

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from nbgen.notebook.private_server import PrivateServer
from tests.conftest import PATIENCE


@pytest.fixture(scope="module")
def console(server: PrivateServer) -> Iterator[BlockingKernelClient]:
    kernel = KernelManager(kernel_name="python3")
    kernel.start_kernel(env={**os.environ, "NBGEN_URL": server.url, "NBGEN_TOKEN": server.client.token})
    client = kernel.client()
    client.start_channels()
    client.wait_for_ready(timeout=PATIENCE)
    printed(client, "%load_ext nbgen\nimport nbgen")
    yield client
    client.stop_channels()
    kernel.shutdown_kernel(now=True)


def printed(console: BlockingKernelClient, code: str) -> str:
    """What such a console prints of a cell."""
    said: list[str] = []

    def hear(message: dict) -> None:
        kind, content = message["header"]["msg_type"], message["content"]
        if kind in ("display_data", "execute_result"):
            said.append(content["data"]["text/plain"] + "\n")
        elif kind == "stream":
            said.append(content["text"])

    console.execute_interactive(code, timeout=PATIENCE, output_hook=hear)
    return "".join(said)


def test_an_answer_is_printed_as_it_comes_and_all_of_it(console: BlockingKernelClient) -> None:
    said = printed(console, "%%nbgen --max-new-tokens 40 -t 0\nhi")
    text, _, caption = said.rpartition("\n(")
    assert caption.startswith("40 tokens")
    assert text == printed(console, "from nbgen.notebook.shown_text import visible\nprint(visible(_.text), end='')")


def test_a_panel_says_what_there_is_instead(console: BlockingKernelClient) -> None:
    assert "The chat panel needs a notebook. Here, talk = nbgen.chat()" in printed(console, "nbgen.Chat()")
    assert "ready" in printed(console, "nbgen.monitor()")


def test_what_runs_in_the_background_leaves_the_prompt_alone(console: BlockingKernelClient) -> None:
    assert printed(console, "%%nbgen --background --max-new-tokens 8 -t 0\nhi") == ""
    assert "8 tokens" in printed(console, "_.wait().caption")
