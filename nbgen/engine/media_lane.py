"""Requests whose media take a while to decode, admitted one after the other beside all others. Knows no media."""

import queue
import threading
from collections.abc import Callable

from nbgen.messages import GenerateRequest


class MediaLane:
    """A thread that calls `admit` with each request put into it, and then what that returns, unless it is withdrawn."""

    def __init__(self, admit: Callable[[GenerateRequest], Callable[[], None]]) -> None:
        self._admit = admit
        self._requests: queue.SimpleQueue[GenerateRequest | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Those that are not admitted yet, by their ids.
        self._wanted: dict[str, GenerateRequest] = {}
        self._lock = threading.Lock()

    def put(self, request: GenerateRequest) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="media", daemon=True)
            self._thread.start()
        with self._lock:
            self._wanted[request.rid] = request
        self._requests.put(request)

    def withdraw(self, rid: str) -> GenerateRequest | None:
        """The request of this id, if it is not admitted yet: it never will be."""
        with self._lock:
            return self._wanted.pop(rid, None)

    def close(self) -> None:
        """End the thread once it has admitted what it holds."""
        self._requests.put(None)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            if self._is_wanted(request):
                self._finish(request, self._admit(request))

    def _is_wanted(self, request: GenerateRequest) -> bool:
        """Whether it was not withdrawn: another may have its id by now."""
        return self._wanted.get(request.rid) is request

    def _finish(self, request: GenerateRequest, hand_on: Callable[[], None]) -> None:
        with self._lock:
            if self._is_wanted(request):
                del self._wanted[request.rid]
                hand_on()
