"""`%%nbgen` in JupyterLab: the answer grows in the cell, and an interrupt stops it."""

from playwright.sync_api import Page, expect

from tests.browser.lab import Lab, Notebook
from tests.browser.panel import grows


def test_an_answer_grows_in_the_cell_and_an_interrupt_keeps_it(lab: Lab, page: Page) -> None:
    cells = ["%load_ext nbgen", "%%nbgen -t 0\nhello", "print(_.finish_reason, len(_.text) > 20)"]
    notebook = Notebook.opened(page, lab, lab.write("magic.ipynb", *cells))
    notebook.run(0)
    notebook.run(1, wait=False)
    answer = notebook.output(1).locator(".jp-RenderedMarkdown")
    answer.wait_for()
    grows(answer)
    notebook.command("notebook:interrupt-kernel")
    expect(notebook.output(1)).to_contain_text("stopped")
    expect(notebook.output(1)).to_contain_text("KeyboardInterrupt")  # or else "Run All" would go on
    assert notebook.errors() == [""]
    assert notebook.output(1).locator(".jp-RenderedMarkdown").count() == 1
    notebook.run(2)
    expect(notebook.output(2)).to_have_text("abort True")
    notebook.shut_down()
