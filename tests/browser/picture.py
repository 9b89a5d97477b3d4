"""Makes the README's picture of the panel: `python tests/browser/picture.py notebooks/panel.png [MODEL]`."""

import sys
import tempfile
from pathlib import Path

from chromium import SENTENCE, find
from lab import Lab, Notebook, launched
from playwright.sync_api import Page, expect

QUESTIONS = ("What is nbgen?", "How do I stream an answer in Python?")
CELLS = ("import nbgen\n\nnbgen.Chat(temperature=0, height=540)", "import time\n\ntime.sleep(60)  # the kernel is busy")


def converse(page: Page, notebook: Notebook) -> None:
    """Load the model with a first question, then ask the others while the second cell keeps the kernel busy."""
    notebook.run(0)
    ask(page, QUESTIONS[0], 0)
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_role("article")).to_have_count(0)
    notebook.run(1, wait=False)
    for count, question in enumerate(QUESTIONS):
        ask(page, question, count)


def ask(page: Page, question: str, count: int) -> None:
    """Type a question and wait for its answer, which is number `count`."""
    message = page.get_by_role("textbox", name="Message", exact=True)
    message.fill(question)
    message.press("Enter")
    answer = page.get_by_role("article", name="Answer").nth(count)
    expect(answer).to_contain_text("to first token", timeout=120_000)


def take(path: Path, model: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder, launched(find() or sys.exit(SENTENCE)) as browser:
        lab = Lab(Path(folder), model)
        try:
            page = browser.new_page(viewport={"width": 900, "height": 840}, device_scale_factor=1.75)
            notebook = Notebook.opened(page, lab, lab.write("panel.ipynb", *CELLS))
            notebook.command("application:toggle-left-area")
            notebook.command("statusbar:toggle")
            converse(page, notebook)
            page.add_style_tag(content=".jp-cell-toolbar, .jp-Notebook-footer { display: none !important; }")
            page.mouse.move(0, 0)
            page.locator(".jp-WindowedPanel-viewport").screenshot(path=path)
            notebook.shut_down()
        finally:
            lab.stop()


if __name__ == "__main__":
    take(Path(sys.argv[1]), *(sys.argv[2:] or [None]))
