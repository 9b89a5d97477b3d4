"""How the first line of a magic is read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.notebook.test_magics import run


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%nbgen load ./my big model", "quote a value of several words: load './my big model'"),
        ("%nbgen load ./m x --quantization int8", "quote a value of several words: load './m x'"),
        ("%%nbgen --system You are a pirate\nhi", "quote a value of several words: --system 'You are a pirate'"),
        (
            "%%nbgen hello there\nhi",
            "unrecognized arguments: hello there; what is asked goes into the lines below this",
        ),
        (
            "%%nbgen -t 0 hello there\nhi",
            "unrecognized arguments: hello there; what is asked goes into the lines below",
        ),
        ("%%nbgen max_new_tokens=3\nhi", "did you mean --max-new-tokens?"),
        ("%%nbgen temp=0\nhi", "did you mean --temperature?"),
        ("%%nbgen --temprature 3\nhi", "unrecognized arguments: --temprature 3; did you mean --temperature?"),
        ("%%nbgen --model x\nhi", "unrecognized arguments: --model x\n"),
        ("%%nbgen --zzz 1\nhi", "unrecognized arguments"),
        ("%nbgen load 'open quote", "No closing quotation"),
    ],
)
def test_what_was_meant_is_said_in_one_line(shell: InteractiveShell, cell: str, words: str) -> None:
    printed, good = run(shell, cell)
    assert not good
    assert words in printed
    assert "Traceback" not in printed


def test_what_follows_a_hash_is_a_comment(shell: InteractiveShell) -> None:
    readme = re.findall(
        r"^%nbgen .*#.*$", (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [line.split()[1] for line in readme] == ["load", "#", "models", "unload"]
    assert "there is no folder './my-model'" in run(shell, readme[0])[0]
    assert "ready" in run(shell, readme[1])[0]
    assert "| loaded |" in run(shell, "%nbgen models # whose engine's ready?")[0]
    run(shell, """%%nbgen --max-new-tokens 1 --stop '#' --stop "a # b" --stop c#d  # what isn't an option\nhi""")
    assert list(shell.user_ns["_"].params["stop"]) == ["#", "a # b", "c#d"]
    run(shell, "%%nbgen --max-new-tokens 1 --stop a\\  # a space\nhi")
    assert list(shell.user_ns["_"].params["stop"]) == ["a "]


def test_a_semicolon_at_the_end_shows_nothing_and_is_no_part_of_a_value(shell: InteractiveShell) -> None:
    for line in ("%nbgen status;", "%nbgen models ;", "%nbgen status ; # what is loaded"):
        assert run(shell, line) == ("", True), line
    assert "there is no folder './m'," in run(shell, "%nbgen load ./m;")[0]
    assert "there is no folder './m'," in run(shell, "%nbgen load ./m --quantization int8;")[0]
    assert "cell 77 has no error" in run(shell, "%nbgen fix 77;")[0]
    assert "--quantization" in run(shell, "%nbgen --help;")[0]
    for options in ("--out kept;", "--out kept --background;", "--out kept -t 0;", "--out kept --stop 'a;' ;"):
        assert run(shell, f"%%nbgen --max-new-tokens 1 {options}\nhi")[1], options
        assert shell.user_ns.pop("kept") is shell.user_ns["_"]


def test_a_semicolon_that_is_quoted_or_a_value_is_text(shell: InteractiveShell) -> None:
    for option, text in (("--stop ';'", ";"), ("--stop ;", ";"), ("--stop=;", ";"), ("--stop a\\;", "a;")):
        run(shell, f"%%nbgen --max-new-tokens 1 {option}\nhi")
        assert list(shell.user_ns["_"].params["stop"]) == [text]


def test_stops_may_have_line_breaks(shell: InteractiveShell) -> None:
    run(shell, r"""%%nbgen --max-new-tokens 1 --stop "\n" --stop '\n\t' --stop 'C:\\n' --stop '\d'""" + "\nhi")
    assert list(shell.user_ns["_"].params["stop"]) == ["\n", "\n\t", r"C:\n", r"\d"]


def test_a_terminal_waits_for_what_is_asked(shell: InteractiveShell) -> None:
    states = [shell.check_complete(cell)[0] for cell in ("%%nbgen -t 0", "%%nbgen -t 0\nhi", "%%nbgen -t 0\nhi\n\n")]
    assert states == ["incomplete", "incomplete", "complete"]


def test_comments_may_stand_above(shell: InteractiveShell) -> None:
    assert run(shell, "# ask\n\n%%nbgen --max-new-tokens 1\nhi\n# bye")[1]
    assert shell.user_ns["_"].messages[0]["content"] == "hi\n# bye"
    assert "A question goes into a cell that begins with %%nbgen" in run(shell, "# ask\n%nbgen What is it?")[0]
    assert "what is asked goes into the lines below" in run(shell, "\n# ask\n%%nbgen -t 0")[0]
    assert "not found" in run(shell, "x = 1\n%%nbgen\nhi")[0]


def test_what_looks_like_a_prompt_is_asked_as_it_stands(shell: InteractiveShell) -> None:
    cell = ">>> add(1, 2)\n3\nIn [1]: x = 1\n... what comes next?"
    run(shell, f"%%nbgen --max-new-tokens 1\n{cell}")
    assert shell.user_ns["_"].messages[0]["content"] == cell
    run(shell, "  %%nbgen --max-new-tokens 1\n  hi\n    there")
    assert shell.user_ns["_"].messages[0]["content"] == "hi\n  there"


def test_help_lists_all_options(shell: InteractiveShell) -> None:
    line, good = run(shell, "%nbgen --help")
    assert good
    assert "--quantization" in line
    assert "load: a folder or a model's name" in line
    for cell in ("%%nbgen --help", "%%nbgen -t 0 -h\nhello"):
        printed, good = run(shell, cell)
        assert good
        assert "--max-new-tokens" in printed
        assert "leave {{...}} as it is" in printed
        assert r'in which "\n" is a line break' in " ".join(printed.split())
    run(shell, "%%nbgen --max-new-tokens 1 --system 'explain what -h means'\nhi")
    assert shell.user_ns["_"].messages[0]["content"] == "explain what -h means"
    shell.run_line_magic("unload_ext", "nbgen")
    assert shell.input_transformers_cleanup[0].__name__ != "one_line"


#: In a process of its own, since the magics' help is made as they are imported.
HELP = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbgen")
for kind in ("line", "cell"):
    print(shell.find_magic("nbgen", kind).__doc__, end="<>")
shell.run_line_magic("nbgen", "--help")
"""


def test_help_is_plain_text_where_a_kernel_has_colours(tmp_path: Path) -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", HELP], env=environment, check=True, capture_output=True, text=True)
    assert "\x1b" not in done.stdout
    line, cell, printed = done.stdout.split("<>")
    assert line.startswith("::\n\n  %nbgen [--quantization KIND]")
    assert cell.startswith("::\n\n  %%nbgen [--temperature TEMPERATURE]")
    assert printed.strip() == line.removeprefix("::").strip()
