"""The rounds of a panel's conversation: an answer calls functions, they are called, and the model answers again.

The kernel makes every step, for the functions are here. A page that shows the panel asks for a step, or `Chat.wait`
finds calls; whoever comes first, it is made once. Functions run on the kernel's main thread between cells, as callbacks
of widgets do: no cell changes variables and connections meanwhile, and ■ interrupts the functions. Coroutine functions
block nothing: they run on another thread. Knows no HTTP and no pixels.
"""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from IPython.core.getipython import get_ipython

from nbgen.errors import NbgenError
from nbgen.notebook.tools import MAX_ROUNDS, Tools
from nbgen.notebook.turns import calls_of

Messages = list[dict[str, Any]]
#: Returns the conversation up to a run's answer; None unless that answer has ended well and is the newest.
Read = Callable[[str], Messages | None]
#: Has the model answer these messages, after the run of this id; returns the new run's id.
GoOn = Callable[[Messages, str], str]

GONE_ON = "The conversation has gone on without these calls."
INTERRUPTED = "The call was interrupted."
STOPPED = "Stopped"
TOO_MANY = f"{MAX_ROUNDS} answers in a row have called functions: ask again to go on."


class Rounds:
    """Calls the functions that one panel's answers call, but not those of runs of other panels and kernels."""

    def __init__(self, tools: Tools, read: Read, go_on: GoOn, send: Callable[[dict[str, Any]], None]) -> None:
        #: How the ids of its runs begin; empty where there are no tools.
        self.owner = uuid.uuid4().hex[:12] if tools.json else ""
        self._tools = tools
        self._read = read
        self._go_on = go_on
        self._send = send
        self._steps: dict[str, _Step] = {}
        self._stopped: set[str] = set()
        self._after: dict[str, str] = {}
        self._told: dict[str, dict[str, Any]] = {}

    @property
    def calling(self) -> str | None:
        """A run whose calls are being made and have not been stopped, if any."""
        open_ones = (run for run, step in list(self._steps.items()) if not step.done.is_set())
        return next((run for run in open_ones if run not in self._stopped), None)

    def following(self, run: str) -> str | None:
        """The run that continues this one, if it has started."""
        return self._after.get(run)

    def new_id(self) -> str:
        """An id for a new run of this panel."""
        return "-".join(filter(None, [self.owner, uuid.uuid4().hex]))

    def hear(self, run: str) -> None:
        """A page asks for a step. What pages have been told of this step is sent again, for the page may be new."""
        if not self._owns(run):
            return
        if told := self._told.get(run):
            self._send(told)
        if run in self._steps or run in self._stopped:
            return
        kernel = getattr(get_ipython(), "kernel", None)
        if kernel is None or threading.current_thread() is threading.main_thread():
            self._begin(run)
        else:  # on a subshell's thread: the main thread may be running a cell
            kernel.io_loop.add_callback(self._between_cells, run)

    def step(self, run: str) -> None:
        """Make the calls of this run's answer and have the model go on, or wait for the thread that is doing so.

        Pages are told of failures.
        """
        if not self._owns(run) or run in self._stopped:
            return
        own = _Step()
        if (step := self._steps.setdefault(run, own)) is not own:
            step.wait()
            return
        try:
            self._step(run)
        except BaseException as error:  # Ctrl-C, too: pages hear of it
            self._give_up(run, str(error) if isinstance(error, NbgenError) else INTERRUPTED)
            raise
        finally:
            own.done.set()

    def stop(self, run: str) -> str:
        """Make no calls of this run, and tell every page. Returns the run to be stopped: this one, or its successor."""
        if self._owns(run):
            self._stopped.add(run)
            self._give_up(run, STOPPED)
        return self._after.get(run, run)

    def _owns(self, run: str) -> bool:
        return bool(self.owner) and run.startswith(f"{self.owner}-")

    def _between_cells(self, run: str) -> None:
        """A step that ■ can interrupt: by itself the kernel allows that for cells only."""
        with suppress(KeyboardInterrupt):
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self._begin(run)
            finally:
                signal.signal(signal.SIGINT, before)

    def _begin(self, run: str) -> None:
        """Make a step that no caller waits for."""
        with suppress(NbgenError):
            if self._is_beside(run):
                threading.Thread(target=self._quietly, args=(run,), daemon=True).start()
                return
        self._quietly(run)

    def _is_beside(self, run: str) -> bool:
        """Whether the step can run on another thread, as it calls coroutine functions only."""
        calls = calls_of((self._read(run) or [{}])[-1])
        return bool(calls) and not self._tools.unknown(calls) and self._tools.asynchronous(calls)

    def _quietly(self, run: str) -> None:
        with suppress(NbgenError, KeyboardInterrupt, SystemExit):
            self.step(run)

    def _step(self, run: str) -> None:
        messages = self._read(run)
        if refusal := self._refusal(messages):
            self._give_up(run, refusal)
            return
        assert messages is not None
        self._tell(run, {"type": "calling", "begun": True})
        results = self._tools.call(calls_of(messages[-1]))
        if run in self._stopped:
            return
        if self._read(run) is None:
            self._give_up(run, GONE_ON)
        else:
            self._after[run] = self._go_on([*messages, *results], run)

    def _refusal(self, messages: Messages | None) -> str:
        """Why the calls of the last message are not made; empty if they are."""
        calls = calls_of(messages[-1]) if messages else []
        if not messages or not calls:
            return GONE_ON
        if unknown := self._tools.unknown(calls):
            return f"Nobody here can call {', '.join(unknown)}."
        asked = max(place for place, turn in enumerate(messages) if turn["role"] == "user" or not place)
        rounds = sum(bool(turn.get("tool_calls")) for turn in messages[asked:])
        return TOO_MANY if rounds >= MAX_ROUNDS else ""

    def _give_up(self, run: str, words: str) -> None:
        """Tell pages that these calls will have no results, and whether they had begun."""
        begun = run in self._told and self._told[run]["begun"]
        self._tell(run, {"type": "uncalled", "message": words, "begun": begun})

    def _tell(self, run: str, message: dict[str, Any]) -> None:
        self._told[run] = {**message, "run": run}
        self._send(self._told[run])


class _Step:
    """A step that some thread is making."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._thread = threading.current_thread()

    def wait(self) -> None:
        """Wait until it is done; returns at once in a function that the step itself has called."""
        if self._thread is not threading.current_thread():
            self.done.wait()
