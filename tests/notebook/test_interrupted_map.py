"""A map that is interrupted keeps what is done."""

import _thread
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

import nbgen
from nbgen.notebook.private_server import PrivateServer
from tests.conftest import wait_for
from tests.notebook.test_map import OPTIONS


def test_an_interrupt_in_a_prompt_stops_all(connected: PrivateServer) -> None:
    def prompt(row: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nbgen.map(["a"], prompt, **OPTIONS)


def test_an_interrupt_while_a_row_is_read_returns_what_is_done(
    connected: PrivateServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows, and their images, are read as they are sent, and not all of them before the first answer."""
    read: list[int] = []
    cache = tmp_path / "rows.jsonl"

    def image(row: int) -> None:
        read.append(row)
        if row == 100:
            wait_for(lambda: cache.read_text().count("\n") > 50, "answers")
            raise KeyboardInterrupt

    answers = nbgen.map(list(range(1000)), images=image, concurrency=4, cache=cache, **OPTIONS)
    assert read == list(range(101))
    assert 50 < answers.finish_reason.eq("length").sum() <= 100
    left = answers.finish_reason.ne("length").sum()
    assert f"Stopped with {left} of 1000 rows to do" in capsys.readouterr().out


def test_an_interrupt_keeps_what_is_done_and_the_rest_can_be_done_later(
    connected: PrivateServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    long = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True, "complete": True, "progress": False}
    rows = [f"text {i}" for i in range(300)]
    cache = tmp_path / "rows.jsonl"

    def interrupt() -> None:
        while not cache.exists() or cache.read_text().count("\n") < 3:
            time.sleep(0.02)
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    stopped = nbgen.map(rows, concurrency=4, cache=cache, **long)
    assert "resume=" in capsys.readouterr().out
    done = stopped.finish_reason.eq("length")
    assert 0 < done.sum() < 300
    assert stopped.index.tolist() == list(range(300))
    wait_for(lambda: not nbgen.status().raw["status"].get("running"), "the server stops")
    half_done = stopped[:20].assign(text="as it was", finish_reason=["length"] * 19 + ["abort"])
    half_done.loc[0, "cached_tokens"] = pd.NA
    whole = nbgen.map(rows[:20], resume=half_done, **long)
    assert whole.finish_reason.eq("length").all()
    assert whole.text.eq("as it was").tolist() == [True] * 19 + [False]
