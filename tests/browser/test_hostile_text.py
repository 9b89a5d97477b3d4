"""What a model writes must not act on the page, wherever it is shown."""

import json
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Page, expect

from nbgen.notebook.transcript import bundle
from tests.browser.lab import LEFT, Lab, Notebook

VECTORS = Path(__file__).parents[2] / "js" / "test" / "vectors.json"
TEXTS = [text.encode("utf-8", "replace").decode() for text in json.loads(VECTORS.read_text())]
IMAGE = "<img src=https://evil.example>"
#: Where one reader of Markdown may see code and another a tag.
TRICKS = [
    f"```\n\\begin{{a}}\n```\n\\end{{a}}\n```\n{IMAGE}\n```",
    f"   ```\n   $\n   ```\n$x$\n```\n{IMAGE}\n```\n```",
    f"$a{{$\n   ```\n   }}$\n   ```\n\n```\n{IMAGE}\n```",
    f"- ```\n{IMAGE}\n```\n> ```\n{IMAGE}\n\n{IMAGE}",
    f"`a\nb` {IMAGE} `c",
    f"| `a | {IMAGE} |`\n|---|---|\n| `a | {IMAGE} |`",
    f"text\n    ```\n    a ``` {IMAGE}\n    ```\n2. ```\n   a ``` {IMAGE}",
    f"`\\begin{{a}}` \\end{{a}} `{IMAGE}` `\\\\(` \\\\) `{IMAGE}`",
    f"https://a.b/`<x`{IMAGE}` [a](b`c) `{IMAGE}` ~`` {IMAGE}~ {IMAGE}`` $www.a.b$`{IMAGE}`",
    f"_{IMAGE} ```a_ {IMAGE} `b```\n` $$ `\n\n```\n$$ {IMAGE}\n```",
    f"$`$ {IMAGE} `x` $a\\\\$ {IMAGE} `$ {IMAGE}`",
]
CELL = 40  # JupyterLab shows the first 50 outputs of a cell
UNFOLD = "document.querySelectorAll('details').forEach((folded) => { folded.open = true; })"


@pytest.fixture
def found(listen: Callable[..., None]) -> list[str]:
    """What a page does that nobody asked for, as it happens."""
    found: list[str] = []
    listen("dialog", lambda dialog: (found.append(dialog.message), dialog.dismiss()))
    listen("request", lambda request: found.append(request.url) if "evil" in request.url else None)
    return found


def saved() -> nbformat.NotebookNode:
    """A notebook with transcripts of such texts, for which nobody has vouched."""
    talks = [[{"role": "assistant", "content": text}] for text in TEXTS + TRICKS]
    outputs = [nbformat.v4.new_output("display_data", bundle(talk)) for talk in talks]
    parts = [outputs[start : start + CELL] for start in range(0, len(outputs), CELL)]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("nbgen.Chat()", outputs=part) for part in parts]
    )
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def test_in_the_panel(lab: Lab, page: Page, found: list[str]) -> None:
    done = {"role": "assistant", "finish_reason": {"type": "stop"}, "usage": {"completion_tokens": 1}}
    turns = [{"parent": None, "role": "user", "content": "go on"}]
    turns += [{**done, "parent": place, "run": f"r{place}", "content": text} for place, text in enumerate(TEXTS)]
    page.route("**/api/v1/chats/*", lambda route: route.fulfill(json={"chat": "x", "run": None, "turns": turns}))
    notebook = Notebook.of(page, lab, "import nbgen\nnbgen.Chat()")
    notebook.run(0)
    answers = page.get_by_role("article", name="Answer")
    answers.first.wait_for()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # for paper, all of a long conversation is drawn
    expect(answers).to_have_count(len(TEXTS))
    expect(answers.nth(1)).to_contain_text("<img src=x onerror=alert(1)>")
    tags = answers.locator("script, img, svg, iframe, style, base, form, object, embed, link, meta, input")
    expect(tags).to_have_count(0)
    addresses = answers.get_by_role("link").evaluate_all("links => links.map(({ href }) => href.split(':')[0])")
    assert set(addresses) <= {"http", "https", "mailto"}
    page.wait_for_timeout(300)
    assert found == []
    notebook.leave()


def test_in_a_saved_notebook_that_is_not_trusted(lab: Lab, page: Page, found: list[str]) -> None:
    nbformat.write(saved(), lab.root / LEFT)
    notebook = Notebook.read(page, lab)
    assert page.evaluate("window.jupyterapp.shell.currentWidget.content.model.cells.get(0).trusted") is False
    expect(page.get_by_text("Transcript: 1 message")).to_have_count(len(TEXTS + TRICKS))
    page.evaluate(UNFOLD)
    expect(notebook.output(0)).to_contain_text("alert(1)")
    page.wait_for_timeout(300)
    assert found == []
    notebook.leave()


def test_in_a_page_of_nbconverts(aside: Page, found: list[str]) -> None:
    html, _ = HTMLExporter().from_notebook_node(saved())
    aside.route("**/*", lambda route: route.abort())  # its own scripts come from elsewhere
    aside.set_content(html, wait_until="domcontentloaded")
    aside.evaluate(UNFOLD)
    expect(aside.get_by_text("Transcript: 1 message")).to_have_count(len(TEXTS + TRICKS))
    expect(aside.locator("body")).to_contain_text("alert(1)")
    aside.wait_for_timeout(300)
    assert found == []
