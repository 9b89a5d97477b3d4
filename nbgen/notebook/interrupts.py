"""Ctrl-C while something ends that must not be lost, as where Stop is clicked twice.

Knows signals; nothing of what ends.
"""

from __future__ import annotations

import signal
import threading


class Interrupts:
    """Within it Ctrl-C is heard until `ignore` is called, and not from then on. On another than the main thread, which
    alone hears it, this does nothing.
    """

    def __enter__(self) -> Interrupts:
        heard = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGINT) if heard else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def ignore(self) -> None:
        """By a function, not by SIG_IGN, which processes that are started meanwhile would keep."""
        if self._before is not None:
            signal.signal(signal.SIGINT, lambda *_: None)
