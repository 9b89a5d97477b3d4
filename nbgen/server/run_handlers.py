"""nbgen's own routes: runs that outlive their readers, chats, and one stream for many runs."""

from __future__ import annotations

import asyncio
import time
import uuid
from functools import partial

import msgspec

from nbgen.errors import InvalidRequest, NotFound, anew, renamed
from nbgen.protocols import native
from nbgen.protocols.native import RunBody, Snapshot
from nbgen.server.base_handler import KEEP_ALIVE_SECONDS, MEDIA_BODY, NbgenHandler
from nbgen.server.chats import Chat
from nbgen.server.run_events import RunEvents, missing, take
from nbgen.server.runs import Run, ended
from nbgen.sse import KEEP_ALIVE


class RunsBaseHandler(NbgenHandler):
    """The base of the routes about runs."""

    detached = True

    async def start(self, body: RunBody) -> Run:
        """The run that `body` asks for: a new one, or the one that already has its id."""
        known = self.runs.find(body.id) if body.id else None
        if known is not None:
            return known
        request, media = body.request(body.id or uuid.uuid4().hex)
        self.check_code(request)
        (request,) = await self.with_media([request], [media])
        run = Run(request, chat=body.chat, kept=True, messages=body.messages)
        if body.changes is not None:
            self.engine.check_changes(body.changes)
        try:
            self.runs.start(run)
        except InvalidRequest as error:
            raise renamed(error, {"lora_path": "adapter"}) from None
        return run

    def snapshot(self, run: Run) -> Snapshot:
        """The run as it stands."""
        return Snapshot(
            run=run.id,
            chat=run.chat,
            state=self.runs.state(run),
            messages=run.messages,
            prompt=run.request.text,
            prefix_ids=run.request.prefix_ids,
            text=run.text,
            texts=[sample.content for sample in run.samples],
            reasoning=run.reasoning,
            tool_calls=run.tool_calls,
            seq=len(run.outputs),
            finish_reason=run.finish_reason,
            error=native.error_fields(run.error) if run.error else None,
            usage=run.usage,
            ttft_s=run.ttft_s,
            tokens_per_s=run.tokens_per_s,
            model=run.model,
            identity=run.identity,
            params=run.request.params,
            created=run.created,
        )

    def follow(self, run: Run, offset: int) -> RunEvents:
        """The events of `run` from `offset` on; this handler's reader wakes for them."""
        self.reader.watch(run.watchers)
        return RunEvents(run, offset, self.runs, self.engine)

    async def stream(self, followed: list[RunEvents], frame_ms: int = 0, first: bytes = b"") -> None:
        """Send events until every run has ended or the reader has left."""
        self.reader.watch(self.engine.watchers)
        at_once = partial(self._go_on, followed[0]) if len(followed) == 1 and not frame_ms else None
        while not self.reader.gone:
            sent = time.monotonic()
            chunk = first + take(followed, self.runs)
            first = b""
            if chunk:
                await self.write_event(chunk)
            if all(events.done for events in followed):
                self.end_events()
                return
            happened = await self.reader.wait(KEEP_ALIVE_SECONDS, at_once)
            await self.catch_up()
            if not happened:
                await self.write_event(KEEP_ALIVE)
            if (rest := sent + frame_ms / 1000 - time.monotonic()) > 0:
                await asyncio.sleep(rest)

    def _go_on(self, events: RunEvents) -> bool:
        """Send what is new, if more will come and the reader keeps up."""
        return self.write_at_once(partial(take, [events], self.runs)) and not events.done


class RunsHandler(RunsBaseHandler):
    """Starts a run."""

    body_limit = MEDIA_BODY

    async def post(self) -> None:
        body = await self.parsed(native.parse_run)
        self.detached = not body.attached
        run = await self.start(body)
        try:
            if body.stream:
                await self.stream([self.follow(run, 0)], body.frame_ms)
            else:
                await self._answer(run)
        finally:
            if not self.detached:
                self.runs.leave(run)

    async def _answer(self, run: Run) -> None:
        await ended([run], self.reader)
        if run.error is not None and not run.outputs:
            raise anew(run.error)
        if not self.reader.gone:
            self.finish(msgspec.json.encode(self.snapshot(run)))


class RunHandler(RunsBaseHandler):
    """A run as it stands."""

    _track_activity = False

    async def get(self, id: str) -> None:
        self.finish(msgspec.json.encode(self.snapshot(self.runs.get(id))))

    head = get


class RunEventsHandler(RunsBaseHandler):
    """A run's events from an offset on. The run goes on whether or not anybody reads them."""

    async def get(self, id: str) -> None:
        run = self.runs.get(id)
        last = self.request.headers.get("Last-Event-ID")
        offset = native.parse_offset(self.get_query_argument("from", None), last)
        await self.stream([self.follow(run, offset)])


class CancelHandler(RunsBaseHandler):
    """Ends a run; one that has ended is not changed."""

    async def post(self, id: str) -> None:
        run = self.runs.get(id)
        self.runs.abort(id)
        self.finish(msgspec.json.encode({"run": id, "state": self.runs.state(run)}))


class SubscribeHandler(RunsBaseHandler):
    """One stream for many runs, so that a page needs one connection."""

    body_limit = MEDIA_BODY

    async def post(self) -> None:
        body = await self.parsed(native.parse_subscribe)
        followed, first = [], b""
        for id, offset in body.follow.items():
            try:
                followed.append(self.follow(self.runs.get(id), offset))
            except NotFound as error:
                first += missing(id, error)
        if body.start is not None and (run := await self.start(body.start)).id not in body.follow:
            followed.append(self.follow(run, 0))
        await self.stream(followed, body.frame_ms, first)


class ChatHandler(RunsBaseHandler):
    """A chat: its newest run (kept for 10 minutes after its end), its messages so far, and all turns of its tree."""

    _track_activity = False

    async def get(self, chat: str) -> None:
        known = self.runs.chats.find(chat) or Chat()
        run = self.snapshot(known.newest) if known.newest else None
        body = {"chat": chat, "run": run, "messages": known.messages(), "turns": known.turns()}
        self.finish(msgspec.json.encode(body))

    head = get


ID = r"([A-Za-z0-9_.:-]{1,128})"

HANDLERS = [
    (r"api/v1/runs", RunsHandler),
    (rf"api/v1/runs/{ID}", RunHandler),
    (rf"api/v1/runs/{ID}/events", RunEventsHandler),
    (rf"api/v1/runs/{ID}/cancel", CancelHandler),
    (rf"api/v1/chats/{ID}", ChatHandler),
    (r"api/v1/subscribe", SubscribeHandler),
]
