"""What a type checker knows of nbgen in a user's own script."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nbgen

ROOT = Path(__file__).parent.parent
SCRIPT = """
from dataclasses import dataclass
import nbgen

@dataclass
class Person:
    name: str

reveal_type(nbgen.generate("x", temperature=0.5, adapter="a"))
reveal_type(nbgen.generate("x", schema=Person))
reveal_type(nbgen.chat()("x"))
reveal_type(next(nbgen.stream("x")))
reveal_type(nbgen.tokenize("x"))

async def main() -> None:
    async for text in nbgen.stream("x"):
        reveal_type(text)
    reveal_type(await nbgen.stream("x"))

nbgen.nope
nbgen.stream("x", temprature=1)
nbgen.generate("x", temperature="hot")
nbgen.Chat(temprature=1)
"""
REVEALED = ["nbgen.notebook.result.Result", "script.Person", "nbgen.notebook.result.Result", "str", "list[int]"]
REFUSED = ['no attribute "nope"', 'meant? "temperature"', "No overload variant", 'meant? "temperature"']


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of the script, and of nothing else; what it knows of nbgen it may know from `make check`."""
    pytest.importorskip("mypy")
    script = tmp_path_factory.mktemp("user") / "script.py"
    names = "".join(f"nbgen.{name}\n" for name in dir(nbgen))
    script.write_text(SCRIPT + names, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(script)]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    return [line.partition("script.py:")[2] for line in done.stdout.splitlines() if "script.py:" in line]


def test_it_knows_what_comes_back(told: list[str]) -> None:
    revealed = [re.findall('type is "(.*)"', line) for line in told]
    assert [name for found in revealed for name in found] == [*REVEALED, "str", "nbgen.notebook.result.Result"]


def test_it_refuses_what_is_not_there(told: list[str]) -> None:
    errors = [line for line in told if " error: " in line]
    assert len(errors) == len(REFUSED), "every name of nbgen's is known"
    for error, words in zip(errors, REFUSED, strict=True):
        assert re.search(words.replace("meant?", "did you mean"), error), error
