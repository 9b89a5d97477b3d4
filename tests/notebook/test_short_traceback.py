"""What a notebook shows of an error: the person's own lines and the words, not the way through nbgen."""

import _thread
import copy
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

import nbgen
from tests.soak import soaking


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("nbgen.generate('x', temprature=1)", "did you mean 'temperature'"),
        soaking("nbgen.map(['x'], temprature=1)", "did you mean 'temperature'"),
        ("nbgen.Chat(temprature=1)", "did you mean 'temperature'"),
        ("nbgen.compare('x', temperature=[-1])", "temperature"),
        ("nbgen.generate('x', model='bundled')", "nbgen.load"),
        ("nbgen.genrate('x')", "did you mean 'generate'"),
        ("nbgen.Compare('x')", "did you mean 'compare'"),
        soaking("nbgen.nothing_such", "has no attribute 'nothing_such'"),
        ("nbgen.generate()", "missing 1 required positional argument: 'prompt'"),
        soaking("nbgen.logprobs('')", "the prompt is empty"),
        ("nbgen.Chat(system=5)", "expected a unicode string, not the int 5"),
        ("nbgen.Chat(height=-5)", "height"),
        soaking("nbgen.Stream(5)", "expected a unicode string, not the int 5"),
        ("nbgen.connect('http://127.0.0.1:9/')", "nothing answers"),
        soaking("nbgen.chat()('')", "the message is empty"),
        ("nbgen.chat().stream(5)", "a message is a text, got int"),
        soaking("nbgen.chat(system=5)", "system is a text, got int"),
        ("nbgen.generate('x', system=b'be short')", "system is a text, got bytes"),
        ("nbgen.generate('x', max_new_tokens=1).value", "asked for without a schema"),
        ("nbgen.generate('x', max_new_tokens=1).upper()", "its text has: .text.upper"),
        soaking("nbgen.monitor(interval_ms=5)", "interval_ms"),
        ("nbgen.register(5, None, inputs={}, outputs={})", "a model's name is made of"),
        ("nbgen.infer(None, {})", "model is the name of one that the server has, got NoneType"),
        ("for text in nbgen.stream('x', json_schema='[]'): pass", "json_schema"),
        ("import copy; copy.copy(nbgen.stream('x'))", "a stream cannot be copied"),
        ("get_ipython().run_cell_magic('nbgen', '--background --out run', 'x' * 20_000); run.wait()", "16384"),
    ],
)
def test_only_the_persons_own_lines_are_shown(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str, words: str
) -> None:
    shell.run_cell(f"import nbgen\ndef own():\n    {cell}\nown()")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert words in shown
    assert "in own()" in shown
    assert not re.search("nbgen/(notebook|__init__)", shown)


def test_a_name_that_was_meant_is_said_once_where_python_looks_for_one_too(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AttributeError) as raised:
        nbgen.genrate  # type: ignore[attr-defined]  # noqa: B018
    sys.__excepthook__(raised.type, raised.value, raised.tb)
    assert capfd.readouterr().err.endswith("no attribute 'genrate'; did you mean 'generate'?\n")


@pytest.mark.parametrize("options", [{"temprature": 1}, {"system": 5}])
def test_so_it_is_in_a_test_of_the_persons_own(options: dict[str, int]) -> None:
    with pytest.raises(nbgen.errors.InvalidRequest) as raised:
        nbgen.generate("x", **options)  # type: ignore[arg-type]
    assert [entry.path for entry in raised.traceback.filter(raised)] == [Path(__file__)]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("await nbgen.stream('x', json_schema='[]')", "json_schema"),
        ("async for text in nbgen.stream('x', json_schema='[]'): pass", "json_schema"),
        ("s = nbgen.stream('x'); next(s)\n    async for text in s: pass", "read with a plain `for` or `next`"),
        ("s = nbgen.stream('x'); await anext(s); next(s)", "read with `async for` or `await` already"),
        ("await nbgen.stream('x', max_new_tokens=15_000, ignore_eos=True)", "CancelledError"),
        ("await asyncio.wait_for(nbgen.stream('x', max_new_tokens=15_000, ignore_eos=True), 0.1)", "TimeoutError"),
    ],
)
def test_so_it_is_with_what_is_awaited(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str, words: str
) -> None:
    """A notebook's stop button cancels the task of the cell."""
    stopped = "asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)" if "Cancelled" in words else "pass"
    shell.run_cell(f"import asyncio, nbgen\nasync def own():\n    {stopped}\n    {cell}\nawait own()")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert words in shown
    assert "in own()" in shown
    assert shown.count("nbgen/notebook") == ("Timeout" in words), "IPython leaves out no last line of a cause"
    assert "httpx" not in shown


def test_so_it_is_with_an_interrupt_which_keeps_the_text(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        while not shell.user_ns.get("texts"):
            time.sleep(0.01)
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    cell = "import nbgen\ntexts = []\nanswer = nbgen.stream('x', max_new_tokens=15_000, ignore_eos=True)\n"
    outcome = shell.run_cell(f"{cell}for text in answer:\n    texts.append(text)")
    assert isinstance(outcome.error_in_exec, KeyboardInterrupt)
    assert shell.user_ns["answer"].result.text
    assert shell.user_ns["answer"].result.finish_reason == "abort"
    shown = capsys.readouterr().out
    assert "KeyboardInterrupt" in shown
    assert "httpcore" not in shown
    assert "nbgen/notebook" not in shown


@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("cell", ["nbgen.generate('x', json_schema='[]')", "nbgen.generate()"])
def test_an_error_can_be_handed_to_another_process(
    shell: InteractiveShell, cell: str, make: Callable[[Exception], object]
) -> None:
    """As pools of processes do with those of their workers."""
    shell.run_cell(f"import nbgen\ntry:\n    {cell}\nexcept Exception as error:\n    caught = error")
    made = make(shell.user_ns["caught"])
    assert str(pickle.loads(made) if isinstance(made, bytes) else made) == str(shell.user_ns["caught"])


def test_an_error_of_a_magic_is_one_line(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = shell.run_cell("%nbgen load /nowhere")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).strip().splitlines()
    assert len(shown) == 1
    assert shown[0].startswith("ModelError: ")
    assert pickle.loads(pickle.dumps(outcome.error_in_exec)).message == outcome.error_in_exec.message
