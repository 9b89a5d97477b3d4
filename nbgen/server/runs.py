"""Runs: requests that live on the server, each an append-only log of outputs that any number of readers follow.

A slow or absent reader never holds up the engine. Knows no dialect and no HTTP.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from nbgen.errors import Conflict, NbgenError, NotFound, Unavailable
from nbgen.messages import FinishReason, GenerateOutput, GenerateRequest, ToolCall
from nbgen.protocols.chat_messages import without_files
from nbgen.protocols.native import Message
from nbgen.protocols.sample import Sample, usage
from nbgen.server.chats import Chats
from nbgen.server.engine_client import EngineClient
from nbgen.server.question import Questions
from nbgen.server.reader import Reader

log = logging.getLogger(__name__)

KEEP_SECONDS = 600.0
KEEP_RUNS = 512
KEEP_OUTPUTS = 200_000
#: Of the requests of finished runs, without images and sounds.
KEEP_BYTES = 2**27
MAX_LIVE = 4096
#: The shortest time over which a token rate is reported.
RATE_SECONDS = 0.01
#: Of the images and sounds of all live runs.
MAX_MEDIA_BYTES = 2**30


class Run:
    """One request and everything it has produced. `kept` runs stay readable after their end."""

    def __init__(
        self,
        request: GenerateRequest,
        *,
        chat: str | None = None,
        kept: bool = False,
        messages: Sequence[Message] | None = None,
    ) -> None:
        """`messages` are the request's messages as they came, files included."""
        self.request = request
        self.messages = messages
        self.media_bytes = sum(len(each.data) for each in request.media)
        #: Bytes of the request, set once the run has ended and its files are dropped.
        self.kept_bytes = 0
        self.chat = chat
        self.kept = kept
        self.model = ""
        #: Identity of the model that answered; `identify` gives it when the run ends.
        self.identity = ""
        self.identify: Callable[[], str] = lambda: ""
        self.outputs: list[GenerateOutput] = []
        self.samples = [Sample() for _ in range(request.params.n)]
        self.error: NbgenError | None = None
        self.created = time.time()
        self.started = time.monotonic()
        #: When the engine first computed for this run.
        self.running_since: float | None = None
        self.first_token: float | None = None
        self.last_token = 0.0
        #: Number of tokens that came together with the first one.
        self._first_tokens = 0
        self.ended: float | None = None
        #: `watchers` are called at every change, `end_watchers` once the run has ended.
        self.watchers: set[Callable[[], None]] = set()
        self.end_watchers: set[Callable[[], None]] = set()

    @property
    def id(self) -> str:
        return self.request.rid

    @property
    def text(self) -> str:
        """The first sample's text, without reasoning."""
        return self.samples[0].content

    @property
    def reasoning(self) -> str:
        """The first sample's reasoning, where it is told apart from the text."""
        return self.samples[0].reasoning

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The first sample's tool calls."""
        return self.samples[0].tool_calls

    @property
    def finish_reason(self) -> FinishReason | None:
        """The first sample's finish reason."""
        return self.samples[0].finish_reason

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the prompt and of all samples."""
        return usage(self.samples)

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token (TTFT)."""
        return None if self.first_token is None else self.first_token - self.started

    @property
    def tokens_per_s(self) -> float | None:
        """Token rate after the first output; None if the time is too short to tell."""
        if self.first_token is None or self.last_token - self.first_token < RATE_SECONDS:
            return None
        return (self._tokens - self._first_tokens) / (self.last_token - self.first_token)

    @property
    def _tokens(self) -> int:
        return sum(sample.completion_tokens for sample in self.samples)

    @property
    def ended_at(self) -> float | None:
        """When it ended, in seconds since 1970."""
        return None if self.ended is None else self.created + self.ended - self.started

    def add(self, *outputs: GenerateOutput) -> None:
        """Append the engine's next outputs, which came together."""
        now, before = time.monotonic(), self._tokens
        for output in outputs:
            if self.ended is None and output.index < len(self.samples):
                self._take(output)
        if self._tokens > before:
            self._came(now)
        self._notify()

    def _came(self, now: float) -> None:
        """Note when tokens came."""
        self.last_token = now
        if self.first_token is None:
            self.first_token, self._first_tokens = now, self._tokens

    def _take(self, output: GenerateOutput) -> None:
        reason = output.finish_reason
        if reason is not None and (error := reason.as_error("the request failed in the engine")) is not None:
            self.error = error
            self.ended = time.monotonic()
            return
        if output.ran_seconds:
            since = time.monotonic() - output.ran_seconds
            self.running_since = since if self.running_since is None else min(since, self.running_since)
        self.outputs.append(output)
        self.samples[output.index].add(output)
        if reason is not None and all(sample.finish_reason for sample in self.samples):
            self.ended = time.monotonic()
            self.identity = self.identify()

    def fail(self, error: NbgenError) -> None:
        """End the run with an error; its earlier outputs stay valid."""
        if self.ended is None:
            self.error = error
            self.ended = time.monotonic()
            self._notify()

    def _notify(self) -> None:
        """Call the watchers. At the end drop them: none is called again, and they refer back to the run."""
        _call(self.watchers)
        if self.ended is not None:
            _call(self.end_watchers)
            self.watchers.clear()
            self.end_watchers.clear()


def _call(watchers: set[Callable[[], None]]) -> None:
    """Call each watcher; an exception in one disturbs neither the others nor the engine."""
    for watcher in tuple(watchers):
        try:
            watcher()
        except Exception:  # watchers belong to readers, and may raise anything
            log.exception("A watcher of a run failed")


async def ended(runs: Sequence[Run], reader: Reader) -> None:
    """Wait until all have ended, one has failed, or the reader has left."""
    for run in runs:
        reader.watch(run.end_watchers)
    while not reader.gone and any(run.ended is None for run in runs) and not any(run.error for run in runs):
        await reader.wait()


class Runs:
    """All runs of this server: those alive, and for a while those that ended.

    `on_activity` is called when a run starts or ends, and by `sweep` while any is alive; `on_start` with each run.
    """

    def __init__(
        self,
        engine: EngineClient,
        on_activity: Callable[[], None],
        on_start: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self._engine = engine
        self._on_start = on_start
        self._on_activity = on_activity
        self._live: dict[str, Run] = {}
        self._finished: dict[str, Run] = {}
        self.chats = Chats()
        self.questions = Questions()

    def __len__(self) -> int:
        return len(self._live)

    def start(self, run: Run) -> None:
        """Hand the run to the engine.

        Raises Conflict for an id in flight, Unavailable for too many live runs, InvalidRequest for a full chat.
        """
        if run.id in self._live:
            raise Conflict(f"Duplicate request ID detected: {run.id}", field="rid")
        if len(self._live) >= MAX_LIVE:
            raise Unavailable(f"the queue is full ({len(self._live)} requests)")
        waiting = sum(other.media_bytes for other in self._live.values()) if run.media_bytes else 0
        if waiting and waiting + run.media_bytes > MAX_MEDIA_BYTES:
            raise Unavailable(f"the queue is full: the images and sounds in it have {waiting} bytes")
        if run.kept and run.chat:
            self.chats.check_room(run.chat)
        run.model = self._engine.config.model
        run.identify = partial(self._engine.identity, run.request.adapter)
        self._engine.submit(run.request, run)
        self._live[run.id] = run
        self._on_start(run)
        run.end_watchers.add(lambda: self._settle(run))
        if run.kept and run.chat:
            self.chats.open(run.chat).add(run.messages or [], run)
        self._on_activity()

    def find(self, id: str) -> Run | None:
        """The kept run of this id, alive or not."""
        run = self._live.get(id) or self._finished.get(id)
        return run if run is not None and run.kept else None

    def get(self, id: str) -> Run:
        """The kept run of this id, alive or not. Raises NotFound."""
        run = self.find(id)
        if run is None:
            raise NotFound(f"there is no run {id[:128]!r}; finished runs are kept for 10 minutes")
        return run

    def state(self, run: Run) -> str:
        """The run's state in words: queued, loading, running, done or error."""
        if run.error is not None:
            return "error"
        if run.ended is not None:
            return "done"
        if run.outputs:
            return "running"
        return "loading" if self._engine.state in ("starting", "loading") else "queued"

    def places(self) -> dict[str, int]:
        """By run id, how many runs are before it in the queue; empty while no request waits in the engine."""
        status = self._engine.status
        if not status or not status.waiting:
            return {}
        return {id: place for place, id in enumerate(run.id for run in self._live.values() if not run.outputs)}

    def abort(self, id: str) -> None:
        """End the run of exactly this id, if it is alive, and the texts of that id whose vectors are awaited."""
        self.questions.abort(id)
        if id in self._live:
            self._engine.abort(id)

    def leave(self, run: Run) -> None:
        """End this very run, if it is alive; by now another run may have its id."""
        if self._live.get(run.id) is run:
            self._engine.abort(run.id)

    def abort_all(self) -> None:
        """End every run that is alive, and whatever awaits vectors."""
        self.questions.abort()
        for id in tuple(self._live):
            self._engine.abort(id)

    def sweep(self) -> None:
        """Forget finished runs beyond the limits of age, number and size."""
        if self._live:
            self._on_activity()
        outputs = sum(len(run.outputs) for run in self._finished.values())
        size = sum(run.kept_bytes for run in self._finished.values())
        for run in tuple(self._finished.values()):
            age = time.monotonic() - (run.ended or 0.0)
            few = len(self._finished) <= KEEP_RUNS and outputs <= KEEP_OUTPUTS and size <= KEEP_BYTES
            if age < KEEP_SECONDS and few:
                break
            del self._finished[run.id]
            outputs -= len(run.outputs)
            size -= run.kept_bytes
            chat = self.chats.find(run.chat or "")
            if chat is not None and chat.newest is run:
                chat.newest = None

    def _settle(self, run: Run) -> None:
        if run.id not in self._live:
            return
        del self._live[run.id]
        # These are large and no longer needed.
        run.request = msgspec.structs.replace(run.request, messages=None, media=[], input_embeds=None)
        run.messages = run.messages and [
            msgspec.structs.replace(turn, content=without_files(turn.content)) for turn in run.messages
        ]
        if run.error is not None and len(run.samples) > 1:
            self._engine.abort(run.id)  # the other samples, whose outputs nobody reads any more
        self._engine.forget(run.id)
        if run.kept:
            run.kept_bytes = len(msgspec.msgpack.encode((run.request, run.messages)))
            self._finished[run.id] = run
        if run.chat and (chat := self.chats.find(run.chat)):
            chat.settle(run)
        self._on_activity()
        self.sweep()
