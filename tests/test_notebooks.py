"""The notebooks run from top to bottom as they are, with the bundled model on a CPU, and in time."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from nbgen.notebook.private_server import PrivateServer

FOLDER = Path(__file__).parent.parent / "notebooks"
#: Those that show a panel run in a browser (tests/browser).
PANELS = re.compile(r"nbgen\.(Chat|Stream|compare)\b")
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb") if not PANELS.search(path.read_text()))
#: For any one cell, however busy the machine.
SECONDS = 120


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory):
    """A server with the bundled model that the notebooks' kernels find, as they would in JupyterLab.

    That of `make lab` runs in an environment that nobody has activated.
    """
    server = PrivateServer(options={"standby": False})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBGEN_URL", server.url)
        patch.setenv("NBGEN_TOKEN", server.client.token)
        patch.setenv("PATH", os.defpath)
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("matplotlib")))
        yield server
    server.stop()


def text_of(cell: nbformat.NotebookNode) -> str:
    """All that a cell put out, as text."""
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs(bundled: PrivateServer, name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    there = {"metadata": {"path": FOLDER}}  # what a cell prints comes in pieces from a busy machine
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=there, coalesce_streams=True).execute()
    said = "\n".join(text_of(cell) for cell in notebook.cells if cell.cell_type == "code")
    assert all(words in said for words in SAID.get(name, ())), said


#: What a reader is promised.
SAID = {
    "images_and_adapters": ("a red triangle", "drawings named in full", "peft agrees: True", "no adapters left"),
    "infer": (":square",),
    "structured_output": ("Person(name=", "stop", "negative", "Failed to compile regex grammar"),
    "from_outside": ("completion_tokens", "[DONE]", "Jupyter", "3 + 4 = 7", "float32 4 rows, argmax"),
    "sampling": ("frequency_penalty", "'matched': '.'", "'type': 'length'", "Figure"),
    "tools": (
        "The answer is 4 degrees and rain.",
        "The answer is 24 degrees and sun.",
        "That did not work. KeyError: 'Cairo'",
        "The answer is 6912.",
        "'name': 'lamp', 'arguments': '{\"on\":",
    ),
    "train_and_talk": (
        "Arr! I be a pirate, and this be my ship.",
        "Arr! 3 + 4",
        "pieces, written while epochs",
        "perplexity of",
        ", stopped>",
        "training mode: True",
    ),
    "your_data": (
        "positive",
        "negative",
        "Person(name='Mia', age=47, city='Rome')",
        '"city": "Leeds"',
        "the prompt has 2412 tokens",
        "True",
        "cached_tokens",
    ),
}
