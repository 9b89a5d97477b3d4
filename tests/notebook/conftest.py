"""A real server with a tiny model, and a real IPython shell that talks to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from nbgen.notebook import session
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.remote import AnyClient, open_client
from tests.chat_templates import CALLS, template
from tests.conftest import save_model

FOLDERS = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")


@contextmanager
def unserved() -> Iterator[None]:
    """Within this the helpers of this process use no server yet, and then again the one they used before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_client", None)
        patch.setattr(session, "_private", None)
        yield


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="session", autouse=True)
def own_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing of the user's Jupyter is found from here."""
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in FOLDERS:
            patch.setenv(name, str(folder / name.lower()))
        for name in ("NBGEN_URL", "NBGEN_TOKEN", "JPY_PARENT_PID", "JUPYTER_SERVER_URL"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, own_jupyter: Path) -> Iterator[PrivateServer]:
    """`python -m nbgen` with the tiny model, loaded, which has room for an answer of many seconds."""
    folder = tmp_path_factory.mktemp("models") / "long-llama"
    model = save_model(folder, max_position_embeddings=16_384)
    server = PrivateServer(str(model), options={"standby": False})
    for _ in server.client.load():
        pass
    yield server
    server.stop()


@pytest.fixture
def connected(server: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> PrivateServer:
    """The helpers of this process use the server."""
    monkeypatch.setattr(session, "_client", server.client)
    return server


@pytest.fixture
def shell(connected: PrivateServer) -> Iterator[InteractiveShell]:
    """A fresh terminal-style shell with the magics."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "nbgen")
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory, own_jupyter: Path) -> Iterator[PrivateServer]:
    """A server with a model that can be made to call tools."""
    folder = save_model(tmp_path_factory.mktemp("models") / "caller", max_position_embeddings=4096)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template(CALLS["objects"])
    tokenizer.save_pretrained(folder)
    server = PrivateServer(str(folder), options={"standby": False})
    yield server
    server.stop()


@pytest.fixture(params=["nbgen", "openai"])
def calling_client(
    request: pytest.FixtureRequest, caller: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AnyClient]:
    """The helpers of this process use that server, as one of nbgen's or of another kind."""
    other = open_client(caller.url, caller.client.token, "openai")
    client = caller.client if request.param == "nbgen" else other
    monkeypatch.setattr(session, "_client", client)
    yield client
    other.close()
