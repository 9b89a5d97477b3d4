"""What a server writes down of itself for the kernels of its user."""

import pytest
from jupyter_server.serverapp import ServerApp

from nbgen.server.runtime_file import RuntimeFile


def written(**options: object) -> RuntimeFile:
    return RuntimeFile.of(ServerApp(port=8123, base_url="/user/x/", **options), "secret", "id")


@pytest.mark.parametrize(
    ("ip", "host"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("", "localhost"), ("10.0.0.7", "10.0.0.7")]
)
def test_the_address_leads_there_from_the_servers_own_host(ip: str, host: str) -> None:
    assert written(ip=ip).url == f"http://{host}:8123/user/x/"
