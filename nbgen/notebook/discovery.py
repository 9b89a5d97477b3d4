"""Find the nbgen server that this kernel belongs to: environment, runtime files, JupyterHub, running servers.

Knows where addresses are written down and asks each one `hello`; starts nothing.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from nbgen import __version__
from nbgen.errors import InvalidRequest, NbgenError, ServerNotFound
from nbgen.notebook.client import Client, address, answering, api_roots, root_below, token_in
from nbgen.notebook.connection import CONNECT_SECONDS, LOOPBACK
from nbgen.notebook.passed_on import own_environment
from nbgen.notebook.remote import AnyClient, open_client

#: For a hello of servers that happen to be there; one that was named may be far away, or busy.
HELLO_SECONDS = 2.0


class Candidate(NamedTuple):
    """An address that may be that of nbgen's routes, and where it was found.

    What servers say of themselves is `direct`: no proxy is to see their keys. `certificate` is the one that they show.
    The kernel's `own` server is the one that it, or its user, was given.
    """

    source: str
    url: str
    token: str
    direct: bool = True
    certificate: str = ""
    own: bool = True

    def client(self) -> Client:
        """To ask whether it is."""
        return Client(self.url, self.token, direct=self.direct, certificate=self.certificate)


def find_server(env: Mapping[str, str] | None = None, unusable: Callable[[str], None] = lambda why: None) -> AnyClient:
    """A client of the first candidate that answers, or of the server of another kind that the environment names.

    `unusable` is told why the kernel's own server is not the one. Raises ServerNotFound with all that was tried.
    """
    env = own_environment() if env is None else env
    if kind := env.get("NBGEN_KIND"):
        return open_client(env.get("NBGEN_URL", ""), env.get("NBGEN_TOKEN", ""), kind, env.get("NBGEN_MODEL") or None)
    tried: list[str] = []
    asked: set[tuple[str, str]] = set()
    missed: tuple[Candidate, NbgenError] | None = None
    for candidate in candidates(env):
        place = (candidate.url, candidate.token)
        if place in asked:
            continue
        asked.add(place)
        seconds = CONNECT_SECONDS if candidate.own else HELLO_SECONDS
        try:
            client = answering(candidate.client(), seconds)
            version = client.hello(timeout=seconds).get("version", __version__)
        except NbgenError as error:
            tried.append(f"  {candidate.source} ({candidate.url}): {error}")
            if candidate.own and (missed is None or missed[0].source == candidate.source):
                missed = candidate, error
            continue
        if missed and candidate.source != missed[0].source and candidate.url != missed[0].url:
            unusable(f"your nbgen server cannot be used: {missed[1]}; the one at {client.url} is in its place")
        if version != __version__:
            unusable(f"this kernel has nbgen {__version__} and its server, {client.url}, {version}: restart the older")
        return client
    if missed:
        unusable(f"your nbgen server cannot be used: {missed[1]}")
    found = "\n".join(tried) or "  no address in the environment and no running Jupyter server"
    raise ServerNotFound(
        f"no nbgen server found. Tried:\n{found}\n"
        "Start one for this kernel with nbgen.serve(), or name one with nbgen.connect(url, token)."
    )


def candidates(env: Mapping[str, str]) -> Iterator[Candidate]:
    """Every address worth asking, the most certain first."""
    runtime = runtime_folder(env)
    yield from _from_variables(env, runtime)
    parents = [pid for pid in (env.get("JPY_PARENT_PID"), str(os.getppid())) if pid]
    for pid in parents:
        yield from _from_files([runtime / f"nbgen-{pid}.json", runtime / f"jpserver-{pid}.json"])
    yield from _from_hub(env)
    if env.get("JUPYTER_SERVER_URL"):
        yield from _named("JUPYTER_SERVER_URL", env["JUPYTER_SERVER_URL"], env.get("JUPYTER_TOKEN", ""))
    for candidate in _from_files(_running(runtime, env.get("JPY_SESSION_NAME", ""))):
        yield candidate._replace(own=False)


def runtime_folder(env: Mapping[str, str]) -> Path:
    """Where Jupyter servers leave their connection files."""
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(env.get("JUPYTER_RUNTIME_DIR") or jupyter_runtime_dir())


def answers(client: AnyClient) -> bool:
    """Whether a server that a call did not reach is there again."""
    try:
        client.hello()
    except NbgenError:
        return False
    return True


def _from_variables(env: Mapping[str, str], runtime: Path) -> Iterator[Candidate]:
    """`NBGEN_URL` comes without a secret from the server itself: its runtime file holds the key."""
    url = env.get("NBGEN_URL")
    if not url:
        return
    if token := env.get("NBGEN_TOKEN"):
        yield from _named("NBGEN_URL", url, token)
        return
    named = list(_named("NBGEN_URL", url, ""))
    roots = [candidate.url for candidate in named]
    entries = [entry for path in sorted(runtime.glob("nbgen-*.json")) if (entry := _read(path))]
    written = [_as_written("NBGEN_URL", entry) for entry in entries if root_below(str(entry.get("url", ""))) in roots]
    yield from written or named


def _named(source: str, url: str, token: str) -> Iterator[Candidate]:
    """What a person calls the server's address. Theirs may be a server behind a proxy."""
    try:
        url = address(url)
    except InvalidRequest:  # which it is refused with when it is asked
        yield Candidate(source, url, token, direct=False)
        return
    for root in api_roots(url):
        yield Candidate(source, root, token or token_in(url), direct=False)


def _from_files(paths: list[Path]) -> Iterator[Candidate]:
    for path in paths:
        entry = _read(path)
        if entry and entry.get("url"):
            yield _as_written(path.name, entry)


def _as_written(source: str, entry: dict[str, Any]) -> Candidate:
    token = str(entry.get("key") or entry.get("token") or "")
    return Candidate(source, root_below(entry["url"]), token, certificate=str(entry.get("certificate", "")))


def _from_hub(env: Mapping[str, str]) -> Iterator[Candidate]:
    url, token = env.get("JUPYTERHUB_SERVICE_URL"), env.get("JUPYTERHUB_API_TOKEN")
    if url and token:
        yield Candidate("JupyterHub", root_below(unquote(url).replace("0.0.0.0", "127.0.0.1")), token)


def _running(runtime: Path, notebook: str) -> list[Path]:
    """Files of every server of this user that may run; first those that serve the folder of `notebook`."""
    paths = [*sorted(runtime.glob("nbgen-*.json")), *sorted(runtime.glob("jpserver-*.json"))]
    entries = {path: entry for path in paths if (entry := _read(path)) and not _gone(entry)}
    return sorted(entries, key=lambda path: not _serves(entries[path], notebook))


def _gone(entry: dict[str, Any]) -> bool:
    """Whether its server is not here any more, or never was: whoever has its port now is not to be shown its key."""
    parts, here = urlsplit(str(entry.get("url", ""))), socket.gethostname()
    if parts.scheme != "http+unix" and parts.hostname not in (*LOOPBACK, here.lower()):
        return False
    return entry.get("host", here) != here or not _runs(entry.get("pid"))


def _runs(pid: Any) -> bool:
    """Whether this user has such a process, where that can be told."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    except TypeError:
        return True  # a file need not tell it
    return True


def _serves(entry: dict[str, Any], notebook: str) -> bool:
    root = entry.get("root_dir")
    return bool(root and notebook and Path(notebook).is_relative_to(root))


def _read(path: Path) -> dict[str, Any] | None:
    """A file that is gone or half-written is no candidate."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return entry if isinstance(entry, dict) else None
