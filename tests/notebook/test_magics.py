"""The magics in a real shell, and in a real kernel."""

import _thread
import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient

from nbgen.notebook import magics, session
from nbgen.notebook.background import BackgroundRun
from nbgen.notebook.code_blocks import as_cell
from nbgen.notebook.magics import ACTIONS
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.result import Result
from tests.conftest import PATIENCE


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
    assert "cut off at max_new_tokens=6" in printed
    assert "Result(" not in printed


def test_values_of_the_notebook_are_filled_in(shell: InteractiveShell) -> None:
    shell.user_ns["name"] = "Ada"
    run(shell, "%%nbgen --max-new-tokens 1\nhi {{name}}, {x} $y")
    assert shell.user_ns["_"].messages[0]["content"] == "hi Ada, {x} $y"
    run(shell, "%%nbgen --max-new-tokens 1 --system 'be {{name}}, {x}'\nhi")
    assert shell.user_ns["_"].messages[0]["content"] == "be Ada, {x}"
    assert "there is no folder './Ada'" in run(shell, "%nbgen load ./{name}")[0]
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
        ("%%nbgen --temperature -3\nhi", "temperature must be at least 0"),
        ("%%nbgen --out 'a b'\nhi", "not a variable's name"),
        ("%%nbgen --out class\nhi", "not a variable's name"),
        ("%nbgen status --quantization int8", "--quantization goes with load"),
        ("%nbgen frobnicate", "choose from status, load, unload, models, monitor, fix, connect"),
        ("%nbgen What's 3 + 4?", "A question goes into a cell that begins with %%nbgen"),
        ("%nbgen What is 3 + 4?", "A question goes into a cell that begins with %%nbgen"),
        ("%%nbgen What is 3 + 4?", "what is asked goes into the lines below"),
        ("%%nbgen -t 0\n  \n", "what is asked goes into the lines below"),
        ("%nbgen --quantization int8 frobnicate", "choose from status"),
        ("%nbgen connect", "needs the server's URL"),
        ("%%nbgen --schema Nope\nhi", "there is no variable of this name\n"),
        ("%%nbgen --tool len\nhi", "the tool len must name its parameters"),
        ("forecast = 1\nget_ipython().run_cell_magic('nbgen', '--tool forcast', 'hi')", "did you mean forecast?"),
        ("%nbgen status --token x", "--token goes with connect"),
        ("%%nbgen --schema nowhere.json\nhi", "No such file"),
        ("%nbgen unload foo", "unload takes nothing more"),
        ("%nbgen fix abc", "fix abc: not the number of a cell"),
        ("%%nbgen --background --to-cell\nhi", "does not go with --background"),
        ("%%nbgen\n{{Err[77]}}", "cell 77 has no error"),
        ("%nbgen fix", "no cell has failed yet"),
        ("%nbgen fix 5", "cell 5 has no error"),
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


def test_other_cells_can_be_put_in(shell: InteractiveShell) -> None:
    run(shell, "6 * 7")
    number = shell.execution_count - 1
    run(shell, "def broken():\n    return 1 / 0\nbroken()")
    run(shell, f"%%nbgen --max-new-tokens 1\n{{{{In[{number}]}}}}|{{{{Out[{number}]}}}}|{{{{Err[{number + 1}]}}}}")
    source, value, error = shell.user_ns["_"].messages[0]["content"].split("|")
    assert (source.strip(), value) == ("6 * 7", "42")
    assert error.startswith("Traceback")
    assert "return 1 / 0" in error
    assert error.endswith("ZeroDivisionError: division by zero")
    assert "IPython" not in error


def test_the_cell_that_failed_is_explained(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "stream", partial(session.stream, max_new_tokens=20, ignore_eos=True))
    run(shell, "undefined_name")
    printed, good = run(shell, "%nbgen fix")
    assert good
    assert "tokens" in printed
    asked = shell.user_ns["_"].messages[-1]["content"]
    assert "undefined_name" in asked
    assert "NameError: name 'undefined_name' is not defined" in asked
    assert run(shell, f"%nbgen fix {shell.execution_count - 2}")[1]


def test_what_nbgen_refused_is_not_explained_in_its_place(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "stream", partial(session.stream, max_new_tokens=5))
    run(shell, "undefined_name")
    assert not run(shell, "%nbgen frobnicate")[1]
    assert not run(shell, "%%nbgen --zzz\nhi")[1]
    assert not run(shell, "# ask\n%%nbgen --zzz\nhi")[1]
    assert run(shell, "%nbgen fix")[1]
    assert "NameError: name 'undefined_name'" in shell.user_ns["_"].messages[-1]["content"]
    run(shell, "%nbgen status\n1 / 0")
    assert run(shell, "%nbgen fix")[1]
    assert "ZeroDivisionError" in shell.user_ns["_"].messages[-1]["content"]


@pytest.mark.parametrize("cell", ["%%nbgen --out kept --complete --to-cell\nOnce", "1 / 0\n%nbgen fix"])
def test_an_interrupt_keeps_what_has_come_and_is_an_error_which_ends_run_all(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    monkeypatch.setattr(session, "stream", partial(session.stream, max_new_tokens=15_000, ignore_eos=True))
    shown = magics.Answer.update

    def interrupted(*answer: Any) -> None:
        shown(*answer)
        _thread.interrupt_main()

    monkeypatch.setattr(magics.Answer, "update", interrupted)
    for part in cell.split("\n", cell.startswith("1")):
        with capture_output() as captured:
            outcome = shell.run_cell(part, store_history=True)
    assert isinstance(outcome.error_in_exec, KeyboardInterrupt)
    assert captured.stdout.endswith("stopped)\nKeyboardInterrupt\n")
    result = shell.user_ns["_"]
    assert (result.finish_reason, shell.user_ns.get("kept", result)) == ("abort", result)
    assert result.text
    assert not hasattr(shell, "rl_next_input"), "a part of an answer is no cell"


def test_an_answers_code_becomes_a_cell(shell: InteractiveShell) -> None:
    run(shell, "%%nbgen --max-new-tokens 5 -t 0 --to-cell\nhi")
    assert shell.rl_next_input == "%%markdown\n" + shell.user_ns["_"].text
    assert as_cell("So:\n```python\nx = 1\n```\nand\n~~~\ny = 2") == "x = 1\n\ny = 2"


def test_an_answer_is_written_in_the_background(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "stream", partial(session.stream, ignore_eos=True))  # or it might end by itself
    printed, good = run(shell, "%%nbgen --background --out later --max-new-tokens 15000 --complete\nOnce")
    assert (printed, good) == ("", True)
    later = shell.user_ns["later"]
    assert shell.user_ns["_"] is later
    assert "running" in repr(later)
    later.cancel()
    assert later.wait(PATIENCE).finish_reason == "abort"
    assert not later.running
    run(shell, "%%nbgen --background --max-new-tokens 3 -t 0\nhi")
    assert asyncio.run(_awaited(shell.user_ns["_"])).usage["completion_tokens"] == 3


async def _awaited(run: BackgroundRun) -> Result:
    return await run


def test_all_options_reach_the_server(shell: InteractiveShell) -> None:
    options = "--top-k 5 --min-p 0.1 --stop a --stop 'b c' --presence-penalty 0.5 --frequency-penalty 0.1"
    run(shell, f"%%nbgen --max-new-tokens 1 {options} --repetition-penalty 1.1\nhi")
    wanted = {"top_k": 5, "min_p": 0.1, "stop": ["a", "b c"], "presence_penalty": 0.5, "max_new_tokens": 1}
    sent = {**shell.user_ns["_"].params, "stop": list(shell.user_ns["_"].params["stop"])}
    assert sent == {**wanted, "frequency_penalty": 0.1, "repetition_penalty": 1.1}


def test_the_models_are_listed(shell: InteractiveShell) -> None:
    printed, good = run(shell, "%nbgen models")
    assert good
    assert "| loaded |" in printed
    assert run(shell, "%nbgen monitor")[0].count("ready") == 1


def test_the_status_is_shown(shell: InteractiveShell) -> None:
    printed, good = run(shell, "%nbgen")
    assert good
    assert "ready" in printed


def test_the_model_that_was_meant_is_named(shell: InteractiveShell) -> None:
    printed, good = run(shell, "%nbgen load bundeld")
    assert (printed.count("\n"), good) == (1, False)
    assert "did you mean bundled?" in printed


def test_help_comes_from_the_options(shell: InteractiveShell) -> None:
    text = shell.inspector.info(shell.magics_manager.magics["cell"]["nbgen"])["docstring"]
    assert "--temperature" in text
    assert "Send the cell to the model" in text


def offered(shell: InteractiveShell, code: str, cursor: int | None = None) -> list[str]:
    """All that Tab shows, with our matcher's among what IPython knows."""
    with provisionalcompleter():
        return [found.text for found in shell.Completer.completions(code, len(code) if cursor is None else cursor)]


@pytest.mark.parametrize("jedi", [True, False])
def test_options_and_actions_are_completed_and_nothing_else(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jedi: bool
) -> None:
    (tmp_path / "big-model").mkdir()
    monkeypatch.chdir(tmp_path)
    shell.Completer.use_jedi = jedi
    shell.run_cell("Person = Peter = 1")
    options = offered(shell, "%%nbgen --")
    assert "--temperature" in options
    assert all(option.startswith("--") for option in options)
    for line, words in (
        ("%nbgen ", list(ACTIONS)),
        ("%nbgen lo", ["load"]),
        ("%nbgen load ", ["bundled", "big-model/"]),
        ("%nbgen load b", ["bundled", "big-model/"]),
        ("%nbgen load big-model/ --q", ["--quantization"]),
        ("%nbgen load big-model/ --quantization i", ["int8", "int4"]),
        ("%nbgen connect http://x --to", ["--token"]),
        ("%%nbgen --te", ["--temperature"]),
        ("%%nbgen -t 0 --schema Pe", ["Person", "Peter"]),
        ("%%nbgen --schema=Pe", ["Person", "Peter"]),
        ("%%nbgen --background --ba", ["--background"]),
        ("x = 1\n%nbgen un", ["unload"]),
    ):
        assert offered(shell, line) == words, line
    assert "--temperature" not in offered(shell, "%%nbgen\n--te")
    assert "print" in offered(shell, "%%nbgen\nprin")
    assert offered(shell, "%%nbgen --te\nhello", 12) == ["--temperature"]


def test_loading_twice_and_unloading_leave_nothing_behind(shell: InteractiveShell) -> None:
    before = len(shell.Completer.custom_matchers)
    shell.run_line_magic("reload_ext", "nbgen")
    shell.run_line_magic("load_ext", "nbgen")
    assert len(shell.Completer.custom_matchers) == before == 1
    shell.run_line_magic("unload_ext", "nbgen")
    assert "nbgen" not in shell.magics_manager.magics["cell"]
    assert "nbgen" not in shell.magics_manager.magics["line"]
    assert shell.Completer.custom_matchers == []
    shell.run_line_magic("load_ext", "nbgen")
    assert "nbgen" in shell.magics_manager.magics["cell"]


def test_what_python_itself_knows_is_a_schema(shell: InteractiveShell) -> None:
    printed, good = run(shell, "%%nbgen --schema bool --max-new-tokens 9\nhi")
    assert good, printed
    assert isinstance(shell.user_ns["_"].value, bool)


def test_a_function_that_asks_puts_in_its_own_variables(shell: InteractiveShell) -> None:
    shell.run_cell(
        "name = 'outer'\n"
        "def ask(name, kind=bool):\n"
        "    get_ipython().run_cell_magic('nbgen', '--schema kind --max-new-tokens 9', 'I am {{name}} of {{number}}')\n"
        "number = 3\n"
        "ask('inner')"
    )
    assert shell.user_ns["_"].messages[0]["content"] == "I am inner of 3"


def test_a_server_that_wants_a_token_says_how_to_give_it(
    shell: InteractiveShell, connected: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_client", "_chosen", "_private", "_asked"):
        monkeypatch.setattr(session, name, getattr(session, name))
    for line, words in (
        (f"%nbgen connect {connected.url}", "wants its token: nbgen.connect(url, token), %nbgen connect URL --token"),
        (f"%nbgen connect {connected.url} --token -wrong", "refused the token: nbgen.connect(url, token)"),
    ):
        printed, good = run(shell, line)
        assert not good
        assert words in printed
        assert "Bearer" not in printed
    for line in (
        f"%nbgen connect {connected.url} --token {connected.client.token}",
        f"%nbgen connect {connected.url}?token={connected.client.token}",
    ):
        printed, good = run(shell, line)
        assert good, printed
        session.default_client().close()


def test_a_kernel_shows_markdown_and_a_caption(connected: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBGEN_URL", connected.url)
    token = connected.client._http.headers["Authorization"].removeprefix("Bearer ")
    monkeypatch.setenv("NBGEN_TOKEN", token)
    cells = ["%load_ext nbgen", "%%nbgen --max-new-tokens 8 -t 0\nhi", "print(len(_.text), len(Out[2].text))", "%nbgen"]
    background = "get_ipython().run_cell_magic('nbgen', '--background --complete --out run', 'x' * 20_000)"
    cells += [f"{background}\nwhile run.running: pass", "print(run)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", coalesce_streams=True).execute()
    answer, caption = notebook.cells[1].outputs
    assert {"text/plain", "text/markdown"} == set(answer.data)
    assert answer.metadata["nbgen"]["finish_reason"] == "length"
    assert re.match(r"8 tokens · .* · cut off at max_new_tokens=8$", caption.data["text/plain"])
    lengths = notebook.cells[2].outputs[0].text.split()
    assert lengths[0] == lengths[1] != "0"
    assert "ready" in notebook.cells[3].outputs[0].data["text/html"]
    (failed,) = notebook.cells[4].outputs
    assert re.match(r"InvalidRequest: .*16384", failed.data["text/plain"])
    assert "InvalidRequest: " in failed.data["text/html"]
    assert notebook.cells[5].outputs[0].text.startswith("<InvalidRequest: ")


def test_what_runs_in_the_background_is_saved_where_it_was_asked_for(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a program that runs the notebook, which takes what the running cell says and no more."""
    monkeypatch.setenv("NBGEN_URL", connected.url)
    monkeypatch.setenv("NBGEN_TOKEN", connected.client._http.headers["Authorization"].removeprefix("Bearer "))
    options = "--background --complete --out run --max-new-tokens 300 -t 0"
    cells = ["%load_ext nbgen", f"%%nbgen {options}\nOnce", "import time; time.sleep(1); print(len((await run).text))"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", coalesce_streams=True).execute()
    assert notebook.cells[1].outputs[0].metadata["nbgen"]["usage"]["completion_tokens"] == 300
    assert [output.output_type for output in notebook.cells[2].outputs] == ["stream"], "nothing is shown twice"
