"""A line that says how far something is changes only when it says something else."""

import sys

import pytest

from nbgen.notebook.display import LoadProgress, ProgressLine


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.CaptureFixture:
    """What is captured, as if it were shown."""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True)
    return capsys


def test_a_file_has_how_it_began_and_how_it_ended(capsys: pytest.CaptureFixture) -> None:
    for end in ("", "done"):
        line = ProgressLine()
        for fraction in (0.1, 0.2, 0.3):
            line.show("rows", fraction)
        line.clear(end)
    line = ProgressLine()
    line.show("one step")
    line.clear()
    ProgressLine().clear()
    assert capsys.readouterr().err == "rows · 10%\nrows · 30%\nrows · 10%\ndone\none step\n"


def test_what_was_said_is_not_said_again(terminal: pytest.CaptureFixture) -> None:
    line = ProgressLine()
    for fraction in (0.101, 0.102, 0.104, 0.106, None, None):
        line.show("rows", fraction)
    line.clear("done")
    line = ProgressLine()
    line.show("rows", 0.5)
    line.show("rows", 0.501)
    line.clear()
    said = terminal.readouterr().err
    assert said == "\rrows · 10%\rrows · 11%\rrows      \rdone\n\rrows · 50%\r          \r"


@pytest.mark.parametrize(
    ("own", "told", "name"),
    [("m", {"model": "n"}, "m"), (None, {"model": "n"}, "n"), (None, {}, "model"), ("/a/b", {}, "b")],
)
def test_a_load_names_its_model(
    own: str | None, told: dict[str, str], name: str, terminal: pytest.CaptureFixture
) -> None:
    LoadProgress(own)({"stage": "starting torch", **told})
    assert terminal.readouterr().err == f"\r{name}: starting torch"


def test_a_load_shows_its_stages(terminal: pytest.CaptureFixture) -> None:
    progress = LoadProgress("m")
    for done in (0, 1, 1, 2):
        progress({"stage": "loading weights", "done": done, "total": 2})
    progress({"stage": "trying the model"})
    progress(None)
    parts = terminal.readouterr().err.split("\r")
    shown = [part.strip() for part in parts if part.strip()]
    assert shown == [*(f"m: loading weights · {percent}%" for percent in (0, 50, 100)), "m: trying the model"]
