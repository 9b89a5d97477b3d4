"""A JupyterLab of our own and a browser on its notebooks: nothing of the user's Jupyter leaks in or out."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from jupyter_server.auth import passwd
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tests.conftest import PATIENCE, free_port

BROWSER_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--use-fake-device-for-media-stream",  # a microphone that beeps
]
LAB_OPTIONS = {
    "ServerApp.ip": "127.0.0.1",
    "ServerApp.port_retries": 0,
    "ServerApp.base_url": "/user/test/",
    "ServerApp.allow_root": True,
    "LabApp.news_url": None,
    "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    "LabApp.extension_manager": "readonly",
    "LabApp.expose_app_in_browser": True,
}
#: What the page says of the kernel.
STATUS = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
#: The prompt of a cell that runs.
RUNS = "[*]:"
#: The file of the notebook that one test leaves to the next, and whether the page shows one that has been left.
LEFT = "left.ipynb"
IS_LEFT = "() => window.left !== undefined && window.left === window.jupyterapp?.shell.currentWidget"
#: Whether the kernel forgets its widgets and variables.
LEAVE = """async (code) => {
    const notebook = window.jupyterapp.shell.currentWidget;
    const kernel = notebook.sessionContext.session?.kernel;
    const after = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
    for (let times = 0; kernel && kernel.status !== "idle" && times < 20; times++) await after(50);
    if (kernel?.status !== "idle") return false;
    const reply = await Promise.race([after(10_000), kernel.requestExecute({ code, store_history: false }).done]);
    window.left = reply?.content.status === "ok" ? notebook : undefined;
    return window.left !== undefined;
}"""
FORGET = "__import__('ipywidgets').Widget.close_all(); get_ipython().run_line_magic('reset', '-f')"
NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'
#: Or else each page that is loaded has the server look, for a second, whether JupyterLab should be built anew.
NO_CHECK = '{"buildCheck": false}'
FOLDERS = {
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    "IPYTHONDIR": "ipython",
}


class Lab:
    """A running `jupyter lab`, with the nbgen extension unless told otherwise; `root` holds its notebooks.

    `also` names further server extensions. With a password there is no token.
    """

    def __init__(
        self,
        folder: Path,
        model: str | None = None,
        extension: bool = True,
        also: tuple[str, ...] = (),
        password: str = "",
    ) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.token = "" if password else secrets.token_hex(16)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/user/test/"
        self.log = folder / "lab.log"
        self._password = passwd(password) if password else ""
        self._given = model, {"nbgen": extension, **dict.fromkeys(also, True)}
        self.begin()

    def begin(self) -> None:
        """Also again, once it is gone."""
        self._process = self._start(*self._given)
        await_answer(lambda: self.get("api"), self._process, self.log)  # the one route that asks for no login

    def crash(self) -> None:
        """Gone without a word."""
        self._process.kill()
        self._process.wait()

    def write(self, name: str, *cells: str) -> str:
        """A notebook of code cells."""
        save_notebook(self.root / name, *cells)
        return name

    def get(self, path: str) -> Any:
        """JSON of one of the server's routes."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def post(self, path: str, **fields: Any) -> None:
        """Ask for something to be done."""
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(fields).encode(), headers)
        urllib.request.urlopen(request, timeout=PATIENCE).close()

    def end_kernels(self, name: str) -> None:
        """Those of a notebook, also where no page shows it any more."""
        for session in self.get("api/sessions"):
            if session["path"] == name:
                headers = {"Authorization": f"token {self.token}"}
                request = urllib.request.Request(
                    f"{self.url}api/sessions/{session['id']}", None, headers, method="DELETE"
                )
                urllib.request.urlopen(request, timeout=PATIENCE).close()

    def stop(self) -> None:
        end(self._process)

    def _start(self, model: str | None, extensions: dict[str, bool]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **{name: str(self.folder / place) for name, place in FOLDERS.items()}}
        for name in ("NBGEN_URL", "NBGEN_TOKEN"):
            environment.pop(name, None)
        self.root.mkdir(exist_ok=True)
        self._write("settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings", NO_NEWS)
        self._write("config/labconfig/page_config.json", NO_CHECK)
        options = {**LAB_OPTIONS, "ServerApp.port": self.port, "ServerApp.root_dir": self.root}
        options["IdentityProvider.token"] = self.token
        if self._password:
            options["PasswordIdentityProvider.hashed_password"] = self._password
        if extensions["nbgen"]:
            options["NbgenApp.standby"] = False
        if model:
            options["NbgenApp.model"] = model
        command = [sys.executable, "-m", "jupyterlab", "--no-browser"]
        command += [f"--{name}={value}" for name, value in options.items()]
        command += [f"--ServerApp.jpserver_extensions={name}={on}" for name, on in extensions.items()]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder)

    def _write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


class Notebook:
    """One notebook in the front tab."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @classmethod
    def opened(cls, page: Page, lab: Lab, name: str) -> Notebook:
        """In the JupyterLab that the page shows, or in a new one."""
        notebook = cls(page)
        if page.url.startswith(f"{lab.url}lab/"):
            if page.evaluate(IS_LEFT):
                notebook.shut_down()
            notebook.command("docmanager:open", path=name, factory="Notebook")
        else:
            page.goto(f"{lab.url}lab/workspaces/tests/tree/{name}?token={lab.token}&reset")
        notebook.settled()
        return notebook

    @classmethod
    def of(cls, page: Page, lab: Lab, *cells: str) -> Notebook:
        """A notebook of these cells, with a kernel that has done nothing yet, or has forgotten it."""
        lab.write(LEFT, *cells)
        return cls.read(page, lab)

    @classmethod
    def read(cls, page: Page, lab: Lab) -> Notebook:
        """What stands in `LEFT`, in the tab of the test before, as JupyterLab and a kernel take seconds to begin."""
        notebook = cls(page)
        if page.url.startswith(lab.url) and page.evaluate(IS_LEFT):
            page.evaluate("() => window.left.context.revert().then(() => { delete window.left; })")
            notebook.settled()
            return notebook
        lab.end_kernels(LEFT)  # a test that failed has left it, perhaps with a busy one
        return cls.opened(page, lab, LEFT)

    def leave(self) -> None:
        """The next test may have the notebook. A kernel that is busy, or gone, is of no use to it."""
        if not self.page.evaluate(LEAVE, FORGET):
            self.shut_down()

    def settled(self) -> None:
        """Wait until the cells are painted and the kernel answers."""
        self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").first.wait_for(timeout=1000 * PATIENCE)
        self.page.wait_for_function(
            "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
            timeout=1000 * PATIENCE,
        )

    def reload(self) -> None:
        """Load the page again, with its widgets; once more where JupyterLab, on a busy machine, does not find them."""
        for _ in range(2):
            self.page.reload()
            self.settled()
            lost = self.page.get_by_text("Error displaying widget")
            self.page.locator(".nbgen").or_(lost).first.wait_for()
            if lost.count() == 0:
                return

    def again(self) -> None:
        """Close the notebook and open it again, as it was saved. Its kernel goes on meanwhile."""
        closed = "() => { const { context } = window.jupyterapp.shell.currentWidget; const { path } = context;"
        path = self.page.evaluate(closed + " window.jupyterapp.shell.currentWidget.dispose(); return path; }")
        self.command("docmanager:open", path=path, factory="Notebook")
        self.settled()

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").nth(index)

    def prompt(self, index: int) -> Locator:
        """What stands before a cell: `RUNS` while it runs, also where ipykernel (before 7.4) tells that it is idle."""
        return self.cell(index).locator(".jp-InputPrompt")

    def output(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-Cell-outputArea")

    def command(self, name: str, wait: bool = True, **arguments: Any) -> None:
        """One of JupyterLab's commands; those that run cells end when the cells do."""
        call = "([name, args, wait]) => { const done = window.jupyterapp.commands.execute(name, args);"
        self.page.evaluate(call + " if (wait) return done.then(() => null); }", [name, arguments, wait])

    def run_all(self, wait: bool = True) -> None:
        self.command("notebook:run-all-cells", wait)

    def run(self, index: int, wait: bool = True) -> None:
        self.page.evaluate(
            "i => { window.jupyterapp.shell.currentWidget.content.deselectAll();"
            " window.jupyterapp.shell.currentWidget.content.activeCellIndex = i; }",
            index,
        )
        self.command("notebook:run-cell", wait)

    def errors(self) -> list[str]:
        """What went wrong in any cell."""
        return self.page.evaluate(
            "[...window.jupyterapp.shell.currentWidget.content.model.cells]"
            ".flatMap((cell) => cell.toJSON().outputs ?? [])"
            ".filter((output) => output.output_type === 'error').map((output) => output.evalue)"
        )

    def kernel_value(self, expression: str) -> str:
        """What the kernel prints for an expression, after the cell that runs. Raises Error if that takes too long."""
        script = """async ([code, seconds]) => {
            const future = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({code});
            let text = "";
            future.onIOPub = (message) => { text += message.content.text ?? message.content.evalue ?? ""; };
            const late = new Promise((_, refuse) => setTimeout(refuse, 1000 * seconds, Error("the kernel is busy")));
            await Promise.race([future.done, late]);
            return text;
        }"""
        return self.page.evaluate(script, [f"print({expression})", PATIENCE]).strip()

    def end_kernel(self) -> None:
        """Also in the middle of a cell."""
        self.page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")

    def shut_down(self) -> None:
        """End the kernel and take the notebook off the page, saved or not."""
        self.end_kernel()
        self.page.evaluate("window.jupyterapp.shell.currentWidget.dispose()")


@contextmanager
def launched(program: str) -> Iterator[Browser]:
    """A headless browser; `program` is the path of a Chrome or Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=BROWSER_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def save_notebook(path: Path, *cells: str) -> None:
    """A notebook of code cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


def await_answer(ask: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server does what is asked of it; its last words where it does not."""
    late = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < late:
        try:
            ask()
            return
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # newer Pythons warn of one that is left open
            time.sleep(0.1)
    raise RuntimeError(f"it did not start:\n{log.read_text()[-3000:]}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and insist if need be."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
