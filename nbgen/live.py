"""`nbgen.serve(model, tokenizer)`: serves the model that is being trained in this kernel, by a server of its own.

Notebook code imports the engine only here and in `module_export`: the engine runs in a thread, as the weights are in
this process. The server is another process, which answers while this one is busy and ends with it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nbgen.engine.live_engine import LiveEngine
from nbgen.engine.live_model import LiveModel
from nbgen.notebook.client import Client
from nbgen.notebook.private_folder import PrivateFolder
from nbgen.notebook.private_server import PrivateServer

__all__ = ["LiveModel", "LiveServer"]

#: Name of the socket at which the server finds the engine, in a private folder.
SOCKET = "engine"
#: The longest path of a Unix socket that every system accepts, in bytes.
SOCKET_PATH = 103


class LiveServer:
    """A model that lives in this kernel, being served."""

    def __init__(self, model: LiveModel, name: str, options: dict[str, Any], waiting: Callable[[int], None]) -> None:
        """Raises ServerNotFound where its server does not start."""
        self._model: LiveModel | None = model
        self._folder = _folder()
        path = self._folder.path / SOCKET
        self._engine: LiveEngine | None = LiveEngine(self._model, path)
        atexit.register(self.stop)
        self._server: PrivateServer | None = None
        fixed = {"engine_socket": str(path), "standby": False, "cuda_graphs": False, "compile": False}
        try:
            self._server = PrivateServer(name, waiting, {**options, **fixed}, self._folder)
        finally:
            if self._server is None:
                self.stop()

    @property
    def client(self) -> Client | None:
        """A client of this server."""
        return self._server.client if self._server else None

    @property
    def url(self) -> str:
        """The root of nbgen's routes."""
        return self._server.url if self._server else ""

    @property
    def running(self) -> bool:
        return self._engine is not None and self._server is not None and self._server.running

    def training(self) -> AbstractContextManager[None]:
        """Wrap manual changes of weights, or of state kept by hooks: generation waits, and then uses the new values and
        nothing that was computed before.

        Steps of torch's optimizers do not need it: generation waits for them by itself. Around a whole epoch it gives
        all processor cores to training.
        """
        return self._model.training() if self._model is not None else nullcontext()

    def stop(self) -> None:
        """End the server and the engine, and wait until their resources are freed. The model stays as it is.

        In a fork of this process it does nothing.
        """
        atexit.unregister(self.stop)
        if not self._folder.ours:
            return
        if self._server is not None:
            self._server.stop()
        if (engine := self._engine) is not None:
            engine.close()
            self._engine = self._model = None
            self._folder.remove()

    def __enter__(self) -> LiveServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running; .stop() ends it" if self.running else "stopped"
        return f"<nbgen server of a live model at {self.url}, {state}>"


def _folder() -> PrivateFolder:
    """A private folder in which the socket's path is not too long."""
    folder = PrivateFolder("nbgen-live-")
    if len(os.fsencode(folder.path / SOCKET)) <= SOCKET_PATH:
        return folder
    folder.remove()
    return PrivateFolder("nbgen-live-", above="/tmp")
