"""What a magic's line names."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbgen.notebook import session
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.variables import medium
from tests.notebook.test_magics import run

OWN = """
from types import SimpleNamespace
def forecast(city: str):
    "The weather."
    return city
class Person:
    kind = bool
own = SimpleNamespace(forecast=forecast, deeper=SimpleNamespace(Person=Person))
own.forecast.kind = bool
"""


@pytest.mark.parametrize("name", ["own.deeper.Person.kind", "Person.kind", "forecast.kind", "own.forecast.kind"])
def test_an_attribute_is_found(shell: InteractiveShell, name: str) -> None:
    shell.run_cell(OWN)
    printed, good = run(shell, f"%%nbgen --schema {name} --max-new-tokens 9\nhi")
    assert good, printed
    assert isinstance(shell.user_ns["_"].value, bool)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--tool own.forcast", "--tool own.forcast: own has no attribute 'forcast'; did you mean forecast?"),
        ("--schema own.deeper.Persons", "own.deeper has no attribute 'Persons'; did you mean Person?"),
        ("--schema Person.name.first", "Person has no attribute 'name'"),
        ("--tool owm.forecast", "--tool owm.forecast: there is no variable of this name; did you mean own?"),
        ("--tool own.", "own has no attribute ''"),
        ("--image own.picture", "own has no attribute 'picture'. Nor is there a file of this name"),
        ("--image other.png", "there is no file 'other.png'"),
    ],
)
def test_the_part_that_is_missing_is_named(shell: InteractiveShell, option: str, words: str) -> None:
    shell.run_cell(OWN)
    printed, good = run(shell, f"%%nbgen {option}\nhi")
    assert not good
    assert words in printed
    assert "Traceback" not in printed


def test_a_method_is_a_tool(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, caller: PrivateServer) -> None:
    monkeypatch.setattr(session, "_client", caller.client)
    shell.run_cell("class Weather:\n    def forecast(self, city: str): 'The weather.'\nstation = Weather()")
    printed, good = run(shell, "%%nbgen --tool station.forecast --max-new-tokens 1\nhi")
    assert good, printed
    assert shell.user_ns["_"].usage["prompt_tokens"] > 50, "the tool stands in the prompt"


def test_a_file_comes_before_an_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = SimpleNamespace(png=b"")
    assert medium("image", "page.png", {"page": page}) is page.png
    Path("page.png").touch()
    assert medium("image", "page.png", {"page": page}) == "page.png"
