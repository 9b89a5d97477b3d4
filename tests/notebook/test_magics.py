"""The magics in a real shell, and in a real kernel."""

import re
from types import SimpleNamespace

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient

from nbgen.notebook.magics import complete
from nbgen.notebook.private_server import PrivateServer


def run(shell: InteractiveShell, source: str) -> tuple[str, bool]:
    """What the cell printed, and whether it succeeded."""
    with capture_output() as captured:
        outcome = shell.run_cell(source, store_history=True)
    return captured.stdout + captured.stderr, outcome.success


def test_an_answer_is_printed_once_and_kept(shell: InteractiveShell) -> None:
    printed, good = run(shell, "%%nbgen --max-new-tokens 6 -t 0 --out answer\nhello")
    assert good
    result = shell.user_ns["answer"]
    assert shell.user_ns["_"] is result
    assert shell.user_ns["Out"][shell.execution_count - 1] is result
    assert "6 tokens" in printed
    assert "length" in printed
    assert "Result(" not in printed


def test_values_of_the_notebook_are_filled_in(shell: InteractiveShell) -> None:
    shell.user_ns["name"] = "Ada"
    run(shell, "%%nbgen --max-new-tokens 1\nhi {{name}}, {x} $y")
    assert shell.user_ns["_"].messages[0]["content"] == "hi Ada, {x} $y"
    run(shell, "%%nbgen --max-new-tokens 1 --raw --system 'be short'\nhi {{name}}")
    assert [turn["content"] for turn in shell.user_ns["_"].messages] == ["be short", "hi {{name}}"]


def test_a_text_can_be_continued(shell: InteractiveShell) -> None:
    run(shell, "%%nbgen --complete --max-new-tokens 2 --seed 1 --top-p 0.9\nOnce")
    result = shell.user_ns["_"]
    assert result.messages is None
    assert result.params == {"max_new_tokens": 2, "sampling_seed": 1, "top_p": 0.9}


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%%nbgen\n{{missing}}", "name 'missing' is not defined"),
        ("%%nbgen --zzz 1\nhi", "unrecognized arguments"),
        ("%%nbgen --temperature -3\nhi", "temperature must be at least 0"),
        ("%%nbgen --out 'a b'\nhi", "not a variable's name"),
        ("%nbgen frobnicate", "choose from status, load, unload, connect"),
        ("%nbgen connect", "needs the server's URL"),
        ("%nbgen load 'open quote", "No closing quotation"),
    ],
)
def test_mistakes_are_one_line(shell: InteractiveShell, cell: str, words: str) -> None:
    printed, good = run(shell, cell)
    assert not good
    assert "UsageError" in printed
    assert words in printed
    assert "Traceback" not in printed


def test_errors_of_the_server_are_one_line(shell: InteractiveShell) -> None:
    printed, good = run(shell, "%nbgen connect http://127.0.0.1:9/")
    assert not good
    assert "ServerNotFound: nothing answers at http://127.0.0.1:9/nbgen/" in printed
    assert "Traceback" not in printed


def test_the_status_is_shown(shell: InteractiveShell) -> None:
    printed, good = run(shell, "%nbgen")
    assert good
    assert "ready" in printed


def test_help_comes_from_the_options(shell: InteractiveShell) -> None:
    text = shell.inspector.info(shell.magics_manager.magics["cell"]["nbgen"])["docstring"]
    assert "--temperature" in text
    assert "Send the cell to the model" in text


def test_options_and_actions_are_completed() -> None:
    options = complete(None, SimpleNamespace(line="%%nbgen --te", symbol="--te"))
    assert options == ["--temperature"]
    assert complete(None, SimpleNamespace(line="%nbgen lo", symbol="lo")) == ["load"]


def test_loading_twice_and_unloading_leave_nothing_behind(shell: InteractiveShell) -> None:
    shell.run_line_magic("reload_ext", "nbgen")
    shell.run_line_magic("load_ext", "nbgen")
    hooks = shell.strdispatchers["complete_command"].strs
    assert len(hooks["%%nbgen"].chain) == 1
    shell.run_line_magic("unload_ext", "nbgen")
    assert "nbgen" not in shell.magics_manager.magics["cell"]
    assert "nbgen" not in shell.magics_manager.magics["line"]
    assert "%%nbgen" not in hooks
    shell.run_line_magic("load_ext", "nbgen")
    assert "nbgen" in shell.magics_manager.magics["cell"]


def test_a_kernel_shows_markdown_and_a_caption(connected: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBGEN_URL", connected.url)
    token = connected.client._http.headers["Authorization"].removeprefix("Bearer ")
    monkeypatch.setenv("NBGEN_TOKEN", token)
    cells = ["%load_ext nbgen", "%%nbgen --max-new-tokens 8 -t 0\nhi", "print(len(_.text), len(Out[2].text))", "%nbgen"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    answer, caption = notebook.cells[1].outputs
    assert {"text/plain", "text/markdown"} == set(answer.data)
    assert re.match(r"8 tokens · .* · length", caption.data["text/plain"])
    lengths = notebook.cells[2].outputs[0].text.split()
    assert lengths[0] == lengths[1] != "0"
    assert "ready" in notebook.cells[3].outputs[0].data["text/html"]
