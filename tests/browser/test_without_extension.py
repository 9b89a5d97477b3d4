"""A Jupyter server that knows nothing of nbgen: the kernel starts its own, and the panel goes through the kernel."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import Lab, Notebook
from tests.browser.panel import Panel


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, extension=False)
    yield lab
    lab.stop()


def test_magic_and_panel_work_with_a_server_of_the_kernels_own(plain: Lab, aside: Page, tiny_model: Path) -> None:
    cells = [
        f"import nbgen\nnbgen.serve({str(tiny_model)!r})",
        "%load_ext nbgen",
        "%%nbgen --max-new-tokens 5 -t 0\nhello",
        "nbgen.Chat(max_new_tokens=6, temperature=0)",
        "nbgen.Chat(transport='direct')",
    ]
    notebook = Notebook.opened(aside, plain, plain.write("own.ipynb", *cells))
    notebook.run_all()
    assert notebook.errors() == []
    expect(notebook.output(2)).to_contain_text("5 tokens")
    panel, direct = Panel(notebook.cell(3)), Panel(notebook.cell(4))
    panel.ask("hello")
    expect(panel.answers).to_contain_text("6 tokens")
    expect(direct.status).to_contain_text("This page cannot reach the nbgen server")
    direct.ask("hello")
    expect(direct.answers.get_by_role("alert")).to_contain_text('Use transport="auto"')
    notebook.shut_down()
