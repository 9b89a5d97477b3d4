"""Answers carried to the panel as widget messages, for pages that cannot reach the server themselves.

Deltas are coalesced and numbered; the panel asks again for those that Jupyter dropped. The panel's messages may arrive
on any thread. Knows messages and runs, nothing of widgets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nbgen.errors import NbgenError, Unavailable, in_words
from nbgen.notebook.connection import CONNECT_SECONDS
from nbgen.notebook.remote import AnyClient
from nbgen.notebook.text_stream import INCOMPLETE
from nbgen.notebook.turns import openai_call

FRAME_MS = 30
KEEP_RUNS = 32
NOTHING: Mapping[str, Any] = MappingProxyType({})

Send = Callable[[dict[str, Any]], None]
Choose = Callable[[], AnyClient]


class CommRuns:
    """The runs of one widget whose events go through the kernel. Each run is read by its own thread.

    `client` returns the client of the kernel's server; a run names one of the `others` by its index. `lasting` is the
    id of a chat that a later kernel can find again. Runs of other chats end with this kernel: nobody could read them.
    """

    def __init__(self, client: Choose, send: Send, others: Sequence[AnyClient] = (), lasting: str = "") -> None:
        self._client = client
        self._send = send
        self._others = others
        self._lasting = lasting
        self._lock = threading.Lock()
        self._pieces: dict[str, RunPieces] = {}

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message of the panel. The panel hears at once that it has arrived; the answer may take longer."""
        self._send({"type": "heard", "run": message.get("run")})
        kind = message.get("type")
        if kind == "start":
            self.start(message["body"], message.get("server"), attached=self.ends_here(message["body"]))
        elif kind == "need":
            self._again(message["run"], message["from"])
        elif kind == "cancel":
            self._in_thread(self._cancel, message["run"])
        elif kind == "chat":
            self._in_thread(self._chat, message["chat"])
        elif kind == "turns":
            self._send({"type": "turns", "turns": self.turns()})
        elif kind == "model":
            self._in_thread(self._model)
        elif kind == "load":
            self._in_thread(self._load, message.get("model"))

    def ends_here(self, body: dict[str, Any]) -> bool:
        """Whether the run must end with this kernel: no other kernel, nor a page, could find it again."""
        return body.get("chat") != self._lasting

    def start(
        self, body: dict[str, Any], server: int | None = None, after: str | None = None, *, attached: bool = False
    ) -> None:
        """Start a run, tell every view of the widget, and read the run's events. `after` is the run that it continues.

        A run does not end when a page closes. An `attached` run ends with this kernel.
        """
        told = {name: body.get(name) for name in ("prompt", "prefix_ids", "messages")}
        self._send({"type": "started", "run": body["id"], "after": after, **told})
        choose = self._client if server is None else lambda: self._others[server]
        whole = {**body, "attached": attached, "frame_ms": FRAME_MS}
        self._read(body["id"], choose, lambda client: client.run(whole), body)

    def stop(self, run: str) -> None:
        """Cancel a run on its server, once the server has begun it."""
        pieces = self._pieces.get(run)
        if pieces:
            pieces.begun.wait(CONNECT_SECONDS)
        (pieces.choose if pieces else self._client)().cancel(run)

    def live(self) -> str | None:
        """The oldest run that has not ended, if any."""
        unfinished = (turn["run"] for turn in self.turns() if not (turn.get("finish_reason") or turn.get("error")))
        return next(unfinished, None)

    def failure(self) -> dict[str, Any] | None:
        """The error that ended the last run, if one did."""
        return self._last.failure if self._last else None

    def messages(self, run: str) -> list[dict[str, Any]] | None:
        """The messages of this run and its answer, if it is the last run and has ended well."""
        last = self._last
        return last.messages if last and last.run == run else None

    def said(self, chat: str) -> list[dict[str, Any]]:
        """The messages of a chat's newest run, and its answer so far."""
        newest = self._newest(chat)
        return newest.said if newest else []

    def asked(self, run: str) -> list[dict[str, Any]] | None:
        """The messages that a run answers, if they are known here."""
        pieces = self._pieces.get(run)
        return pieces.asked if pieces else None

    def turns(self) -> list[dict[str, Any]]:
        """The answers of the last runs so far, oldest first."""
        with self._lock:
            return [pieces.turn() for pieces in self._pieces.values()]

    def _newest(self, chat: str) -> RunPieces | None:
        """The newest run of a chat that is known here: servers of other kinds keep none, and others forget them."""
        with self._lock:
            return next((pieces for pieces in reversed(self._pieces.values()) if pieces.chat == chat), None)

    @property
    def _last(self) -> RunPieces | None:
        with self._lock:
            return next(reversed(self._pieces.values()), None)

    def _again(self, run: str, start: int) -> None:
        with self._lock:
            pieces = self._pieces.get(run)
        if pieces is None:
            self._read(run, self._client, lambda client: client.follow(run))
        else:
            pieces.send_from(start)

    def _read(
        self, run: str, choose: Choose, events: Callable[[AnyClient], Any], body: Mapping[str, Any] = NOTHING
    ) -> None:
        pieces = RunPieces(run, self._send, choose, body)
        with self._lock:
            self._pieces[run] = pieces
            for old in list(self._pieces)[:-KEEP_RUNS]:
                del self._pieces[old]
        self._in_thread(self._pump, pieces, events)

    def _pump(self, pieces: RunPieces, events: Callable[[AnyClient], Any]) -> None:
        failure: Exception = Unavailable(INCOMPLETE)
        try:
            for name, data in events(pieces.choose()):
                pieces.add(name, data)
        except Exception as error:  # whatever failed, the panel waits for the run's end
            failure = error
        pieces.add("error", {"error": {"message": in_words(failure), "code": getattr(failure, "status", 500)}})

    def _cancel(self, run: str) -> None:
        try:
            self.stop(run)
        except NbgenError as error:
            self._send({"type": "event", "event": "notice", "to": 0, "data": {"run": run, "message": str(error)}})

    def _chat(self, chat: str) -> None:
        try:
            snapshot = self._client().chat(chat)
        except NbgenError as error:
            self._send({"type": "chat", "chat": chat, "error": str(error)})
            return
        once = {name: value for name, value in snapshot.items() if name != "messages"}  # its turns hold them already
        newest = None if once["run"] or once["turns"] else self._newest(chat)
        self._send({"type": "chat", "chat": chat, "snapshot": newest.snapshot() if newest else once})

    def _model(self) -> None:
        try:
            self._send({"type": "model", **self._client().model()})
        except NbgenError as error:
            self._send({"type": "model", "state": "unknown", "error": str(error)})

    def _load(self, model: str | None) -> None:
        """Have the server load a model. The present model takes back the memory that it has released."""
        failed = None
        try:
            for name, data in self._client().load(model):
                if name == "progress":
                    self._send({"type": "progress", **data})
                elif name == "error":
                    failed = data["error"]["message"]
        except NbgenError as error:
            failed = str(error)
        self._send({"type": "load", "error": failed})

    def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()


class RunPieces:
    """The deltas of one run so far, numbered, so that any of them can be sent again.

    `choose` returns the client of the run's server; `body` is the run's request, if it is known here.
    """

    def __init__(self, run: str, send: Send, choose: Choose, body: Mapping[str, Any] = NOTHING) -> None:
        self.run = run
        self.choose = choose
        self.chat: str | None = body.get("chat")
        self.asked: list[dict[str, Any]] | None = body.get("messages")
        self._prompt = {name: body.get(name) for name in ("prompt", "prefix_ids")}
        self.begun = threading.Event()
        self._send = send
        self._lock = threading.Lock()
        self._deltas: list[dict[str, Any]] = []
        self._sent = 0
        self._next = 0.0
        self._end: dict[str, Any] | None = None

    def add(self, name: str, data: dict[str, Any]) -> None:
        """Take the run's next event, and add the run's id, which servers of other kinds leave out. The end is final."""
        self.begun.set()
        with self._lock:
            if self._end is not None:
                return
            if name == "delta":
                if data.get("index", 0) == 0:
                    self._deltas.append(data)
                if time.monotonic() >= self._next:
                    self._flush()
                return
            self._flush()
            event = {"type": "event", "event": name, "to": self._sent, "data": {**data, "run": self.run}}
            if name in ("done", "error"):
                self._end = event
            self._send(event)

    def send_from(self, start: int) -> None:
        """Send all deltas from number `start` on, and the end if it has come."""
        with self._lock:
            self._sent = min(start, self._sent)
            self._flush()
            if self._end is not None:
                self._send(self._end)

    @property
    def failure(self) -> dict[str, Any] | None:
        """The error that ended the run, if one did."""
        with self._lock:
            return self._end["data"].get("error") if self._end else None

    @property
    def messages(self) -> list[dict[str, Any]] | None:
        """The run's messages and its answer; None unless it has ended well."""
        turn = self.turn()
        if not self.asked or not turn.get("finish_reason") or turn["finish_reason"]["type"] in ("abort", "error"):
            return None
        return self.said

    @property
    def said(self) -> list[dict[str, Any]]:
        """The run's messages, and its answer once that has text or tool calls."""
        turn = self.turn()
        answer = {name: turn[name] for name in ("role", "content", "tool_calls") if name in turn}
        return [*(self.asked or ()), *([answer] if turn["content"] or "tool_calls" in turn else ())]

    def turn(self) -> dict[str, Any]:
        """The answer so far, in the shape in which a server gives the turns of its chats."""
        with self._lock:
            text, reasoning = (joined(self._deltas, name) for name in ("text", "reasoning"))
            calls = [openai_call(call) for delta in self._deltas for call in delta.get("tool_calls", ())]
            end = dict(self._end["data"]) if self._end else {}
        if "error" in end:
            end["error"] = end["error"]["message"]
        more = {"reasoning": reasoning, "tool_calls": calls}
        turn = {**end, "role": "assistant", "run": self.run, "content": text}
        return turn | {name: value for name, value in more.items() if value}

    def snapshot(self) -> dict[str, Any]:
        """The chat as far as this run tells, in the shape of a server's snapshot: a page that is new begins with it."""
        turn = self.turn()
        state = "error" if "error" in turn else "done" if "finish_reason" in turn else "running"
        turns = [*self.asked, turn] if self.asked else []
        return {
            "chat": self.chat,
            "run": {"run": self.run, "state": state, **self._prompt},
            "turns": [{**each, "parent": place - 1 if place else None} for place, each in enumerate(turns)],
        }

    def _flush(self) -> None:
        part = self._deltas[self._sent :]
        if not part:
            return
        message: dict[str, Any] = {"type": "delta", "run": self.run, "from": self._sent, "to": len(self._deltas)}
        message |= {"text": joined(part, "text"), "reasoning": joined(part, "reasoning")}
        message["tokens"] = sum(delta.get("tokens", 0) for delta in part)
        for name in ("logprobs", "tool_call_deltas", "tool_calls"):
            if found := [each for delta in part for each in delta.get(name, ())]:
                message[name] = found
        self._send(message)
        self._sent = len(self._deltas)
        self._next = time.monotonic() + FRAME_MS / 1000


def joined(deltas: list[dict[str, Any]], name: str) -> str:
    """The texts that deltas have under this name, joined."""
    return "".join(delta.get(name, "") for delta in deltas)
