"""The notebooks that come with nbgen, run from top to bottom by a person's JupyterLab."""

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.files import serving
from tests.browser.lab import Lab, Notebook

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture
def installed(shared_lab: Lab) -> Lab:
    """JupyterLab as it is after `pip install`: with the extension and the bundled model."""
    return serving(shared_lab, "bundled")


def run_all(installed: Lab, page: Page, name: str) -> Notebook:
    shutil.copy(NOTEBOOKS / name, installed.root)
    notebook = Notebook.opened(page, installed, name)
    notebook.run_all()
    assert notebook.errors() == []
    return notebook


def test_every_cell_of_the_quickstart_runs(installed: Lab, page: Page) -> None:
    notebook = run_all(installed, page, "quickstart.ipynb")
    outputs = page.locator(".jp-Cell-outputArea")
    expect(outputs.filter(has_text="to first token").first).to_be_visible()
    expect(outputs.filter(has_text=": ready").first).to_be_visible()
    expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_visible()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("to first token")
    notebook.shut_down()


def test_every_cell_of_the_panels_runs(installed: Lab, page: Page) -> None:
    notebook = run_all(installed, page, "chat_panel.ipynb")
    expect(page.get_by_role("article", name="Answer").first).to_contain_text("to first token")
    expect(page.get_by_text("Transcript: 2 messages").first).to_be_visible()
    expect(page.get_by_text("The answer is 4 degrees and rain.").first).to_be_visible()
    expect(page.get_by_text("3 answers ready")).to_be_visible()
    page.get_by_role("button", name="Continue", exact=True).click()
    expect(page.get_by_role("listbox", name="Tokens").get_by_role("option")).to_have_count(60)
    notebook.shut_down()


def test_every_cell_of_inside_the_model_runs(installed: Lab, page: Page) -> None:
    notebook = run_all(installed, page, "inside_the_model.ipynb")
    outputs = page.locator(".jp-Cell-outputArea")
    expect(outputs.filter(has_text="perplexity").first).to_be_visible()
    expect(outputs.filter(has_text="(25, 256)")).to_be_visible()
    expect(outputs.locator("img")).to_have_count(4)
    page.get_by_role("button", name="Continue", exact=True).click()
    expect(page.get_by_role("listbox", name="Tokens").get_by_role("option").first).to_be_visible()
    notebook.shut_down()
