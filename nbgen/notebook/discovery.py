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

#: Timeout of `hello` for servers that happen to run here; the kernel's own may be far away or busy, and gets longer.
HELLO_SECONDS = 2.0


class Candidate(NamedTuple):
    """An address that may be the root of nbgen's routes, and where it was found.

    An address that a server itself wrote down is `direct`: no proxy may see its key. `certificate` is the server's.
    The kernel's `own` server is the one that the kernel, or its user, was given.
    """

    source: str
    url: str
    token: str
    direct: bool = True
    certificate: str = ""
    own: bool = True

    def client(self) -> Client:
        """A client, to ask whether nbgen answers there."""
        return Client(self.url, self.token, direct=self.direct, certificate=self.certificate)


def find_server(env: Mapping[str, str] | None = None, unusable: Callable[[str], None] = lambda why: None) -> AnyClient:
    """A client of the first candidate that answers, or of the server of another kind that the environment names.

    `unusable` is told why the kernel's own server is not used. Raises ServerNotFound, which lists all that was tried.
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
    """Whether a server that a call did not reach answers again."""
    try:
        client.hello()
    except NbgenError:
        return False
    return True


def _from_variables(env: Mapping[str, str], runtime: Path) -> Iterator[Candidate]:
    """From `NBGEN_URL`. The server itself sets it without a secret: the key is in the server's runtime file."""
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
    """The candidates for an address that a person gave. Not `direct`: their server may be behind a proxy."""
    try:
        url = address(url)
    except InvalidRequest:  # using it raises this again, as its failure
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
    """Runtime files of this user's servers that may be running; first those that serve the folder of `notebook`."""
    paths = [*sorted(runtime.glob("nbgen-*.json")), *sorted(runtime.glob("jpserver-*.json"))]
    entries = {path: entry for path in paths if (entry := _read(path)) and not _gone(entry)}
    return sorted(entries, key=lambda path: not _serves(entries[path], notebook))


def _gone(entry: dict[str, Any]) -> bool:
    """Whether the server no longer runs here, or ran elsewhere: whoever has its port now must not get its key."""
    parts, here = urlsplit(str(entry.get("url", ""))), socket.gethostname()
    if parts.scheme != "http+unix" and parts.hostname not in (*LOOPBACK, here.lower()):
        return False
    return entry.get("host", here) != here or not _runs(entry.get("pid"))


def _runs(pid: Any) -> bool:
    """Whether this user has a process of this id; True if the file has none."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    except TypeError:
        return True  # a file may lack it
    return True


def _serves(entry: dict[str, Any], notebook: str) -> bool:
    root = entry.get("root_dir")
    return bool(root and notebook and Path(notebook).is_relative_to(root))


def _read(path: Path) -> dict[str, Any] | None:
    """The entry in a runtime file; None if the file is gone or half-written."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return entry if isinstance(entry, dict) else None
