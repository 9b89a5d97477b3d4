"""A server of the kernel's own starts whatever stands around it, ends with its process, and has a log."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbgen
from nbgen.errors import InvalidRequest, ServerNotFound
from nbgen.notebook import passed_on, private_server, session
from nbgen.notebook.connection import Call
from nbgen.notebook.private_client import PrivateClient
from nbgen.notebook.private_folder import PrivateFolder
from nbgen.notebook.private_server import PrivateServer, sizes
from tests.conftest import PATIENCE, gone, wait_for


def test_files_of_the_notebook_and_the_users_configuration_do_not_keep_it_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = {"certfile": "/nowhere/cert.pem", "keyfile": "/nowhere/key.pem", "sock": str(tmp_path / "socket")}
    config = {"ServerApp": public, "NbgenApp": {"triton_server_name": "mine"}}
    (tmp_path / "jupyter_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "calendar.py").write_text("raise SystemExit('another calendar')", encoding="utf-8")
    (tmp_path / "home").symlink_to(tmp_path / "nowhere")  # where nothing is, and nothing can be made
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "home" / ".jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    server = PrivateServer("no-such-model", options={"autoload": False})
    assert server.client.json(Call("GET", "v2"))["name"] == "mine"
    passed_on.tell(server.client)
    server.stop()
    assert "NBGEN_TOKEN" not in os.environ
    assert not server._log.parent.exists()


@contextmanager
def full_disk() -> Iterator[None]:
    """For this process, and what pytest writes of it: no file takes more than a few bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_sizes_are_whole_numbers_of_whatever_type() -> None:
    assert sizes(context_length=np.int64(64), kv_cache_bytes=None) == {"context_length": 64}
    for wrong in (True, 0, 1.0, "1"):
        with pytest.raises(InvalidRequest, match="context_length must be a whole number from 1"):
            sizes(context_length=wrong)


def test_where_no_server_can_be_started_that_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with full_disk(), pytest.raises(ServerNotFound, match=r"can be started for this kernel: File too large.*TMPDIR"):
        PrivateServer()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ServerNotFound, match=r"can be started for this kernel: No such file or directory"):
        PrivateServer()


def test_what_it_says_when_it_cannot_start_has_no_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tornado.py").write_text("raise ImportError('another tornado')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a kernel
    with pytest.raises(ServerNotFound, match=r"did not start:[^\x1b]*\nImportError: another tornado\Z"):
        PrivateServer()


def test_a_panel_leaves_that_to_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    for name in ("_client", "_private"):
        monkeypatch.setattr(session, name, None)
    before = set(threading.enumerate())
    nbgen.Chat().close()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert failures == []
    with pytest.raises(ServerNotFound, match="no nbgen server can be started"):
        nbgen.generate("hi")


def test_a_fork_leaves_the_server_and_its_folder_alone(server: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: 1)
        server.stop()
        server._folder.remove()
    assert server.running
    assert server._log.is_file()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_that_goes_on_does_not_keep_the_server_from_ending() -> None:
    """As those of torch's DataLoader do."""
    server = PrivateServer("no-such-model", options={"autoload": False})
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(reader, 1)
        os._exit(0)
    server.stop()
    os.write(writer, b"x")
    os.waitpid(pid, 0)
    assert server._process.returncode == 0, "it was not killed"


KILLED = """
import os, signal
from nbgen.notebook.private_server import PrivateServer
from tests.conftest import wait_for
server = PrivateServer("no-such-model", options={"autoload": False})
print(server._log.parent, server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_goes_with_a_server_whose_process_was_killed() -> None:
    """As pools end theirs."""
    said = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, encoding="utf-8", check=False).stdout
    folder, pid = said.split()
    wait_for(lambda: not Path(folder).exists(), "the folder is gone")
    wait_for(lambda: gone(int(pid)), "the server is gone")


def test_an_interrupt_does_not_wait_for_a_server_that_is_slow_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(60)", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(private_server, "STOP_SECONDS", PATIENCE)
    interrupted = time.monotonic()

    def interrupt(seconds: int) -> None:
        nonlocal interrupted
        interrupted = time.monotonic()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PrivateServer("no-such-model", waiting=interrupt)
    assert time.monotonic() - interrupted < PATIENCE / 2


def test_a_private_folder_is_private_and_goes(tmp_path: Path) -> None:
    folder = PrivateFolder()
    (folder.path / "inner").mkdir()
    assert folder.path.stat().st_mode & 0o077 == 0
    folder.remove()
    assert not folder.path.exists()


async def test_who_is_sent_to_the_log_hears_where_it_is_and_how_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"".join(b"line %d \xff\n" % number for number in range(30)))
    client = PrivateClient("http://127.0.0.1:9/", "", log)
    words = client._with_log("m cannot be run; the server's log says why")
    assert words.splitlines()[0] == f"m cannot be run; the server's log says why: {log} ends with"
    assert words.splitlines()[1:] == [f"line {number} \ufffd" for number in range(15, 30)]
    assert client._with_log("a log is not what is meant") == "a log is not what is meant"
    error = {"error": {"message": "it failed; the log says why", "code": 503}}
    _, said = client._explained(("error", error))
    assert said["error"]["code"] == 503
    assert "line 29" in said["error"]["message"]
    log.write_text("at http://127.0.0.1:1/nbgen/?token=5ec2e7 now", encoding="utf-8")
    assert client._with_log("the log says why").endswith("at http://127.0.0.1:1/nbgen/?token=… now")
    log.unlink()
    assert client._with_log("the log says why").endswith("ends with\n")
    client.close()
