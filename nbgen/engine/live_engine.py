"""An engine in a thread of this process, over a model that is being trained here.

A server connects to a socket in a private folder, once for each time that it loads the model; when it disconnects, all
memory that was taken for it is given back. Knows nothing of what the server is.
"""

import contextlib
import logging
import selectors
import socket
import threading
from functools import partial
from pathlib import Path

from nbgen.commands import ReleaseMemory, ResumeMemory
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine.channel import Channel
from nbgen.engine.checkpoint import Report
from nbgen.engine.endings import NO_CACHE, ended_by
from nbgen.engine.live_model import LiveModel
from nbgen.engine.loop import STATUS_SECONDS, Loop
from nbgen.engine.service import serve
from nbgen.engine_config import EngineConfig
from nbgen.engine_state import LoadModel
from nbgen.errors import ModelError, NbgenError
from nbgen.messages import FinishReason

log = logging.getLogger(__name__)


class LiveLoop(Loop):
    """Takes turns with training, and computes everything again with the weights that training left."""

    def __init__(self, model: LiveModel, channel: Channel, assembly: Assembly) -> None:
        super().__init__(channel, assembly)
        self._model = model
        #: Whether the model as it was last seen cannot be run, or had no memory for its cache.
        self._unfit = False
        #: Memory commands that have not been carried out yet.
        self._asked: list[ReleaseMemory | ResumeMemory] = []

    def _prepare(self) -> None:
        """Try again to rebuild a model that was unfit. A released cache is taken again by the first step, not here."""
        if self._unfit:
            with self._model.weights.reading(STATUS_SECONDS) as may:
                if may:
                    self._rebuild()
            self._send_status()  # many items may come while the model is trained

    def _change_memory(self, item: ReleaseMemory | ResumeMemory) -> None:
        """Queue the command until training allows it: taking memory runs a probe, for which weights must not change."""
        self._asked.append(item)
        self._unfit &= not isinstance(item, ReleaseMemory)  # no request takes back what a client has released
        self._catch_up()
        self._send_status()  # many items may come while the model is trained

    def _let_go(self) -> None:
        super()._let_go()
        self._catch_up()

    def _catch_up(self) -> None:
        """Carry out queued memory commands, as far as training allows."""
        while self._asked:
            item = self._asked[0]
            takes = isinstance(item, ResumeMemory) and bool(self._occupation.released.intersection(item.tags))
            always = contextlib.nullcontext(enter_result=True)
            with self._model.weights.reading(STATUS_SECONDS) if takes else always as may:
                if not may:
                    return
                super()._change_memory(self._asked.pop(0))

    def _step(self) -> None:
        with self._model.weights.reading(STATUS_SECONDS) as may:
            if not may:
                return
            change = self._model.look()
            if change == "parts":
                self._rebuild()
            elif self._occupation.rests:
                self._wake()
            elif change == "numbers":
                self._engine.recompute()
            if self._engine.has_work:
                super()._step()

    def _wake(self) -> None:
        """Take the cache's memory again; if it is not free now, all requests end with that reason."""
        sequences = self._engine.withdraw()
        self._idle_release.end()
        self._unfit = self._occupation.rests
        self._send(self._engine.readmit(sequences))
        if self._unfit:
            self._send(self._engine.vacate(NO_CACHE))

    def _rebuild(self) -> None:
        """Continue with the layers that the model has now; if they cannot be run, all requests end with the reason."""
        sequences = self._engine.withdraw()
        self._occupation.release({"kv_cache", "weights"})
        why = self._resume()
        self._unfit = why is not None
        self._send(self._engine.readmit(sequences))
        if why is not None:
            self._send(self._engine.vacate(why))

    def _resume(self) -> FinishReason | None:
        """Load the model again; returns the reason if it cannot be run."""
        try:
            self._occupation.resume({"kv_cache", "weights"})
        except NbgenError as error:
            log.warning("the live model cannot be run: %s", error.message)
            return ended_by(error)
        except Exception:  # whatever the owner has made of the model
            log.exception("the live model cannot be run")
            return FinishReason.failure("the model cannot be run as it is now; the notebook's log says why", 503)
        return None


class LiveEngine:
    """Serves `model` to whoever connects to the socket `path`, one after another."""

    def __init__(self, model: LiveModel, path: Path) -> None:
        self._model = model
        self._closing = False
        self._end, self._ended = socket.socketpair()
        self._over = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(1)
        threading.Thread(target=self._run, name="nbgen-engine", daemon=True).start()
        model.watch()

    def close(self) -> None:
        """Take no more connections, and return once the last has ended and its memory is back. May be called again."""
        self._model.unwatch()
        self._closing = True
        with contextlib.suppress(OSError):  # another call has closed it, and may have been interrupted since
            self._end.shutdown(socket.SHUT_RDWR)  # this ends a fork's copy of the socket, too
        self._end.close()
        self._over.wait()  # before Python 3.13 a thread whose joining was interrupted counts as ended
        self._ended.close()
        self._listener.close()

    def _run(self) -> None:
        try:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self._listener, selectors.EVENT_READ)
                waiting.register(self._ended, selectors.EVENT_READ)
                while waiting.select() and not self._closing:
                    connection, _ = self._listener.accept()
                    self._serve(Channel(connection.detach(), on_lost=lambda: None))
        finally:
            self._over.set()

    def _serve(self, channel: Channel) -> None:
        messages = channel.messages()
        try:
            if isinstance(first := next(messages, None), LoadModel):
                build = partial(self._assemble, channel, first.config)
                serve(channel, first.config.model, build, messages, partial(LiveLoop, self._model))
        except Exception:  # the server hears the end of the channel, and may load again
            log.exception("the live engine stopped")
        finally:
            channel.close()

    def _assemble(self, channel: Channel, config: EngineConfig, report: Report) -> Assembly:
        while not (self._closing or channel.is_left):
            with self._model.weights.reading(STATUS_SECONDS) as may:
                if may:
                    return assemble(config, report, self._model)
            report("waiting for training", 0, 0)
        raise ModelError("the live model is no longer served")
