"""The panels' code crosses to the page once, and stands once in a notebook that keeps its widgets."""

import json
import os
import signal
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from nbgen.notebook.panel_code import STATIC
from tests.browser.lab import LEFT, Lab, Notebook
from tests.browser.panel import Panel

PANELS = ("import nbgen\nchat = nbgen.Chat()\nchat", "nbgen.Stream('Once')", "nbgen.Chat()")
CLOSED = "import ipywidgets\nipywidgets.Widget.close_all()\nnbgen.Chat()"
#: A container with a widget that is closed. ipywidgets then brings none of the kernel's back into a page.
BROKEN = "(lambda of, one: (of.VBox([one]), one.close()))(w := __import__('ipywidgets'), w.Text())"
MODULES = "globalThis[Symbol.for('nbgen.modules')].size"
SAVE_WIDGETS = "@jupyter-widgets/jupyterlab-manager:saveWidgetState"
STATES = "application/vnd.jupyter.widget-state+json"
#: A widget's model in a page without Jupyter: no server to ask, no kernel that answers.
IN_SHADOW = """async ({ loader, javascript, css }) => {
    const traits = { code: "IPY_MODEL_code", panel: "chat", transport: "comm", chat: "c", height: 440, params: {} };
    const code = { get: (name) => ({ javascript, css })[name] };
    const widget_manager = { get_model: async () => code };
    const model = { get: (name) => traits[name], on() {}, off() {}, send() {}, widget_manager };
    const el = document.createElement("div");
    document.body.appendChild(document.createElement("div")).attachShadow({ mode: "open" }).append(el);
    const { default: widget } = await import(URL.createObjectURL(new Blob([loader], { type: "text/javascript" })));
    await widget.render({ model, el });
}"""


def shows(notebook: Notebook, *cells: int) -> None:
    for cell in cells:
        expect(notebook.cell(cell).locator(".nbgen").first).to_be_visible()


def saved(lab: Lab, notebook: Notebook) -> dict[str, Any]:
    """The notebook's file, with its widgets, once its kernel has ended."""
    notebook.command(SAVE_WIDGETS)  # from now on, or no longer
    notebook.command("docmanager:save")
    notebook.command(SAVE_WIDGETS)
    os.kill(int(notebook.kernel_value("__import__('os').getpid()")), signal.SIGKILL)
    notebook.end_kernel()
    return json.loads((lab.root / LEFT).read_text())


@pytest.fixture
def opened(lab: Lab, page: Page) -> Notebook:
    return Notebook.of(page, lab, *PANELS, CLOSED)


@pytest.mark.soak
def test_panels_of_one_kernel_share_their_code(lab: Lab, opened: Notebook, page: Page) -> None:
    opened.run(0)
    opened.run(1)
    opened.run(2)
    shows(opened, 0, 1, 2)
    assert page.evaluate(MODULES) == 1
    states = saved(lab, opened)["metadata"]["widgets"][STATES]["state"]
    large = [state["model_name"] for state in states.values() if len(json.dumps(state)) > 10_000]
    assert large == ["WidgetModel"]
    page.reload()
    opened.settled()
    shows(opened, 0, 1, 2)
    assert page.evaluate(MODULES) == 1


@pytest.mark.soak
def test_a_panel_whose_code_was_not_saved_says_so(lab: Lab, opened: Notebook, page: Page) -> None:
    opened.run(0)
    shows(opened, 0)
    assert opened.kernel_value("chat.code.close()") == "None"
    saved(lab, opened)
    page.reload()
    opened.settled()
    expect(opened.output(0)).to_contain_text("Run the cell again")


def test_a_panel_after_all_widgets_were_closed_has_its_code(opened: Notebook) -> None:
    opened.run(0)
    shows(opened, 0)
    opened.run(3)
    shows(opened, 3)
    panel = Panel(opened.cell(3))
    expect(panel.send).to_be_visible()
    opened.leave()


def test_a_panel_has_its_code_where_the_page_has_not(opened: Notebook) -> None:
    opened.run(0)
    shows(opened, 0)
    opened.kernel_value(BROKEN)
    opened.again()
    opened.run(1)
    opened.run(2)
    shows(opened, 1, 2)
    codes = "len({id(each.code) for each in __import__('nbgen').notebook.server_widget.ServerWidget._all if each.comm})"
    assert opened.kernel_value(codes) == "2"
    opened.leave()


def test_a_panel_in_a_shadow_tree_has_its_style(aside: Page) -> None:
    """As in marimo."""
    files = {"loader": "loader.js", "javascript": "panel.js", "css": "panel.css"}
    aside.goto("about:blank")
    aside.evaluate(IN_SHADOW, {name: (STATIC / file).read_text() for name, file in files.items()})
    expect(aside.locator(".nbgen")).to_have_css("display", "flex")
    expect(aside.locator(".nbgen")).to_have_css("height", "440px")
