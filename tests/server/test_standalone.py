"""`jupyter nbgen` as a process of its own: what keeps it from serving, what it says meanwhile, and how it ends."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from jupyter_server.serverapp import ServerApp
from traitlets import TraitError
from traitlets.config import Config

import nbgen
from nbgen.server.app import NbgenApp
from nbgen.server.launch_options import REFUSED
from nbgen.server.standalone import StandaloneServerApp
from nbgen.sse import Decoder
from tests.conftest import gone
from tests.server.conftest import BUSY, Server, wait_for
from tests.server.test_app import run
from tests.server.triton import TOKEN_METADATA, grpc_address

METADATA = tuple(TOKEN_METADATA.items())

#: Below nohup, which servers inherit, nobody hears SIGHUP.
HANGS_UP = signal.SIGTERM if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else signal.SIGHUP


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model is not there."""
    server = Server(tmp_path_factory.mktemp("failed"), "--model=/nonexistent/model", "--NbgenApp.grpc_port=0")
    yield server
    server.stop()
    assert "Traceback" not in server.log.read_text()


def ask_grpc(server: Server, method: str) -> bytes:
    with grpc.insecure_channel(grpc_address(server)) as channel:
        return channel.unary_unary(method)(b"", metadata=METADATA)


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    result = run("-m", "nbgen", "--allow-root", "--port=0", folder=tmp_path)
    assert result.returncode == 1
    assert str(tmp_path / "run") in result.stderr
    assert "JUPYTER_RUNTIME_DIR names" in result.stderr
    assert "Traceback" not in result.stderr


def test_it_stops_in_good_order_where_warnings_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tornados_own = "ignore:There is no current event loop:DeprecationWarning"  # from Python 3.12 on
    monkeypatch.setenv("PYTHONWARNINGS", f"error,{tornados_own}")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "jupyter_nbgen_config.json").write_text('{"NbgenApp": {"autoload": false}}')
    server = Server(tmp_path)
    assert not psutil.Process(server.process.pid).children(), "the engine that was begun before this was read has ended"
    assert server.stop() == 0, server.log.read_text()


def test_a_server_whose_model_cannot_be_loaded_is_not_ready(failed: Server) -> None:
    wait_for(lambda: failed.model()["state"] == "failed", "the load fails")
    assert failed.http.get("health").status_code == 503
    ready = failed.http.get("v2/health/ready")
    assert (ready.status_code, ready.json()) == (400, {"ready": False})
    assert failed.http.get("v2/health/live").status_code == 200
    assert ask_grpc(failed, "/inference.GRPCInferenceService/ServerReady") == b""
    assert ask_grpc(failed, "/grpc.health.v1.Health/Check") == b"\x08\x02"
    assert "/nonexistent/model" in failed.http.post("generate", json={"text": "a"}).json()["message"]


def test_a_request_tries_again_what_could_not_be_loaded_at_the_start(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    server = Server(tmp_path, f"--model={folder}", "--dtype=float32")
    body = {"text": "a", "sampling_params": {"max_new_tokens": 2}}
    try:
        wait_for(lambda: server.model()["state"] == "failed", "the load fails")
        refused = server.http.post("generate", json=body)
        assert (refused.status_code, refused.json()["message"]) == (503, server.model()["error"])
        assert "there is no folder" in refused.text
        shutil.copytree(tiny_model, folder)
        wait_for(lambda: server.http.post("generate", json=body).is_success, "the model is loaded")
        assert server.http.get("health").status_code == 200
    finally:
        server.stop()


def test_a_fault_that_nobody_foresaw_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/" + "x" * 300)  # no system has such a name
    server = Server(tmp_path, "--model=owner/name")
    try:
        wait_for(lambda: server.model()["state"] == "failed", "the load fails")
    finally:
        server.stop()


def test_the_root_says_that_it_runs(failed: Server) -> None:
    answer, words = failed.http.get(failed.root), f"nbgen {nbgen.__version__} is running; /nbgen/ lists its routes"
    assert (answer.status_code, answer.json()) == (200, words)


def test_no_file_is_named_to_open_in_a_browser() -> None:
    assert StandaloneServerApp().no_browser_open_file


def test_what_may_be_asked_again_is_one_line_of_the_log(failed: Server) -> None:
    for _ in range(3):
        assert failed.http.post("v1/completions", json={"prompt": "a"}).status_code == 503
    words = "503 POST /nbgen/v1/completions"
    wait_for(lambda: failed.log.read_text().count(words) == 3, "all is in the log")
    log = failed.log.read_text()
    assert all(line.startswith("[W ") for line in log.splitlines() if words in line)
    assert "User-Agent" not in log


def test_a_port_that_is_taken_ends_the_second_server(failed: Server) -> None:
    second = run("-m", "nbgen", "--allow-root", f"--port={failed.port}", folder=failed.folder)
    assert second.returncode == 1
    assert f"port {failed.port} is not available" in second.stderr
    assert "engine:" not in second.stderr


@pytest.mark.parametrize("option", ["media_root", "model_repository"])
@pytest.mark.parametrize("folder", ["~nobody-of-this-name/x", "/nonexistent", __file__])
def test_a_folder_that_is_not_there_is_a_wrong_option(option: str, folder: str) -> None:
    with pytest.raises(TraitError, match=f"{option}: there is no folder"):
        NbgenApp(**{option: folder})


@pytest.mark.parametrize("port", [-1, 2**16])
def test_a_port_that_no_address_has_is_a_wrong_option(port: int) -> None:
    with pytest.raises(TraitError, match=f"port must be .* at most 65535, got {port}"):
        StandaloneServerApp(port=port)


@pytest.mark.parametrize("host", ["https://a.example/", "a.example:443", "*.a.example", "a.example/x", "a b", ""])
def test_a_host_of_media_that_no_url_could_have_is_a_wrong_option(host: str) -> None:
    with pytest.raises(TraitError, match=r"allow_media_hosts: .* is not the name of one host"):
        NbgenApp(allow_media_hosts=["b.example", host])


def test_hosts_of_media_are_names_or_addresses() -> None:
    hosts = ["A.example", "192.0.2.1", "2001:db8::1", "*"]
    assert NbgenApp(allow_media_hosts=hosts).allow_media_hosts == hosts


@pytest.mark.parametrize("name", ["--preferred-sampling-params", "--NbgenApp.preferred_sampling_params"])
@pytest.mark.parametrize(
    "values",
    [["temperature=0.5", "max_new_tokens=7", "stop=END"], ['{"temperature": 0.5, "max_new_tokens": 7, "stop": "END"}']],
)
def test_sampling_parameters_of_the_command_line_are_json(name: str, values: list[str]) -> None:
    app = NbgenApp()
    app.parse_command_line([f"{name}={value}" for value in values])
    assert app.preferred_sampling_params == {"temperature": 0.5, "max_new_tokens": 7, "stop": "END"}


@pytest.mark.parametrize("value", ["max_new_tokens=many", "nope=1", "{", "5"])
def test_sampling_parameters_that_nobody_may_have_are_a_wrong_option(value: str) -> None:
    with pytest.raises(SystemExit):
        NbgenApp().parse_command_line([f"--preferred-sampling-params={value}"])


@pytest.mark.parametrize("where", ["arguments", "file"])
async def test_an_option_that_is_wrong_turns_nbgen_off_inside_jupyter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    wrong = {"NbgenApp": {"max_running": 0}}
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    if where == "file":
        (tmp_path / "jupyter_nbgen_config.json").write_text(json.dumps(wrong))
    jupyter, app = ServerApp(config=Config(wrong if where == "arguments" else {})), NbgenApp()
    app._link_jupyter_server_extension(jupyter)
    app.initialize()
    await app._start_jupyter_server_extension(jupyter)
    assert app.current_activity() is None
    await app.stop_extension()
    assert not app.handlers, "no route is there"


def test_it_has_a_version_and_no_commands() -> None:
    assert NbgenApp.version == nbgen.__version__
    with pytest.raises(SystemExit, match="no command 'serve'"):
        NbgenApp.launch_instance(["serve"])


def test_its_start_reads_no_grammar_for_a_format_that_nothing_names(tmp_path: Path) -> None:
    imported = run("-E", "-X", "importtime", "-m", "nbgen", "--version", folder=tmp_path).stderr
    assert "jsonschema._format" in imported
    assert "lark" not in imported


@pytest.mark.parametrize("argument", ["--random-seed=5", "--tokenizer-path", "--served-model-name=x"])
def test_an_option_of_sglangs_that_means_nothing_here_is_refused_with_words(argument: str) -> None:
    name = argument.partition("=")[0]
    with pytest.raises(SystemExit, match=f"nbgen has no {name}: .*(sampling_seed|folder|any name)"):
        NbgenApp.launch_instance(["--model=x", argument, "5"])


#: What is no option, and the words that end it.
NO_OPTIONS = [
    (["--device=cpu", "./my-model"], "'./my-model' is no option: nbgen has options only; a model is named by --model="),
    (["--device=cpu", "--", "my-model"], "'my-model' is no option"),
    (["--modle=/x"], "nbgen has no --modle; did you mean --model?"),
    (["--autoload=False"], "nbgen has no --autoload; did you mean --NbgenApp.autoload?"),
    (["--foo=bar"], "nbgen has no --foo: --help-all lists what it has"),
    (["--NbgenApp.max_runing=1"], "nbgen has no --NbgenApp.max_runing; did you mean --NbgenApp.max_running?"),
    (["--api-key=a", "--IdentityProvider.token=b"], "nbgen has one --api-key, and it is given more than once"),
]
START = """
import sys
from nbgen.server.app import NbgenApp
for words in sys.argv[1:]:
    try:
        NbgenApp.launch_instance(["--allow-root", "--port=0", *words.split()])
    except SystemExit as end:
        print(end)
    NbgenApp.serverapp_class.clear_instance()
"""


def test_what_is_no_option_ends_it_with_words(tmp_path: Path) -> None:
    result = run("-c", START, *(" ".join(arguments) for arguments, _ in NO_OPTIONS), folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    for said, (_, words) in zip(result.stdout.splitlines(), NO_OPTIONS, strict=True):
        assert said.startswith(words)


#: What keeps it from its start, and the words that end it.
WRONG = {
    "--host=[::1]": "--host=[::1] has no address: ",
    "--host=a..b": "--host=a..b has no address: ",
    "--host=fe80::1%nothing": "--host=fe80::1%nothing",
    "--host=192.0.2.1": "nbgen cannot listen at --host=",
    "--certfile=/nonexistent": "nbgen cannot listen at --host=",
    f"--certfile={__file__}": "nbgen cannot listen at --host=",
    "--keyfile=/x": "nbgen cannot listen at --host=",
    "--device=cpu --device=auto": "device only accepts one value, got 2",
    "--dtype=int3": "The 'dtype' trait",
    f"--NbgenApp.model_repository={'x' * 300}": "model_repository: there is no folder 'xxx",
    **{f"--IdentityProvider.token= --ServerApp.ip={ip}": "loopback only" for ip in ("0.0.0.0", "*", "")},
}


def test_what_keeps_it_from_its_start_is_said_in_a_line(tmp_path: Path) -> None:
    result = run("-c", START, *WRONG, folder=tmp_path)
    assert (result.returncode, result.stdout) == (0, "1\n" * len(WRONG)), result.stderr
    said = [line for line in result.stderr.splitlines() if not line.startswith("[I ")]
    for line, (option, words) in zip(said, WRONG.items(), strict=True):
        assert line.startswith("[C "), result.stderr
        assert words in line, option


def test_no_name_of_an_option_has_two_meanings() -> None:
    assert not REFUSED.keys() & (NbgenApp.aliases.keys() | NbgenApp.flags.keys())
    assert not NbgenApp.aliases.keys() & NbgenApp.flags.keys()


def test_a_closed_terminal_stops_it_in_good_order_and_a_second_signal_at_once(
    tmp_path: Path, long_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = Server(tmp_path, f"--model={long_model}", "--dtype=float32", "--NbgenApp.grpc_port=0").ready()
    engine, body = server.engine(), {"text": "a", "stream": True, "sampling_params": BUSY}
    assert engine.cmdline()[-1] == "early", "it was begun before the server had read its own code"
    repository = next(tmp_path.glob("nbgen-models-*"))
    with server.http.stream("POST", "generate", json=body) as answer:
        decoder, chunks = Decoder(), answer.iter_bytes()
        found = decoder.feed(next(chunks))
        server.process.send_signal(HANGS_UP)
        wait_for(lambda: server.http.get("v2/health/ready").status_code == 503, "it is not ready any more")
        refused = server.http.post("generate", json={"text": "b"})
        assert (refused.status_code, refused.json()["message"]) == (503, "the server is stopping")
        assert ask_grpc(server, "/inference.GRPCInferenceService/ServerReady") == b""
        found += decoder.feed(next(chunks))
        server.process.send_signal(signal.SIGINT)
        found += [event for chunk in chunks for event in decoder.feed(chunk)]
    assert found[-1].data == "[DONE]"
    assert "the server is stopping" in found[-2].data
    assert server.stop(0) == 0
    assert gone(engine.pid)
    assert not repository.exists()
    assert not list(server.runtime.glob("*.json"))
