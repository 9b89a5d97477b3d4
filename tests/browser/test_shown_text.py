"""A model's text in a cell's output looks as it does in the panel."""

from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from playwright.sync_api import Page, expect

from nbgen.notebook.shown_text import as_typed, text_bundle
from tests.browser.lab import LEFT, Lab, Notebook

TEXTS = {
    "Use the <title> tag.\n\n1. then": "Use the <title> tag.\nthen",
    "It costs $5 today and $6 tomorrow, export PATH=$HOME/bin:$PATH": None,
    "Map<String, List<Foo>> and ![x](https://evil.example)": "Map<String, List<Foo>> and !x",
    "```rust\nlet v = vec![1, 2]; // <b> $1 $2\n```": "let v = vec![1, 2]; // <b> $1 $2",
    "1. do\n   ```sh\n   echo $A <b> $B\n   ```\nand `$C <i>`, $5": "do\necho $A <b> $B\nand $C <i>, $5",
    "\\$1 \\\\(x\\\\) `vec![$1]`": "$1 \\(x\\) vec![$1]",
}
TYPED = "# no *heading* $5 and $6\n  2. \\(x\\) <b>"


def saved(path: Path) -> nbformat.NotebookNode:
    shown = [*map(text_bundle, TEXTS), {"text/plain": TYPED, "text/markdown": as_typed(TYPED)}]
    shown.append(text_bundle("$x^2$ and \\(a<b\\)"))
    outputs = [nbformat.v4.new_output("display_data", bundle) for bundle in shown]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=outputs)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return notebook


def plain(text: str) -> str:
    """Without what lies between lines."""
    return " ".join(text.replace("\xa0", " ").split())


def test_a_saved_output_in_jupyterlab(lab: Lab, page: Page) -> None:
    saved(lab.root / LEFT)
    notebook = Notebook.read(page, lab)
    outputs = notebook.output(0).locator(".jp-RenderedMarkdown")
    expect(outputs).to_have_count(len(TEXTS) + 2)
    expect(outputs.last.locator("mjx-container")).to_have_count(2)
    expect(notebook.output(0).locator("mjx-container")).to_have_count(2)
    found = [plain(text) for text in outputs.all_inner_texts()]
    assert found[:-1] == [plain(want or text) for text, want in TEXTS.items()] + [plain(TYPED)]
    notebook.leave()


def test_a_page_of_nbconverts(aside: Page, tmp_path: Path) -> None:
    html, _ = HTMLExporter().from_notebook_node(saved(tmp_path / "shown.ipynb"))
    aside.route("**/*", lambda route: route.abort())
    aside.set_content(html, wait_until="domcontentloaded")
    outputs = aside.locator(".jp-RenderedMarkdown")
    found = [plain(text) for text in outputs.all_inner_texts()]
    assert found[:-1] == [plain(want or text) for text, want in TEXTS.items()] + [plain(TYPED)]
