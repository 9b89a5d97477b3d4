"""Where else a panel may stand: Notebook 7, Voilà, JupyterHub."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.hub import Hub
from tests.browser.lab import FOLDERS, RUNS, STATUS, Lab, Notebook, end, save_notebook
from tests.browser.panel import Panel, running, until
from tests.conftest import PATIENCE, free_port

CHAT = "import nbgen, time\nnbgen.Chat(max_new_tokens=20_000, ignore_eos=True, transport='direct')"


@pytest.fixture
def hub(long_model: Path, tmp_path: Path) -> Iterator[Hub]:
    """JupyterHub with the proxy that comes with it."""
    hub = Hub(tmp_path, str(long_model))
    yield hub
    hub.stop()


def streams_and_stops(panel: Panel) -> None:
    panel.ask("hello")
    expect(panel.status).to_have_text("Generating")
    panel.grows()
    panel.message.press("Escape")
    expect(panel.status).to_have_text("Stopped")
    expect(panel.answers.last).to_contain_text("stopped")


def connected(lab: Lab, name: str) -> bool:
    """Whether a page holds a kernel of the notebook that has nothing to do."""
    kernels = [session["kernel"] for session in lab.get("api/sessions") if session["path"] == name]
    return any(kernel["connections"] and kernel["execution_state"] == "idle" for kernel in kernels)


def test_in_notebook_7_while_the_kernel_is_busy(lab: Lab, aside: Page) -> None:
    name = lab.write("seven.ipynb", CHAT, "time.sleep(600)")
    aside.goto(f"{lab.url}notebooks/{name}?token={lab.token}")
    until(lambda: connected(lab, name))
    run = aside.locator("[data-command='notebook:run-cell-and-select-next']")
    run.click()
    panel = Panel(aside)
    panel.message.wait_for()
    run.click()
    aside.locator(".jp-Notebook-ExecutionIndicator[data-status='busy']").wait_for(state="attached")
    streams_and_stops(panel)
    until(lambda: running(lab) == 0)
    aside.get_by_role("button", name="Interrupt").click()


def test_in_a_view_of_its_own_it_is_as_high_as_that(lab: Lab, page: Page) -> None:
    notebook = Notebook.of(page, lab, CHAT)
    notebook.run(0)
    Panel(page).message.wait_for()
    notebook.command("notebook:create-output-view")
    view = page.locator(".jp-LinkedOutputView")
    heights = "view => [view, view.querySelector('.nbgen')].map((one) => one?.offsetHeight ?? 0)"
    until(lambda: (lambda own, panel: own - 60 < panel < own)(*view.evaluate(heights)))
    page.evaluate(
        "[...window.jupyterapp.shell.widgets('main')]"
        ".find((each) => each.node.querySelector('.jp-LinkedOutputView')).dispose()"
    )
    page.wait_for_function("window.jupyterapp.shell.currentWidget?.sessionContext")
    notebook.leave()


def test_in_voila(lab: Lab, aside: Page) -> None:
    name = lab.write("voila.ipynb", CHAT)
    aside.goto(f"{lab.url}voila/render/{name}?token={lab.token}")
    panel = Panel(aside)
    panel.message.wait_for()
    streams_and_stops(panel)
    until(lambda: running(lab) == 0)


@pytest.mark.soak
def test_in_voila_alone_through_the_kernel(browser: Browser, long_model: Path, tmp_path: Path) -> None:
    """Its server has no other extensions: the kernel starts one for itself."""
    cell = f"import nbgen\nnbgen.serve({str(long_model)!r})\nnbgen.Chat(max_new_tokens=20_000, ignore_eos=True)"
    save_notebook(tmp_path / "alone.ipynb", cell)
    command = [sys.executable, "-m", "voila", "alone.ipynb", "--no-browser", f"--port={(port := free_port())}"]
    folders = {name: str(tmp_path / place) for name, place in FOLDERS.items()}
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)  # nbformat (before 5.11) writes its secret into one
    with (tmp_path / "voila.log").open("wb") as log:
        voila = subprocess.Popen(command, env={**os.environ, **folders}, stdout=log, stderr=log, cwd=tmp_path)
    try:
        until(lambda: "running at" in (tmp_path / "voila.log").read_text())
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(f"http://127.0.0.1:{port}/")
        panel = Panel(page)
        panel.message.wait_for()
        streams_and_stops(panel)
        page.close()
    finally:
        end(voila)


def test_in_jupyterhub_while_the_kernel_is_busy(hub: Hub, browser: Browser) -> None:
    ask = "nbgen.status(), nbgen.generate('a', max_new_tokens=2, ignore_eos=True)"
    hub.write("alice", "hub.ipynb", CHAT, "time.sleep(600)", ask)
    page = browser.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    hub.log_in(page, "alice", "lab/tree/hub.ipynb")
    notebook = Notebook(page)
    notebook.settled()
    notebook.run(0)
    panel = Panel(page)
    panel.message.wait_for()
    notebook.run(1, wait=False)
    page.wait_for_function(f"{STATUS} === 'busy'")
    streams_and_stops(panel)
    expect(notebook.prompt(1)).to_have_text(RUNS)
    notebook.command("notebook:interrupt-kernel")
    expect(notebook.prompt(1)).not_to_have_text(RUNS)
    notebook.run(2)
    expect(notebook.output(2)).to_contain_text("/hubs/test/user/alice/nbgen/")
    expect(notebook.output(2)).to_contain_text("2 tokens")
    page.close()
