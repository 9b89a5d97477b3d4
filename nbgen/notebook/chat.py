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

    `tools` are functions that the model may want called, or tools as OpenAI's JSON, as in `nbgen.generate`. The kernel
    calls the functions once it is free, as it runs the callbacks of widgets, or in `wait`; the panel shows each call
    with its result. A coroutine function (`async def`) runs beside the kernel and holds up nothing. `tool_choice` holds
    for the first answer to a question.
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
        """The conversation so far, with an answer that is being written; where it branches, its newest branch.

        A server that keeps no chats knows the messages of the newest run alone. One that was restarted knows what the
        panel shows, once it is displayed.
        """
        known = session.default_client().chat(self.chat)["messages"]
        return known or self._runs.said(self.chat) or self._kept.get(self.chat, [])

    @property
    def turns(self) -> list[dict[str, Any]]:
        return self.messages

    @short_traceback
    def ask(self, text: str, *, images: Any = None, audio: Any = None, videos: Any = None) -> None:
        """Send `text` as if it had been typed into the panel. Does not wait for the answer, which `wait` returns.

        It does wait for an answer that is still being written, and for the functions that this calls, so that questions
        in a row follow each other. A question that got no answer is left out, as in the panel. Images, sounds and
        videos are what `nbgen.generate` takes.
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
        """The last answer, once it is whole and the transcript has it; None where nothing has been asked.

        Calls the functions that answers want called, if nobody has done so. Ctrl-C ends the answer. Raises the error
        that ended the last one.
        """
        self._until_answered()
        self._write_down()
        run = session.default_client().chat(self.chat)["run"]
        if error := run["error"] if run else self._runs.failure():
            raise from_status(int(error.get("code") or 500), error["message"])
        return self._answer()

    def send(self, content: Any, buffers: Any = None) -> None:
        """A message of ipywidgets' to the page. What is meant for the model goes through `ask`."""
        if isinstance(content, str):
            raise shortened(InvalidRequest('send is for the page that shows the panel; chat.ask("…") asks the model'))
        super().send(content, buffers)

    def stop(self) -> None:
        """End the answer that is being written, if any."""
        if run := self._rounds.calling or self._live():
            self._runs.stop(self._rounds.stop(run))

    def _answer(self) -> Result | None:
        """The newest, as far as it has come."""
        turns = session.default_client().chat(self.chat)["turns"] or self._runs.turns()
        if not turns:
            return None
        messages = self.messages
        answered = bool(messages) and messages[-1]["role"] == "assistant"
        return Result.of_turn(turns[-1], dict(self.params), messages[:-1] if answered else messages)

    def _until_answered(self) -> None:
        """Return once no answer is being written or calls functions, however it has ended."""
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
        """Return once this run is over, as far as its server tells; else a moment later."""
        try:
            for _ in session.default_client().follow(run):
                pass
        except NbgenError:
            time.sleep(POLL_SECONDS)

    def _begin(self, messages: list[dict[str, Any]], after: str | None = None) -> str:
        """Have these messages answered, and every page told; the id of the run, which may go on from another."""
        beside = {name: value for name, value in self.beside.items() if not after or name != "tool_choice"}
        run = self._rounds.new_id()
        body = {"id": run, "chat": self.chat, "messages": messages, "params": dict(self.params), **beside}
        client = session.default_client()
        if isinstance(client, RemoteClient):  # its runs end with their reader
            self._runs.start(body, after=after)
            return run
        events = client.run({**body, "attached": self._ends_here(body)})
        next(events)
        self.send({"type": "started", "run": run, "after": after, "messages": messages})
        threading.Thread(target=self._follow, args=(events,), daemon=True).start()
        return run

    def _ended(self, run: str) -> list[dict[str, Any]] | None:
        """The conversation up to the answer of this run, if that has ended well and is the newest."""
        known = session.default_client().chat(self.chat)
        if not known["turns"]:
            return self._runs.messages(run)
        newest = known["turns"][-1]
        ended = newest.get("run") == run and newest.get("finish_reason", {}).get("type") in ENDED
        return known["messages"] if ended else None

    def _newest(self) -> str | None:
        """The run of the newest answer."""
        turns = session.default_client().chat(self.chat)["turns"] or self._runs.turns()
        return turns[-1].get("run") if turns else None

    def _live(self) -> str | None:
        """The run that is being written."""
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
        """A page waits for the calls of this run; one that was loaded meanwhile may not know that all went on."""
        if following := self._rounds.following(run):
            self.send({"type": "started", "run": following, "after": run, "messages": self._runs.asked(following)})
        else:
            self._rounds.hear(run)

    def _written(self) -> Bundle:
        return bundle(self.messages)

    def _follow(self, events: Iterator[Any]) -> None:
        """Write down the answer once it is there."""
        try:
            for _ in events:
                pass
        except (NbgenError, RuntimeError):  # httpx's own, where the client has been closed
            return
        self._write_down()
