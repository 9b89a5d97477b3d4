"""Find the nbgen server that this kernel belongs to: environment, runtime files, JupyterHub, running servers.

Knows where addresses are written down and asks each one `hello`; starts nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from nbgen.errors import NbgenError, ServerNotFound
from nbgen.notebook.client import CONNECT_SECONDS, Client, api_root
from nbgen.notebook.passed_on import own_environment
from nbgen.notebook.remote import AnyClient, open_client

C = TypeVar("C", bound=Client)

HELLO_SECONDS = 2.0


class Candidate(NamedTuple):
    """An address that may be the server's, and where it was found."""

    source: str
    url: str
    token: str


def find_server(env: Mapping[str, str] | None = None) -> AnyClient:
    """A client of the first candidate that answers, or of the server of another kind that the environment names.

    Raises ServerNotFound with all that was tried.
    """
    env = own_environment() if env is None else env
    if kind := env.get("NBGEN_KIND"):
        return open_client(env.get("NBGEN_URL", ""), env.get("NBGEN_TOKEN", ""), kind, env.get("NBGEN_MODEL") or None)
    tried: list[str] = []
    asked: set[tuple[str, str]] = set()
    for candidate in candidates(env):
        place = (api_root(candidate.url), candidate.token)
        if place in asked:
            continue
        asked.add(place)
        try:
            return _ask(candidate)
        except NbgenError as error:
            tried.append(f"  {candidate.source} ({candidate.url}): {error}")
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
        yield Candidate("JUPYTER_SERVER_URL", env["JUPYTER_SERVER_URL"], env.get("JUPYTER_TOKEN", ""))
    yield from _from_files(_running(runtime, env.get("JPY_SESSION_NAME", "")))


def runtime_folder(env: Mapping[str, str]) -> Path:
    """Where Jupyter servers leave their connection files."""
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(env.get("JUPYTER_RUNTIME_DIR") or jupyter_runtime_dir())


def _ask(candidate: Candidate) -> Client:
    if candidate.url.startswith("http+unix:"):
        raise ServerNotFound("listens on a unix socket, which nbgen's client cannot use")
    return answering(Client(candidate.url, candidate.token), HELLO_SECONDS)


def answering(client: C, seconds: float = CONNECT_SECONDS) -> C:
    """The client, if its server says hello; else it is closed and the error raised."""
    try:
        client.hello(timeout=seconds)
    except NbgenError:
        client.close()
        raise
    return client


def _from_variables(env: Mapping[str, str], runtime: Path) -> Iterator[Candidate]:
    """`NBGEN_URL` comes without a secret from the server itself: its runtime file holds the key."""
    url = env.get("NBGEN_URL")
    if not url:
        return
    if token := env.get("NBGEN_TOKEN"):
        yield Candidate("NBGEN_URL", url, token)
        return
    for path in sorted(runtime.glob("nbgen-*.json")):
        entry = _read(path)
        if entry and api_root(str(entry.get("url", ""))) == api_root(url):
            yield Candidate("NBGEN_URL", url, str(entry.get("key", "")))
    yield Candidate("NBGEN_URL", url, "")


def _from_files(paths: list[Path]) -> Iterator[Candidate]:
    for path in paths:
        entry = _read(path)
        if entry and entry.get("url"):
            yield Candidate(path.name, entry["url"], str(entry.get("key") or entry.get("token") or ""))


def _from_hub(env: Mapping[str, str]) -> Iterator[Candidate]:
    url, token = env.get("JUPYTERHUB_SERVICE_URL"), env.get("JUPYTERHUB_API_TOKEN")
    if url and token:
        yield Candidate("JupyterHub", unquote(url).replace("0.0.0.0", "127.0.0.1"), token)


def _running(runtime: Path, notebook: str) -> list[Path]:
    """Files of every server of this user; first those that serve the folder of `notebook`."""
    paths = [*sorted(runtime.glob("nbgen-*.json")), *sorted(runtime.glob("jpserver-*.json"))]
    return sorted(paths, key=lambda path: not _serves(_read(path), notebook))


def _serves(entry: dict[str, Any] | None, notebook: str) -> bool:
    root = (entry or {}).get("root_dir")
    return bool(root and notebook) and Path(notebook).is_relative_to(root)


def _read(path: Path) -> dict[str, Any] | None:
    """A file that is gone or half-written is no candidate."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return entry if isinstance(entry, dict) else None
