"""One browser and one JupyterLab for these tests, a fresh tab for a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.chromium import SENTENCE, find
from tests.browser.lab import Lab, launched
from tests.conftest import save_model

#: JupyterLab's own words when a kernel is shut down while JupyterLab still asks it something.
KERNEL_ENDED = "Canceled future for"


@pytest.fixture(scope="package")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has room to write for many seconds, and whose likeliest token is never the end."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("models") / "long"
    save_model(folder, max_position_embeddings=32768, hidden_size=256)
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
def lab(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab with the extension and the long-winded model."""
    lab = Lab(tmp_path_factory.mktemp("lab"), str(long_model))
    yield lab
    lab.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of its own; an exception in its JavaScript fails the test."""
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    yield page
    context.close()
    assert [failure for failure in failures if KERNEL_ENDED not in failure] == []
