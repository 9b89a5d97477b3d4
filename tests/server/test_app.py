"""The extension: found by Jupyter, light to load, documented, and careful about who can reach it."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from traitlets import TraitError

from nbgen import keepalive
from nbgen.engine_config import EngineConfig
from nbgen.server.app import NbgenApp
from nbgen.server.engine_options import EngineOptions
from nbgen.server.launch_options import FLAGS, apart
from tests.server.conftest import PATIENCE, SET_BY_FLAGS, Server, wait_for

QUICK = ("--NbgenApp.autoload=False", "--NbgenApp.model=/nonexistent/model")


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"JUPYTER_CONFIG_DIR": str(folder), "JUPYTER_RUNTIME_DIR": str(folder / "run")}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )


def test_jupyter_lists_the_extension_as_enabled(tmp_path: Path) -> None:
    result = run("-m", "jupyter", "server", "extension", "list", folder=tmp_path)
    words = " ".join(re.sub(r"\x1b\[\d+m", "", result.stdout + result.stderr).split())
    assert "nbgen enabled" in words
    assert "nbgen 0.2.0 OK" in words, words


def test_every_option_is_documented(tmp_path: Path) -> None:
    words = run("-m", "nbgen", "--help-all", folder=tmp_path).stdout
    for option in (
        "model",
        "device",
        "dtype",
        "quantization",
        "context_length",
        "kv_cache_dtype",
        "kv_cache_bytes",
        "max_running",
        "max_waiting",
    ):
        assert f"--NbgenApp.{option}=" in words
    for option in ("prefill_chunk", "sampling_defaults", "autoload", "stop_on_eof"):
        assert f"--NbgenApp.{option}=" in words
    assert "can see a command" in words.partition("--api-key=")[2].partition("--max-connections=")[0]


def test_the_engine_s_options_are_told_in_the_words_of_its_configuration() -> None:
    words = EngineConfig.words()
    assert words.keys() == set(EngineConfig.__struct_fields__)
    assert {name: getattr(EngineOptions, name).help for name in words} == words


def test_it_starts_with_every_flag_and_logs_no_token_in_the_address_of_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBGEN_URL", "http://gpu:8000/lab?token=its-secret")
    options = ["--stream-interval=3", '--preferred-sampling-params={"temperature": 0}']
    server = Server(tmp_path, *QUICK, *(f"--{flag}" for flag in FLAGS), *options)
    try:
        said = server.http.get("server_info").json()
        assert [said[name] for name in SET_BY_FLAGS] == [True] * 4
        assert said["launch_command"].startswith("jupyter nbgen --model=")
        words = shlex.split(said["launch_command"])
        assert {"--NbgenApp.compile=True", "--incremental-streaming-output", "--allow-auto-truncate", *options} <= {
            *words
        }
        assert "token" not in said["launch_command"], "which the server was given"
        assert 0 < time.time() - said["startup_time"] < 600
    finally:
        server.stop()
    log = server.log.read_text()
    assert "http://gpu:8000/lab" in log
    assert "its-secret" not in log


def test_where_it_listens_what_opens_it_and_its_adapters_may_be_said_as_to_sglang(tmp_path: Path) -> None:
    adapters = ("--lora-paths", "a=/x", "/y/z")
    result = run("-m", "nbgen", "--host=::1", *adapters, "--api-key=secret", "--show-config-json", folder=tmp_path)
    said = json.loads(result.stdout)
    assert said["NbgenApp"]["adapters"] == ["a=/x", "/y/z=/y/z"]
    assert said["StandaloneServerApp"]["ip"] == "::1"
    assert said["IdentityProvider"]["token"] == "secret"
    assert apart(["--lora-paths", '{"a": "/x"}', "--model=m"]) == ['--lora-paths={"a": "/x"}', "--model=m"]


def test_inside_jupyter_options_have_their_long_names(jupyter: Server) -> None:
    said = jupyter.http.get("server_info").json()
    assert said["launch_command"] is None
    assert [said[name] for name in SET_BY_FLAGS] == [True] * 4


@pytest.mark.parametrize("option", ["context_length", "kv_cache_bytes", "queue_seconds", "run_seconds", "threads"])
def test_sizes_and_times_below_nothing_are_refused(option: str) -> None:
    with pytest.raises(TraitError, match=option):
        EngineOptions(**{option: -1})
    assert getattr(EngineOptions(**{option: None}).engine_config(), option) is None


@pytest.mark.parametrize("option", ["max_waiting", "context_length", "stream_interval"])
def test_numbers_that_no_message_can_hold_are_refused(option: str) -> None:
    with pytest.raises(TraitError, match=option):
        NbgenApp(**{option: 2**63})


@pytest.mark.parametrize("option", ["queue_seconds", "run_seconds", "reader_seconds", "idle_unload_seconds"])
def test_a_time_that_is_no_number_is_refused(option: str) -> None:
    with pytest.raises(TraitError, match=option):
        NbgenApp(**{option: float("nan")})


def test_without_a_token_programs_may_ask_and_foreign_pages_may_not(tmp_path: Path) -> None:
    server = Server(tmp_path, *QUICK, token="")
    try:
        with server.anonymous() as client:
            assert client.post("abort_request", json={}).status_code == 200
            for foreign in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"}):
                assert client.post("abort_request", json={}, headers=foreign).status_code in (403, 404)
            assert (
                client.post("abort_request", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
            )
            for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
                assert client.get("flush_cache", headers={"Sec-Fetch-Site": site}).status_code == status
    finally:
        server.stop()


def test_the_runtime_file_tells_where_and_with_which_key(jupyter: Server) -> None:
    said = json.loads(jupyter.runtime_file.read_bytes())
    assert said["base_url"] == "/user/x/"
    assert said["url"].endswith(f":{jupyter.port}/user/x/")
    assert said["pid"] == jupyter.process.pid
    assert jupyter.http.get("api/v1/hello").json()["server_id"] == said["server_id"]
    assert said["key"] not in jupyter.log.read_text()


def test_inside_jupyter_nothing_is_at_the_root_and_nothing_is_loaded(jupyter: Server) -> None:
    assert jupyter.http.get(jupyter.root + "generate").status_code == 404
    assert jupyter.model()["state"] == "stopped"
    assert jupyter.http.get(jupyter.root + "api/status").status_code == 200


def test_the_page_lists_the_routes(jupyter: Server) -> None:
    page = jupyter.http.get("").json()
    assert "/user/x/nbgen/generate" in page["routes"]


@pytest.mark.skipif(sys.platform != "linux", reason="nothing tells of a connection's clocks elsewhere")
def test_the_system_asks_whether_a_silent_caller_is_still_there(jupyter: Server) -> None:
    with jupyter.anonymous() as caller, caller.stream("GET", "health") as answer:
        answer.read()
        port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
        ends = f":{jupyter.port:04X} ", f":{port:04X} "

        def expires() -> str | None:
            (line,) = [
                line
                for line in Path("/proc/net/tcp").read_text().splitlines()
                if all(end in line for end in ends) and line.index(ends[0]) < line.index(ends[1])
            ]
            clock, when = line.split()[5].split(":")
            return when if clock == "02" else None

        when = wait_for(expires, "its clock is that of keepalive, once all that was sent has arrived")
    assert 0 < int(when, 16) / os.sysconf("SC_CLK_TCK") <= keepalive.IDLE
