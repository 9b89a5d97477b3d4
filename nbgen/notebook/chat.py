"""The chat panel as a widget, and its conversation as Python sees it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Unpack

import traitlets

from nbgen.errors import InvalidRequest, NbgenError, from_status
from nbgen.notebook import session
from nbgen.notebook.chat_name import chat_id
from nbgen.notebook.media import media_parts
from nbgen.notebook.options import SamplingOptions
from nbgen.notebook.panel import Panel
from nbgen.notebook.remote import RemoteClient
from nbgen.notebook.request import beside, chat_messages, chat_options, one_answer, question
from nbgen.notebook.result import Result
from nbgen.notebook.rounds import Rounds
from nbgen.notebook.short_traceback import short_traceback, shortened
from nbgen.notebook.signatures import takes_sampling
from nbgen.notebook.tools import Tools, chat_body
from nbgen.notebook.transcript import Bundle, bundle
from nbgen.notebook.turns import ENDED, Turns, answered

POLL_SECONDS = 0.1


class Chat(Turns, Panel):
    """A conversation with the model, as a panel. Options are those of `nbgen.generate`.

    A conversation with a name, `Chat("plans")`, is found again when the cell runs another time, even after the notebook
    was closed: the notebook's metadata keep it. Chats of the same name in other notebooks are other conversations. An
    empty panel without a name offers the last conversation that had none. Below the panel stands a transcript, for
    readers without a kernel.

    `tools` are functions that the model may call, or tools as OpenAI's JSON, as in `nbgen.generate`. The kernel calls
    the functions when it is free, like callbacks of widgets, or in `wait`; the panel shows each call with its result.
    A coroutine function (`async def`) runs on a thread of its own and blocks nothing. `tool_choice` holds for the first
    answer to a question.
    """

    title = "The chat panel"
    instead = 'Here, talk = nbgen.chat() makes a conversation, and talk("…") is its next answer.'

    system = traitlets.Unicode(help="The system prompt.").tag(sync=True)
    placeholder = traitlets.Unicode("Message the model", help="Shown in the empty input.").tag(sync=True)
    beside = traitlets.Dict(help="What goes with every question: tools, an adapter, options of the template.").tag(
        sync=True
    )
    owner = traitlets.Unicode(help="How the ids of runs begin whose calls this kernel makes.").tag(sync=True)

    @takes_sampling()
    @short_traceback
    def __init__(
        self,
        name: str | None = None,
        *,
        system: str | None = None,
        height: int = 440,
        transport: str = "auto",
        adapter: str = "",
        tools: Any = (),
        tool_choice: Any = None,
        template_options: Mapping[str, Any] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> None:
        box, lasting = Tools(tools), "" if name in (None, "") else chat_id(name)
        self._rounds = Rounds(box, self._ended, self._begin, self.send)
        super().__init__(
            panel="chat",
            beside=beside(adapter) | chat_body(box, tool_choice, template_options),
            owner=self._rounds.owner,
            chat=lasting or uuid.uuid4().hex,
            lasting=lasting,
            params=one_answer(chat_options(options)),
            system=system or "",
            height=height,
            transport=transport,
        )
        self._kept: dict[str, list[dict[str, Any]]] = {}
        self._asking = threading.Lock()
        self.observe(lambda _: threading.Thread(target=self._write_another, daemon=True).start(), "chat")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation so far, with an answer that is being written; of several branches, the newest.

        Of a server that keeps no chats, only the messages of the newest run are known. After a restart of the server
        they are those that the panel shows, once it is displayed.
        """
        known = session.default_client().chat(self.chat)["messages"]
        return known or self._runs.said(self.chat) or self._kept.get(self.chat, [])

    @property
    def turns(self) -> list[dict[str, Any]]:
        return self.messages

    @short_traceback
    def ask(self, text: str, *, images: Any = None, audio: Any = None, videos: Any = None) -> None:
        """Send `text` as if it had been typed into the panel. Does not wait for the answer, which `wait` returns.

        It does wait for an earlier answer that is still being written, and for the functions that it calls, so that
        questions are asked one after the other. An earlier question that got no answer is left out, as in the panel.
        Images, sounds and videos are what `nbgen.generate` takes.
        """
        asked = question(text, media_parts(images, audio, videos))
        while True:
            self._until_answered()
            with self._asking:
                if self._live():  # another thread has asked
                    continue
                turns = [turn for turn in self.turns if turn["role"] != "system"]
                while turns and turns[-1]["role"] == "user":  # it got no answer
                    turns.pop()
                self._begin(chat_messages(answered([*turns, asked]), self.system or None))
                return

    @short_traceback
    def wait(self) -> Result | None:
        """The last answer, once it is complete and in the transcript; None if nothing has been asked.

        Makes the function calls of answers that have not been made yet. Ctrl-C ends the answer. Raises the error that
        ended the last answer.
        """
        self._until_answered()
        self._write_down()
        run = session.default_client().chat(self.chat)["run"]
        if error := run["error"] if run else self._runs.failure():
            raise from_status(int(error.get("code") or 500), error["message"])
        return self._answer()

    def send(self, content: Any, buffers: Any = None) -> None:
        """Send a message of ipywidgets to the page. `ask` sends one to the model."""
        if isinstance(content, str):
            raise shortened(InvalidRequest('send is for the page that shows the panel; chat.ask("…") asks the model'))
        super().send(content, buffers)

    def stop(self) -> None:
        """End the answer that is being written, if any."""
        if run := self._rounds.calling or self._live():
            self._runs.stop(self._rounds.stop(run))

    def _answer(self) -> Result | None:
        """The newest answer so far."""
        turns = session.default_client().chat(self.chat)["turns"] or self._runs.turns()
        if not turns:
            return None
        messages = self.messages
        answered = bool(messages) and messages[-1]["role"] == "assistant"
        return Result.of_turn(turns[-1], dict(self.params), messages[:-1] if answered else messages)

    def _until_answered(self) -> None:
        """Wait until no answer is being written and no functions are being called, also after an error."""
        try:
            before, newest = None, self._newest()
            while newest != before:
                while run := self._live():
                    self._until_ended(run)
                if newest:
                    self._rounds.step(newest)
                before, newest = newest, self._newest()
        except KeyboardInterrupt:
            with suppress(NbgenError):
                self.stop()
            raise

    def _until_ended(self, run: str) -> None:
        """Wait until this run is over; only for a moment if its server cannot tell."""
        try:
            for _ in session.default_client().follow(run):
                pass
        except NbgenError:
            time.sleep(POLL_SECONDS)

    def _begin(self, messages: list[dict[str, Any]], after: str | None = None) -> str:
        """Start a run that answers these messages, maybe `after` another run, and tell every page. Returns its id."""
        beside = {name: value for name, value in self.beside.items() if not after or name != "tool_choice"}
        run = self._rounds.new_id()
        body = {"id": run, "chat": self.chat, "messages": messages, "params": dict(self.params), **beside}
        client = session.default_client()
        if isinstance(client, RemoteClient):  # its runs end when nobody reads them
            self._runs.start(body, after=after)
            return run
        events = client.run({**body, "attached": self._ends_here(body)})
        next(events)
        self.send({"type": "started", "run": run, "after": after, "messages": messages})
        threading.Thread(target=self._follow, args=(events,), daemon=True).start()
        return run

    def _ended(self, run: str) -> list[dict[str, Any]] | None:
        """The conversation up to this run's answer, if the answer has ended well and is the newest."""
        known = session.default_client().chat(self.chat)
        if not known["turns"]:
            return self._runs.messages(run)
        newest = known["turns"][-1]
        ended = newest.get("run") == run and newest.get("finish_reason", {}).get("type") in ENDED
        return known["messages"] if ended else None

    def _newest(self) -> str | None:
        """The id of the newest answer's run."""
        turns = session.default_client().chat(self.chat)["turns"] or self._runs.turns()
        return turns[-1].get("run") if turns else None

    def _live(self) -> str | None:
        """The id of the run whose answer is being written, if any."""
        run = session.default_client().chat(self.chat)["run"]
        if run and run["state"] not in ("done", "error"):
            return str(run["run"])
        return self._runs.live()

    def _receive(self, message: dict[str, Any]) -> None:
        if message.get("messages"):
            self._kept[message["chat"]] = message["messages"]
        if message.get("type") == "call":
            self._hear(message["run"])
        elif message.get("type") == "cancel":
            super()._receive({**message, "run": self._rounds.stop(message["run"])})
        else:
            super()._receive(message)

    def _hear(self, run: str) -> None:
        """A page asks for this run's calls. One that was loaded meanwhile may not know that a next run has started."""
        if following := self._rounds.following(run):
            self.send({"type": "started", "run": following, "after": run, "messages": self._runs.asked(following)})
        else:
            self._rounds.hear(run)

    def _written(self) -> Bundle:
        return bundle(self.messages)

    def _follow(self, events: Iterator[Any]) -> None:
        """Wait for the answer's end, then update the transcript."""
        try:
            for _ in events:
                pass
        except (NbgenError, RuntimeError):  # RuntimeError: httpx's, if the client has been closed
            return
        self._write_down()
