"""`%%nbgen` in JupyterLab: the answer grows in the cell, or in a widget, and an interrupt stops it."""

from playwright.sync_api import Page, expect

from tests.browser.lab import RUNS, Lab, Notebook
from tests.browser.panel import grows

IN_WIDGET = """import ipywidgets, nbgen
out = ipywidgets.Output()
with out:
    nbgen.map(["a", "b"], max_new_tokens=2)
    get_ipython().run_cell_magic("nbgen", "-t 0 --max-new-tokens 200", "hello")
    chat = nbgen.Chat(max_new_tokens=2, ignore_eos=True)
    display(chat)
chat.ask("hello")
chat.wait()
display(out)
"""


def test_an_answer_grows_in_the_cell_and_an_interrupt_keeps_it(lab: Lab, page: Page) -> None:
    cells = ["%load_ext nbgen", "%%nbgen -t 0\nhello", "print(_.finish_reason, len(_.text) > 20)", IN_WIDGET]
    notebook = Notebook.of(page, lab, *cells)
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
    expect(notebook.prompt(1)).not_to_have_text(RUNS)  # what is asked for before is not run after an error
    notebook.run(2)
    expect(notebook.output(2)).to_have_text("abort True")
    notebook.run(3)
    expect(notebook.output(3)).to_contain_text("cut off at max_new_tokens=200")
    expect(notebook.output(3)).not_to_contain_text("rows", use_inner_text=True)
    expect(notebook.output(3).get_by_text("Transcript: 2 messages")).to_be_visible()
    shown = notebook.output(3).locator(".jp-RenderedMarkdown").first
    assert len(shown.inner_text()) > int(notebook.kernel_value("len(_.text) // 2"))
    notebook.leave()
