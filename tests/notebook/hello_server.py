"""A server that says hello as nbgen does, and nothing else."""

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, ThreadingUnixStreamServer
from typing import Any, ClassVar

from tests.conftest import LOOKS


class Hello(BaseHTTPRequestHandler):
    """Greets at nbgen's routes below `base`, `after` so many seconds."""

    base: ClassVar[str] = "/"
    after: ClassVar[float] = 0.0
    said: ClassVar[bytes] = b'{"server_id": "s"}'
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(self.after)
        there = self.path == f"{self.base}nbgen/api/v1/hello"
        body = self.said if there else b"{}"
        self.send_response(200 if there else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def greeting(base: str = "/", tls: ssl.SSLContext | None = None, after: float = 0.0, **said: Any) -> Iterator[str]:
    """The address of such a server, without a slash at its end; it has these words for everybody."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(base, after, **said)) as server:
        server.handle_error = lambda *_: None  # its reader may hang up
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        with _serving(server):
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"


@contextmanager
def greeting_on_socket(path: Path, base: str = "/") -> Iterator[None]:
    """Such a server on a Unix socket."""
    with ThreadingUnixStreamServer(str(path), _handler(base)) as server, _serving(server):
        yield


def _handler(base: str, after: float = 0.0, **said: Any) -> type[Hello]:
    words = json.dumps({"server_id": "s", **said}).encode()
    return type("Greeting", (Hello,), {"base": base, "after": after, "said": words})


@contextmanager
def _serving(server: ThreadingMixIn) -> Iterator[None]:
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(LOOKS,)).start()
    try:
        yield
    finally:
        server.shutdown()
