"""What Tab offers in the first line of a magic, among all that IPython knows."""

from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from tests.notebook.test_magics import offered, run


@pytest.fixture(params=[True, False], ids=["jedi", "plain"])
def completed(
    request: pytest.FixtureRequest, shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> InteractiveShell:
    """A shell with some variables, in a folder with some files."""
    for folder in ("dir", "big model", "home/models"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("dog.png", "dog.json", "my dog.png"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    shell.Completer.use_jedi = request.param
    shell.run_cell(
        "class Own:\n    dog = 1\n    @property\n    def broken(self): return 1 / 0\nown = Own()\nown.deeper = own"
    )
    return shell


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%%nbgen --tool own.", ["own.broken", "own.deeper", "own.dog"]),
        ("%%nbgen --schema=own.deeper.do", ["own.deeper.dog"]),
        ("%%nbgen --image do", ["dog.json", "dog.png"]),
        ("%%nbgen --image ./do", ["./dog.json", "./dog.png"]),
        ("%%nbgen --image my", [r"my\ dog.png"]),
        (r"%%nbgen --image my\ d", [r"my\ dog.png"]),
        ("%%nbgen --schema d", ["dict", "dir/", "dog.json"]),
        ("%%nbgen --out o", ["own"]),
        ("%nbgen load b", ["bundled", r"big\ model/"]),
        ("%nbgen load ~/m", ["~/models/"]),
        ("%nbgen load dir/ ", ["--quantization"]),
        ("state = %nbgen sta", ["status"]),
        ("%nbgen", ["%nbgen", "%%nbgen"]),
        ("\n# ask\n%%nbgen --te", ["--temperature"]),
    ],
)
def test_values_are_completed(completed: InteractiveShell, line: str, words: list[str]) -> None:
    assert offered(completed, line) == words


@pytest.mark.parametrize(
    "line",
    [
        *("%nbgen status ", "%nbgen x", "%nbgen fix ", "%nbgen connect h", "%nbgen connect http://x --token "),
        *("%%nbgen --temperature ", "%%nbgen -t 0 --stop ", "%%nbgen --system p", "%%nbgen --out p", "%%nbgen x"),
        *("%%nbgen --stop \\", "%%nbgen --stop \\=", "%nbgen connect http://x?token=a"),
    ],
)
def test_where_nbgen_knows_nothing_ipython_offers_nothing_else(completed: InteractiveShell, line: str) -> None:
    assert offered(completed, line) == [line.rpartition(" ")[2]]


def test_the_cells_that_failed_are_offered(shell: InteractiveShell) -> None:
    for cell in ("1 / 0", "2", "3 / 0"):
        run(shell, cell)
    assert offered(shell, "%nbgen fix ") == ["3", "1"]


def test_jupyterlab_names_the_kind_of_each(shell: InteractiveShell) -> None:
    with provisionalcompleter():
        assert {found.type for found in shell.Completer.completions("%nbgen ", 7)} == {"param"}
