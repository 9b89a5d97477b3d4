"""The quickstart notebook, run from top to bottom by a person's JupyterLab."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import Lab, Notebook

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Lab]:
    """JupyterLab as it is after `pip install`: with the extension and the bundled model."""
    lab = Lab(tmp_path)
    yield lab
    lab.stop()


def test_every_cell_of_the_quickstart_runs(installed: Lab, page: Page) -> None:
    shutil.copy(QUICKSTART, installed.root)
    notebook = Notebook(page, installed, QUICKSTART.name)
    notebook.run_all()
    assert notebook.errors() == []
    outputs = page.locator(".jp-Cell-outputArea")
    expect(outputs.filter(has_text="to first token").first).to_be_visible()
    expect(outputs.filter(has_text=": ready").first).to_be_visible()
    expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_visible()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("to first token")
    notebook.shut_down()
