"""What becomes of an answer that is being written, and of the next, when its server, login, model or kernel goes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.lab import Lab, Notebook
from tests.browser.panel import Panel, running, until
from tests.browser.proxy import Proxy

CHAT = "import nbgen\nchat = nbgen.Chat(max_new_tokens=20_000, ignore_eos=True{more})\nchat"
ASKS = "print(nbgen.generate('a', max_new_tokens=2), nbgen.status().state)"
LOST = "The end of this answer is lost"
PASSWORD = "open sesame"


def dot(page: Page) -> Locator:
    return page.locator(".nbgen-head").get_by_role("img")


def streaming(lab: Lab, page: Page, more: str = "") -> tuple[Notebook, Panel]:
    """A panel whose first answer is being written."""
    notebook = Notebook.of(page, lab, CHAT.format(more=more))
    notebook.run(0)
    panel = Panel(page)
    panel.message.wait_for()
    begin(page, panel)
    return notebook, panel


def begin(page: Page, panel: Panel) -> None:
    """A first answer."""
    expect(dot(page)).to_have_accessible_name("Ready")
    panel.ask("one")
    until(lambda: panel.length() > 200)
    expect(dot(page)).to_have_accessible_name("Working")


def lasting(panel: Panel) -> str:
    """Of the beginning of an answer what has no marks, of which what comes later may make something else."""
    beginning = panel.answers.last.locator(".nbgen-text").inner_text()[:100]
    return max(re.split(r"[^\w ]+|_", beginning), key=len)


def answers(panel: Panel) -> None:
    """A new question is answered."""
    panel.ask("two")
    expect(panel.answers).to_have_count(2)
    until(lambda: panel.length() > 200)
    panel.stop.click()
    expect(panel.status).to_have_text("Stopped")


@contextmanager
def guarded(folder: Path, model: Path) -> Iterator[tuple[Lab, Proxy]]:
    """A server with a password and no token, behind a proxy."""
    lab = Lab(folder, str(model), password=PASSWORD)
    proxy = Proxy(lab.url)
    try:
        yield lab, proxy
    finally:
        proxy.stop()
        lab.stop()


def logged_in(page: Page, address: str) -> Notebook:
    page.goto(address)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    notebook = Notebook(page)
    notebook.settled()
    return notebook


def test_behind_a_proxy_after_a_login_a_server_is_killed_and_begins_again_and_the_login_ends(
    long_model: Path, tmp_path: Path, aside: Page
) -> None:
    with guarded(tmp_path, long_model) as (lab, proxy):
        name = lab.write("guarded.ipynb", CHAT.format(more=", transport='direct'"), ASKS)
        notebook = logged_in(aside, f"{proxy.url}lab/tree/{name}")
        notebook.run_all()
        assert notebook.errors() == []
        expect(notebook.output(1)).to_contain_text("ready")
        panel = Panel(aside)
        begin(aside, panel)
        panel.message.fill("a draft")
        lab.crash()
        expect(panel.status).to_have_text("Reconnecting")
        expect(dot(aside)).to_have_accessible_name("Not connected")
        written = lasting(panel)
        said = panel.hears()
        close = aside.locator(".jp-Dialog").get_by_role("button", name="Close")
        close.click()  # JupyterLab's own words, which may come again
        aside.add_locator_handler(close, lambda button: button.click())
        panel.message.press("Escape")
        until(lambda: "The server does not answer: is Jupyter still running?" in said())
        lab.begin()
        expect(panel.answers.last.get_by_role("alert")).to_contain_text(LOST)
        expect(panel.answers.last.locator(".nbgen-text")).to_contain_text(written)
        expect(panel.message).to_have_value("a draft")
        expect(dot(aside)).to_have_accessible_name("Ready")
        answers(panel)
        aside.context.clear_cookies()
        panel.ask("hello")
        expect(aside.get_by_role("alert").last).to_contain_text("reload the page to log in again")
        aside.close()


@pytest.mark.soak
def test_stop_is_heard_once_the_server_is_there_again(lab: Lab, page: Page) -> None:
    notebook, panel = streaming(lab, page)
    panel.stop.click()
    expect(panel.status).to_have_text("Stopped")
    page.route("**/nbgen/api/v1/**", lambda route: route.abort())
    said = panel.hears()
    panel.ask("two")
    until(lambda: "Reconnecting" in said())
    panel.message.press("Escape")
    until(lambda: "The server does not answer: is Jupyter still running?" in said())
    page.unroute("**/nbgen/api/v1/**")
    expect(panel.status).to_have_text("Stopped")
    expect(panel.answers.nth(1)).to_contain_text("stopped")
    notebook.leave()


@pytest.mark.soak
def test_a_model_that_is_unloaded(lab: Lab, page: Page) -> None:
    notebook, panel = streaming(lab, page)
    written = lasting(panel)
    lab.post("nbgen/api/v1/model/unload")
    expect(panel.answers.last.get_by_role("alert")).to_contain_text(
        "the engine was stopped; the next request starts it again"
    )
    expect(panel.answers.last.locator(".nbgen-text")).to_contain_text(written)
    answers(panel)
    notebook.leave()


def test_through_the_kernel_it_streams_and_stops_as_well_until_that_is_gone(lab: Lab, page: Page) -> None:
    notebook, panel = streaming(lab, page, ', transport="comm"')
    panel.grows()
    panel.stop.click()
    expect(panel.status).to_have_text("Stopped")
    until(lambda: running(lab) == 0)
    notebook.kernel_value("setattr(chat, 'params', {**chat.params, 'max_new_tokens': 500})")
    panel.ask("again")
    expect(panel.answers.nth(1)).to_contain_text("500 tokens")
    notebook.kernel_value("setattr(chat, 'params', {**chat.params, 'max_new_tokens': 20_000})")
    panel.ask("last")
    until(lambda: panel.answers.count() == 3 and panel.length() > 200)
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(panel.answers.last.get_by_role("alert")).to_contain_text("The kernel has ended")
    expect(panel.status).to_have_text("The kernel has ended: run the cell again.")
    expect(dot(page)).to_have_accessible_name("Not connected")
    assert panel.length() > 200
    expect(panel.send).to_be_visible()
    lab.post("nbgen/abort_request", abort_all=True)
    notebook.run(0)
    expect(panel.answers).to_have_count(0)
    panel.ask("two")
    until(lambda: panel.length() > 200)
    panel.stop.click()
    expect(panel.status).to_have_text("Stopped")
    notebook.leave()
