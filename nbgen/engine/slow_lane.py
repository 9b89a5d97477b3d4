"""Admits slow requests one after the other in threads of their own, so that other requests need not wait for them.

Slow are requests whose media must be decoded, those with long texts, and those that would have to wait for one of
these. Knows neither media nor tokens.
"""

import queue
import threading
from collections.abc import Callable

from nbgen.frames import Request
from nbgen.messages import GenerateRequest
from nbgen.tokenizer_messages import DetokenizeRequest, ParseRequest, TokenizeRequest

#: Does the slow work for a request, and returns a function that does the rest, which is quick.
Admit = Callable[[Request], Callable[[], None]]
#: So many characters or ids take 10 ms to admit: much more than handing them to another thread.
LONG = 2**15


class SlowLanes:
    """One lane for media, one for long texts. A request that was withdrawn will never be admitted."""

    def __init__(self, media: Admit, text: Admit, would_wait: Callable[[Request], bool]) -> None:
        self._would_wait = would_wait
        self.media, self.text = SlowLane("media", media), SlowLane("long-texts", text)

    def take(self, request: Request) -> bool:
        """Put the request into a lane if it is slow; whether it is."""
        if isinstance(request, GenerateRequest) and request.media:
            self.media.put(request)
        elif _length(request) > LONG or self._would_wait(request):
            self.text.put(request)
        else:
            return False
        return True

    def withdraw(self, rid: str) -> Request | None:
        """Take out the request of this id, if it is not admitted yet, and return it."""
        return self.media.withdraw(rid) or self.text.withdraw(rid)

    def prompts(self) -> list[str]:
        """The ids of generate requests that are not admitted yet."""
        waiting = [*self.media.waiting(), *self.text.waiting()]
        return [request.rid for request in waiting if isinstance(request, GenerateRequest)]

    def close(self) -> None:
        """End the threads once they have admitted what they hold."""
        self.media.close()
        self.text.close()


class SlowLane:
    """A thread that calls `admit` with each request, then the function that this returns, unless it was withdrawn."""

    def __init__(self, name: str, admit: Admit) -> None:
        self._name, self._admit = name, admit
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Requests that are not admitted yet, by their ids.
        self._wanted: dict[str, Request] = {}
        self._lock = threading.Lock()

    def put(self, request: Request) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        with self._lock:
            self._wanted[request.rid] = request
        self._requests.put(request)

    def withdraw(self, rid: str) -> Request | None:
        with self._lock:
            return self._wanted.pop(rid, None)

    def waiting(self) -> list[Request]:
        with self._lock:
            return list(self._wanted.values())

    def close(self) -> None:
        self._requests.put(None)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            if self._is_wanted(request):
                self._finish(request, self._admit(request))

    def _is_wanted(self, request: Request) -> bool:
        """Whether this very request was not withdrawn: another one may have its id by now."""
        return self._wanted.get(request.rid) is request

    def _finish(self, request: Request, hand_on: Callable[[], None]) -> None:
        with self._lock:
            if self._is_wanted(request):
                del self._wanted[request.rid]
                hand_on()


def _length(request: Request) -> int:
    """How many characters or ids of the request must be read."""
    if isinstance(request, DetokenizeRequest):
        return sum(map(len, request.token_ids))
    if isinstance(request, ParseRequest):
        return len(request.text)
    if isinstance(request, GenerateRequest | TokenizeRequest):
        texts = request.texts if isinstance(request, TokenizeRequest) else [request.text or ""]
        chat = (m.text + m.reasoning + "".join(c.arguments for c in m.tool_calls) for m in request.messages or ())
        return sum(map(len, texts)) + sum(map(len, chat))
    return 0
