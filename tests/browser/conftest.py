"""One browser and one JupyterLab for these tests, a fresh tab for a test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect
from transformers import AutoTokenizer

from tests.browser.chromium import SENTENCE, find
from tests.browser.files import serving
from tests.browser.lab import Lab, Notebook, launched
from tests.browser.panel import Panel
from tests.chat_templates import CALLS, template
from tests.conftest import PATIENCE, save_model

expect.set_options(timeout=1000 * PATIENCE)

#: Jupyter's own: a kernel that is shut down while JupyterLab asks it something, and Notebook 7 as it starts.
FOREIGN = (
    "Canceled future for",
    "reading 'schema'",
    "'filebrowser:open-path' not registered",
    "Kernel message validation error: Unexpected token 's', \"stream.std",  # of two messages that ran into each other
)
#: JupyterLab now and then loses a cell or a widget on a busy machine; what fails twice is ours. `-ra` tells both.
AGAIN = pytest.mark.flaky(reruns=1)
#: The fixtures of JupyterLab with other models than most tests need.
OTHER_MODELS = ("seeing", "hearing", "installed")
BLANK = "about:blank"
VIEWPORT = ViewportSize(width=1100, height=900)
#: Whether the page is a JupyterLab without notebooks, but for one that was left, once it has opened again what it opens
#: again where it was loaded again: what it showed, and what its address says. Where another document has taken its
#: place, its objects are still there.
EMPTY = """async () => {
    const app = document.contains(window.jupyterapp?.shell.node ?? null) && window.jupyterapp;
    const shown = (selector) => document.querySelector(selector) !== null;
    if (app && window.left?.isAttached) return document.querySelectorAll(".jp-NotebookPanel").length === 1;
    const late = new Promise((done) => setTimeout(done, 5000, true));
    if (!app || shown(".jp-NotebookPanel") || await Promise.race([app.restored.then(() => false), late])) return false;
    for (let times = 0; shown(".jp-mod-restoring") && times < 100; times++) {
        await new Promise((done) => setTimeout(done, 50));
    }
    return !shown(".jp-mod-restoring, .jp-NotebookPanel");
}"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One model after the other, as to load one takes seconds, and last of each who unloads it."""
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ours = [items[place] for place in places]
    for place, item in zip(places, sorted(ours, key=which_model), strict=True):
        item.add_marker(AGAIN)
        items[place] = item


def which_model(item: pytest.Item) -> tuple[int, bool]:
    names = getattr(item, "fixturenames", ())
    model = next((place for place, name in enumerate(OTHER_MODELS, 1) if name in names), 0)
    return model, item.path.name == "test_monitor.py"


@pytest.fixture(scope="package")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has room to write for many seconds, and whose likeliest token is never the end.

    It calls what it is told to call.
    """
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("models") / "long"
    save_model(folder, max_position_embeddings=32768, hidden_size=256)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template(CALLS["objects"])
    tokenizer.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][0] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = find()
    assert program, SENTENCE
    with launched(program) as browser:
        yield browser


@pytest.fixture(scope="package")
def shared_lab(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab with the extension, which serves one model after the other."""
    lab = Lab(tmp_path_factory.mktemp("lab"), str(long_model))
    yield lab
    lab.stop()


@pytest.fixture
def lab(shared_lab: Lab, long_model: Path) -> Lab:
    """JupyterLab with the long-winded model."""
    return serving(shared_lab, long_model)


class Desk:
    """Hands out one tab again and again, since JupyterLab takes seconds to start."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._page: Page | None = None

    def page(self) -> Page:
        if self._page is None:
            self._page = self._browser.new_context(viewport=VIEWPORT).new_page()
            self._page.context.set_default_timeout(1000 * PATIENCE)
        return self._page

    def clear(self) -> None:
        """Keep what the tab shows if it is a JupyterLab without notebooks, and else the code alone that it has read."""
        page = self.page()
        if page.is_closed():
            page.context.close()
            self._page = None
            return
        page.unroute_all(behavior="ignoreErrors")
        page.context.clear_permissions()
        page.emulate_media(forced_colors="null")
        if page.url != BLANK and not page.evaluate(EMPTY):
            page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
            page.goto(BLANK)


@pytest.fixture(scope="package")
def desk(browser: Browser) -> Desk:
    return Desk(browser)


@contextmanager
def faultless(page: Page) -> Iterator[Page]:
    """An exception in its JavaScript fails the test."""
    failures: list[str] = []
    note = lambda error: failures.append(str(error))  # noqa: E731
    page.on("pageerror", note)
    yield page
    page.remove_listener("pageerror", note)
    assert [failure for failure in failures if not any(words in failure for words in FOREIGN)] == []


@pytest.fixture
def page(desk: Desk) -> Iterator[Page]:
    """A tab without a notebook."""
    try:
        with faultless(desk.page()) as page:
            yield page
    finally:
        desk.clear()


@pytest.fixture
def aside(browser: Browser) -> Iterator[Page]:
    """A new tab for what is no JupyterLab, or another one: the tab that tests share keeps the one that it has."""
    page = browser.new_page(viewport=VIEWPORT)
    page.set_default_timeout(1000 * PATIENCE)
    try:
        with faultless(page):
            yield page
    finally:
        page.close()


@pytest.fixture
def listen(request: pytest.FixtureRequest) -> Iterator[Callable[[str, Callable[[Any], object]], None]]:
    """Hears what happens on the test's page until its end: others have the same tab."""
    page: Page = request.getfixturevalue("aside" if "aside" in request.fixturenames else "page")
    heard: list[tuple[Any, Callable[[Any], object]]] = []

    def listen(event: Any, listener: Callable[[Any], object]) -> None:
        page.on(event, listener)
        heard.append((event, listener))

    yield listen
    for event, listener in heard:
        page.remove_listener(event, listener)


@pytest.fixture
def panel(opened: Notebook) -> Panel:
    """The panel of the notebook that a module's own fixture has opened."""
    panel = Panel(opened.page)
    panel.message.wait_for()
    return panel
