"""A server's own folder of modules goes with it, and if it was killed with the next one."""

import signal
from pathlib import Path

import pytest

from nbgen.server.private_repository import HELD, PrivateRepository
from tests.server.conftest import Server


def test_the_next_server_removes_what_one_that_was_killed_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    foreign, linked = tmp_path / "nbgen-models-older", tmp_path / "linked"
    for folder in (foreign, linked):
        folder.mkdir()
    (linked / HELD).touch()
    (tmp_path / "nbgen-models-link").symlink_to(linked)
    living, killed = (Server(tmp_path / name, "--NbgenApp.autoload=False") for name in ("living", "killed"))
    try:
        before = set(tmp_path.glob("nbgen-models-*"))
        killed.stop(signal.SIGKILL)
        assert set(tmp_path.glob("nbgen-models-*")) == before
        Server(tmp_path / "next", "--NbgenApp.autoload=False").stop()
        left = set(tmp_path.glob("nbgen-models-*"))
        assert len(before - left) == 1
        assert len(left) == 3, "the folder of the one that lives, one that nobody is known to have left, and a link"
        assert (linked / HELD).exists()
    finally:
        living.stop()
    assert set(tmp_path.glob("nbgen-models-*")) == {foreign, tmp_path / "nbgen-models-link"}


def test_it_may_be_removed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = PrivateRepository()
    PrivateRepository().cleanup()
    assert Path(made.name).is_dir(), "this process lives"
    for _ in range(2):
        made.cleanup()
    assert list(tmp_path.iterdir()) == []
