"""What a server writes down of itself for the kernels of its user."""

import os
from pathlib import Path

import pytest
from jupyter_server.serverapp import ServerApp

from nbgen.server.runtime_file import ANNOUNCED, RuntimeFile
from tests.certificates import Identity


def written(**options: object) -> RuntimeFile:
    return RuntimeFile.of(ServerApp(port=8123, base_url="/user/x/", **options), "secret", "id")


@pytest.mark.parametrize(
    ("ip", "host"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("", "localhost"), ("10.0.0.7", "10.0.0.7")]
)
def test_the_address_leads_there_from_the_servers_own_host(ip: str, host: str) -> None:
    assert written(ip=ip).url == f"http://{host}:8123/user/x/"


def test_it_holds_the_servers_own_certificate_and_no_secret_of_it(tmp_path: Path) -> None:
    signer = Identity()
    own = Identity(signer)
    files = own.files(tmp_path, signer)
    assert written(**files).certificate == own.pem.strip()
    (tmp_path / "both").write_text(Path(files["keyfile"]).read_text() + own.pem)
    assert written(certfile=str(tmp_path / "both")).certificate == own.pem.strip()
    assert written().certificate == written(certfile=str(tmp_path / "none")).certificate == ""


def test_a_server_names_itself_to_kernels_unless_its_user_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NBGEN_URL", ANNOUNCED):
        monkeypatch.setenv(name, "")
    outer, inner = written(ip="10.0.0.7"), written(ip="10.0.0.8")
    for server in (outer, inner):
        assert server.announce("nbgen/")
        assert os.environ["NBGEN_URL"] == f"{server.url}nbgen/"
    monkeypatch.setenv("NBGEN_URL", "http://gpu:8000/")
    assert not inner.announce("nbgen/")
    assert os.environ["NBGEN_URL"] == "http://gpu:8000/"
