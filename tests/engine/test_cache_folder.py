"""What is made in the user's cache folder goes again, if nobody uses it or nobody is left to finish it."""

import os
import time
from pathlib import Path

import pytest

from nbgen.engine.cache_folder import cache_folder, keep, keep_sealed, sealed

HOUR, DAY = 3600, 86_400


def aged(path: Path, seconds: float) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_what_a_killed_process_was_making_goes_with_the_next_that_is_made(tmp_path: Path) -> None:
    left, busy, other = tmp_path / "tmpleft", tmp_path / "tmpbusy", tmp_path / "triton"
    for folder in (left, busy, other):
        folder.mkdir()
        (folder / "half.so").touch()
    for folder in (left, other):
        aged(folder, 2 * HOUR)
    keep(tmp_path / "whole", lambda made: made.write_text("all of it"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmpbusy", "triton", "whole"]


def test_what_is_in_use_is_noted_once_a_day(tmp_path: Path) -> None:
    kept = keep_sealed(tmp_path, "one.so", lambda made: made.write_text("one"))
    for age, noted in ((DAY / 2, False), (2 * DAY, True)):
        before = aged(kept, age).stat().st_mtime
        assert sealed(tmp_path, "one.so") == kept
        assert (kept.stat().st_mtime > before) == noted


def test_where_nothing_can_be_kept_the_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nbgen").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        with cache_folder() as found:
            assert found != tmp_path / "nbgen"
    assert caplog.text.count(f"{tmp_path}/nbgen cannot be written to: each start makes anew") == 1
