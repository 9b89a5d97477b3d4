"""A Jupyter server without a shell: what `jupyter nbgen` runs. No kernels, contents, terminals or lab."""

from __future__ import annotations

import contextlib
import ipaddress
import signal
import sys
from collections.abc import Iterator
from typing import Any

from jupyter_server.base.handlers import Template404, TrailingSlashHandler
from jupyter_server.serverapp import ServerApp
from tornado.netutil import ssl_options_to_context
from tornado.web import RequestHandler
from traitlets import TraitError, default, validate

from nbgen.server.connections import LimitedHTTPServer
from nbgen.server.engine_options import Count
from nbgen.server.launch_options import OptionsAlone


class StandaloneServerApp(ServerApp):
    """Serves nbgen's routes, logins and a shutdown route."""

    name = "nbgen"
    default_services: Any = ("api", "auth", "security", "shutdown")
    #: Do not try other ports: nobody would look for the server there.
    port_retries_default_value = 0
    #: Exit if the extension fails to load or its options are wrong: there is nothing else to serve.
    reraise_server_extension_failures = True

    max_connections = Count(512, min=1, help="Connections that are open at a time; one more is refused.").tag(
        config=True
    )

    @validate("port")
    def _port_number(self, proposal: Any) -> int:
        """Tornado would listen at the number's last 16 bits."""
        port: int = proposal["value"]
        if not 0 <= port < 2**16:
            raise TraitError(f"port must be at least 0 (any free one) and at most 65535, got {port}")
        return port

    def _create_loader(self, argv: Any, aliases: Any, flags: Any, classes: Any) -> OptionsAlone:
        return OptionsAlone(argv, aliases, flags, classes=classes, log=self.log, subcommands=self.subcommands)

    @contextlib.contextmanager
    def _ending(self, words: str, errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
        """Exit with these words if the system refuses something (OSError), or on other `errors`."""
        try:
            yield
        except errors as error:
            self.log.critical("%s: %s", words, error)
            self.exit(1)

    def init_configurables(self) -> None:
        folders = "JUPYTER_RUNTIME_DIR names the one of what runs, HOME all others"
        with self._ending(f"nbgen needs folders to write to ({folders})"):
            super().init_configurables()
        self.contents_manager.files_handler_class = None  # otherwise all files below its folder would have a route
        with self._ending(f"--host={self.ip} has no address", (OSError, ValueError)):
            self.allow_remote_access  # noqa: B018  its default resolves the host
        if not self.identity_provider.auth_enabled and not (self.sock or is_loopback(self.ip)):
            self.log.critical(
                "Without a token nbgen listens on loopback only, and --ip=%s is not: leave "
                "--IdentityProvider.token out, or give one.",
                self.ip or "''",
            )
            self.exit(1)

    def init_httpserver(self) -> None:
        with self._ending(f"nbgen cannot listen at --host={self.ip}", (OSError, ValueError, KeyError)):
            super().init_httpserver()
            if self.ssl_options:  # otherwise a bad certificate would show only at each connection
                ssl_options_to_context(self.ssl_options, server_side=True)
        self._http_server = LimitedHTTPServer(
            self.web_app,
            ssl_options=self.ssl_options,
            xheaders=self.trust_xheaders,
            max_body_size=self.max_body_size,
            max_buffer_size=self.max_buffer_size,
            max_connections=self.max_connections,
            log=self.log,
        )

    @default("no_browser_open_file")
    def _without_pages(self) -> bool:
        return True

    def init_signal(self) -> None:
        """As Jupyter's; a closed terminal also stops the server, and so does Ctrl-C if there is nobody to ask."""
        super().init_signal()
        asked = sys.stdin is not None and sys.stdin.isatty()
        for name in ("SIGHUP",) if asked else ("SIGHUP", "SIGINT"):
            number = getattr(signal, name, None)  # SIG_IGN: nohup has its programs ignore SIGHUP
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._signal_stop)

    def stop(self, from_signal: bool = False) -> None:
        """End what runs, then close the port; until then new requests are answered. A second call waits no longer."""
        loop: Any = self.io_loop
        wake = loop.asyncio_loop.call_soon_threadsafe  # safe in a signal handler
        if self._stopping:
            wake(self._hurry)
            return
        self._stopping = True
        wake(loop.add_callback, self._stop)

    def _hurry(self) -> None:
        self.web_app.settings["nbgen"].hurry()

    def answer_unknown_paths(self, handler: type[RequestHandler]) -> None:
        """Let `handler` answer unknown paths: Jupyter's 404 page is for people, and holds the token.

        Also let it replace Jupyter's handler that would tell which files exist.
        """
        for rule in self.web_app.wildcard_router.rules:
            if rule.target in (Template404, TrailingSlashHandler) or rule.target.__name__ == "PathResolverHandler":
                rule.target = handler


def is_loopback(ip: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    if ip == "localhost":
        return True
    try:
        return ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False
