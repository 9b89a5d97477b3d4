"""Where else a panel may stand: Notebook 7, Voilà, behind a hub's proxy with a login, as a page of nbconvert's."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Page, expect

from nbgen.notebook.transcript import bundle
from tests.browser.lab import Lab, Notebook
from tests.browser.panel import Panel, running, until
from tests.browser.proxy import Proxy

CHAT = "import nbgen, time\nnbgen.Chat(max_new_tokens=20_000, ignore_eos=True, transport='direct')"
PASSWORD = "open sesame"
VECTORS = json.loads((Path(__file__).parents[2] / "js" / "test" / "vectors.json").read_text())


@pytest.fixture(scope="module")
def guarded(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A server with a password and no token."""
    lab = Lab(tmp_path_factory.mktemp("guarded"), str(long_model), password=PASSWORD)
    yield lab
    lab.stop()


def streams_and_stops(panel: Panel) -> None:
    panel.ask("hello")
    expect(panel.status).to_have_text("Generating", timeout=60_000)
    lengths = set()
    for _ in range(8):
        lengths.add(panel.length())
        time.sleep(0.15)
    assert len(lengths) > 3, "the answer came in one piece"
    panel.message.press("Escape")
    expect(panel.status).to_have_text("Stopped")
    expect(panel.answers.last).to_contain_text("stopped")


def test_in_notebook_7_while_the_kernel_is_busy(lab: Lab, page: Page) -> None:
    name = lab.write("seven.ipynb", CHAT, "time.sleep(60)")
    page.goto(f"{lab.url}notebooks/{name}?token={lab.token}")
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']").wait_for(state="attached", timeout=60_000)
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Shift+Enter")
    panel = Panel(page)
    panel.message.wait_for()
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-Notebook-ExecutionIndicator[data-status='busy']").wait_for(state="attached")
    streams_and_stops(panel)
    until(lambda: running(lab) == 0)
    page.get_by_role("button", name="Interrupt").click()


def test_in_voila(lab: Lab, page: Page) -> None:
    name = lab.write("voila.ipynb", CHAT)
    page.goto(f"{lab.url}voila/render/{name}?token={lab.token}", timeout=60_000)
    panel = Panel(page)
    panel.message.wait_for(timeout=60_000)
    streams_and_stops(panel)
    until(lambda: running(lab) == 0)


def test_behind_a_proxy_after_a_login_with_a_password(guarded: Lab, page: Page) -> None:
    proxy = Proxy(guarded.url)
    name = guarded.write("guarded.ipynb", CHAT, "print(nbgen.status().state, nbgen.generate('a', max_new_tokens=2))")
    page.goto(f"{proxy.url}lab/tree/{name}")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    notebook = Notebook(page)
    notebook.settled()
    notebook.run(0)
    streams_and_stops(Panel(page))
    notebook.run(1)
    assert notebook.errors() == []
    expect(notebook.output(1)).to_contain_text("ready")
    page.context.clear_cookies()
    Panel(page).ask("hello")
    expect(page.get_by_role("alert").last).to_contain_text("reload the page to log in again")
    notebook.shut_down()
    page.close()
    proxy.stop()


def hostile_notebook() -> nbformat.NotebookNode:
    """A talk in which the model wrote what would harm a page, as it is saved; nobody has vouched for it."""
    talk = [{"role": "assistant", "content": text} for text in VECTORS if text.isprintable() or "\ud800" not in text]
    outputs = [nbformat.v4.new_output("display_data", bundle([turn])) for turn in talk]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("nbgen.Chat()", outputs=outputs)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def watched(page: Page) -> list[str]:
    """What a page does that nobody asked for, as it happens."""
    found: list[str] = []
    page.on("dialog", lambda dialog: (found.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: "evil" in request.url and found.append(request.url))
    return found


def test_a_saved_talk_does_nothing_in_a_notebook_that_is_not_trusted(lab: Lab, page: Page) -> None:
    found = watched(page)
    nbformat.write(hostile_notebook(), lab.root / "hostile.ipynb")
    notebook = Notebook.opened(page, lab, "hostile.ipynb")
    folded = notebook.output(0).get_by_text("Transcript: 1 message")
    expect(folded.first).to_be_visible()
    page.evaluate("document.querySelectorAll('details').forEach((folded) => { folded.open = true; })")
    expect(notebook.output(0)).to_contain_text("alert(1)")
    page.wait_for_timeout(500)
    assert found == []
    notebook.shut_down()


def test_nor_in_a_page_that_nbconvert_made_of_it(page: Page) -> None:
    found = watched(page)
    html, _ = HTMLExporter().from_notebook_node(hostile_notebook())
    page.route("**/*", lambda route: route.abort())  # its own scripts come from elsewhere
    page.set_content(html, wait_until="domcontentloaded")
    page.evaluate("document.querySelectorAll('details').forEach((folded) => { folded.open = true; })")
    expect(page.get_by_text("Transcript: 1 message")).to_have_count(len(VECTORS) - 1)
    page.wait_for_timeout(500)
    assert found == []
