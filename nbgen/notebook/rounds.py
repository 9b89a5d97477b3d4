"""The rounds of a panel's conversation: an answer calls functions, they are called, and the model answers again.

The kernel makes every step, for the functions are here; it does so when a page that shows the panel asks it to, or
where `Chat.wait` finds calls, and once, whoever comes first. Functions run on the kernel's main thread between cells,
as the callbacks of widgets do: they find the notebook's variables and connections at rest, and ■ interrupts them.
Coroutine functions hold up nothing: they run beside the kernel. Knows no HTTP and no pixels.
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
#: The conversation up to a run's answer; None unless that has ended well and is the newest.
Read = Callable[[str], Messages | None]
#: Have the model answer these messages, after a run; the id of the run that does.
GoOn = Callable[[Messages, str], str]

GONE_ON = "The conversation has gone on without these calls."
INTERRUPTED = "The call was interrupted."
STOPPED = "Stopped"
TOO_MANY = f"{MAX_ROUNDS} answers in a row have called functions: ask again to go on."


class Rounds:
    """Has the functions called that one panel's answers call; those of other panels and kernels are not its own."""

    def __init__(self, tools: Tools, read: Read, go_on: GoOn, send: Callable[[dict[str, Any]], None]) -> None:
        #: How the ids of its runs begin; empty where nothing can be called.
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
        """The run whose calls are being made, unless they have been stopped."""
        open_ones = (run for run, step in list(self._steps.items()) if not step.done.is_set())
        return next((run for run in open_ones if run not in self._stopped), None)

    def following(self, run: str) -> str | None:
        """The run that has gone on from this one."""
        return self._after.get(run)

    def new_id(self) -> str:
        """A name for a run that is its own."""
        return "-".join(filter(None, [self.owner, uuid.uuid4().hex]))

    def hear(self, run: str) -> None:
        """A page asks for a step; what has been told of one is told again, for the page may be new."""
        if not self._owns(run):
            return
        if told := self._told.get(run):
            self._send(told)
        if run in self._steps or run in self._stopped:
            return
        kernel = getattr(get_ipython(), "kernel", None)
        if kernel is None or threading.current_thread() is threading.main_thread():
            self._begin(run)
        else:  # a subshell: the main thread may be at a cell
            kernel.io_loop.add_callback(self._between_cells, run)

    def step(self, run: str) -> None:
        """Make the calls of this run's answer and have the model go on, or wait for who is at it.

        Pages hear what fails.
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
        """Make no calls of this run, and tell every page; the run to be stopped, which may be the one that goes on."""
        if self._owns(run):
            self._stopped.add(run)
            self._give_up(run, STOPPED)
        return self._after.get(run, run)

    def _owns(self, run: str) -> bool:
        return bool(self.owner) and run.startswith(f"{self.owner}-")

    def _between_cells(self, run: str) -> None:
        """A step that ■ interrupts, as the kernel has it for cells alone."""
        with suppress(KeyboardInterrupt):
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self._begin(run)
            finally:
                signal.signal(signal.SIGINT, before)

    def _begin(self, run: str) -> None:
        """A step that nobody here waits for."""
        with suppress(NbgenError):
            if self._is_beside(run):
                threading.Thread(target=self._quietly, args=(run,), daemon=True).start()
                return
        self._quietly(run)

    def _is_beside(self, run: str) -> bool:
        """Whether the step needs nothing of the main thread."""
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
        """Words why the calls at the end of these messages are not made."""
        calls = calls_of(messages[-1]) if messages else []
        if not messages or not calls:
            return GONE_ON
        if unknown := self._tools.unknown(calls):
            return f"Nobody here can call {', '.join(unknown)}."
        asked = max(place for place, turn in enumerate(messages) if turn["role"] == "user" or not place)
        rounds = sum(bool(turn.get("tool_calls")) for turn in messages[asked:])
        return TOO_MANY if rounds >= MAX_ROUNDS else ""

    def _give_up(self, run: str, words: str) -> None:
        """Nothing comes of these calls, whether or not one has begun."""
        begun = run in self._told and self._told[run]["begun"]
        self._tell(run, {"type": "uncalled", "message": words, "begun": begun})

    def _tell(self, run: str, message: dict[str, Any]) -> None:
        self._told[run] = {**message, "run": run}
        self._send(self._told[run])


class _Step:
    """One that somebody is at."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._thread = threading.current_thread()

    def wait(self) -> None:
        """Until it is done; a function that is called in it waits for nothing."""
        if self._thread is not threading.current_thread():
            self.done.wait()
