"""The helpers of `import nbgen`, and the one client they share in this kernel.

The first call finds the server, or starts one for this kernel. Knows neither HTTP nor how output is drawn.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from nbgen.errors import NbgenError, ServerNotFound
from nbgen.notebook.client import Client
from nbgen.notebook.discovery import answering, find_server
from nbgen.notebook.display import LoadProgress, ProgressLine
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.request import Prompt, run_body
from nbgen.notebook.result import Result
from nbgen.notebook.status import Status
from nbgen.notebook.text_stream import TextStream

P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.RLock()
_client: Client | None = None
_private: PrivateServer | None = None


def _plain(helper: Callable[P, T]) -> Callable[P, T]:
    """Let errors meant for the user begin here: the way through nbgen that led to them helps nobody."""

    @functools.wraps(helper)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return helper(*args, **kwargs)
        except NbgenError as error:
            raise error.with_traceback(None) from None

    return call


@_plain
def generate(prompt: Prompt, *, complete: bool = False, system: str | None = None, **options: Any) -> Result:
    """The model's answer to a text or to chat messages. `complete=True` continues the text as it stands.

    Options are those of SamplingParams (temperature, top_p, max_new_tokens, sampling_seed, stop, …). After Ctrl-C the
    partial answer is `result` of the KeyboardInterrupt.
    """
    answer = stream(prompt, complete=complete, system=system, **options)
    try:
        for _ in answer:
            pass
    except KeyboardInterrupt as interrupt:
        interrupt.result = answer.result  # type: ignore[attr-defined]
        raise
    return answer.result


@_plain
def stream(prompt: Prompt, *, complete: bool = False, system: str | None = None, **options: Any) -> TextStream:
    """As `generate`, but an iterator of text as it comes; its `result` holds what has come so far."""
    body = run_body(prompt, complete=complete, system=system, options=options)
    result = Result(params=body["params"], messages=body.get("messages"))
    return TextStream(default_client().run(body), result, LoadProgress())


@_plain
def load(model: str | None = None) -> Status:
    """Load a model, given as a folder, a hub id or "bundled"; replaces the one that is loaded."""
    client = default_client()
    progress = LoadProgress(model or "model")
    try:
        for name, data in client.load(_place(model)):
            if name == "progress":
                progress(data)
            elif name == "error":
                raise _load_error(data)
    finally:
        progress.finish()
    return Status(client.url, client.model())


@_plain
def unload() -> Status:
    """End the engine and give its memory back."""
    client = default_client()
    return Status(client.url, client.unload())


@_plain
def status() -> Status:
    """Which model is there and what it is doing."""
    client = default_client()
    return Status(client.url, client.model())


@_plain
def connect(url: str, token: str = "") -> Client:
    """Use the server at `url` from now on. Raises when it does not answer."""
    global _client
    client = answering(Client(url, token))
    with _lock:
        _client = client
    return client


def serve(model: str | None = None) -> PrivateServer:
    """Start a server for this kernel alone, and use it from now on. It ends with the kernel or by `stop`."""
    return _start("starting an nbgen server for this kernel…", model)


def default_client(start: bool = True) -> Client:
    """The client of this kernel. Without `start` raises ServerNotFound rather than starting a server."""
    global _client
    with _lock:
        if _client is None or _client.lost:
            _client = _find(start)
        return _client


def _find(start: bool) -> Client:
    try:
        return find_server()
    except ServerNotFound:
        if not start:
            raise
    _start("no nbgen server found: starting one for this kernel…")
    return _client


def _start(words: str, model: str | None = None) -> PrivateServer:
    global _client, _private
    with _lock:
        if _private is not None:
            _private.stop()
        line, outcome = ProgressLine(), ""
        line.show(words)
        try:
            _private = PrivateServer(_place(model), lambda seconds: line.show(f"{words} {seconds} s"))
            outcome = f"started an nbgen server for this kernel at {_private.url}"
        finally:
            line.clear(outcome)
        _client = _private.client
        return _private


def _place(model: str | None) -> str | None:
    """A folder by its full path: the server runs in another one."""
    folder = Path(model).expanduser() if model else None
    return str(folder.resolve()) if folder and folder.is_dir() else model


def _load_error(data: dict[str, Any]) -> Exception:
    from nbgen.errors import from_status

    error = data.get("error") or data
    return from_status(int(error.get("code", 422)), str(error.get("message", "the model cannot be loaded")))
