"""The chat panel as a widget: the traits that its JavaScript reads, and its conversation as Python sees it.

The text of a conversation lives on the server and never in a trait; nor does a token. Knows nothing of pixels.
"""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbgen.errors import ServerNotFound
from nbgen.notebook import session
from nbgen.notebook.comm import CommRuns
from nbgen.notebook.request import chat_messages, chat_options

_STATIC = Path(__file__).parent / "static"


class Chat(anywidget.AnyWidget):
    """A conversation with the model. Options are those of `nbgen.generate`; `chat` names it for the server."""

    _esm = _STATIC / "chat.js"
    _css = _STATIC / "chat.css"

    chat = traitlets.Unicode(help="Names the conversation on the server.").tag(sync=True)
    server_id = traitlets.Unicode(help="The server that this kernel uses.").tag(sync=True)
    params = traitlets.Dict(help="Sampling options of every answer.").tag(sync=True)
    system = traitlets.Unicode(help="The system prompt.").tag(sync=True)
    height = traitlets.Int(440, min=220, help="Height in pixels.").tag(sync=True)
    placeholder = traitlets.Unicode("Message the model", help="Shown in the empty input.").tag(sync=True)
    transport = traitlets.Enum(
        ["auto", "direct", "comm"], "auto", help="Whether the browser asks the server itself, or the kernel does."
    ).tag(sync=True)

    def __init__(
        self, system: str | None = None, *, height: int = 440, transport: str = "auto", **options: Any
    ) -> None:
        super().__init__(
            chat=uuid.uuid4().hex,
            server_id=_server_id(),
            params=chat_options(options),
            system=system or "",
            height=height,
            transport=transport,
        )
        self._runs = CommRuns(session.default_client, self.send)
        self.on_msg(lambda _, message, buffers: self._runs.receive(message))

    def __repr__(self) -> str:
        return f"Chat({self.chat!r}, transport={self.transport!r})"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation so far, an answer that is being written included."""
        return session.default_client().chat(self.chat)["messages"]

    def ask(self, text: str) -> None:
        """Send `text` as if it had been typed into the panel; returns before the answer is there."""
        turns = [turn for turn in self.messages if turn["role"] != "system"]
        messages = chat_messages([*turns, {"role": "user", "content": text}], self.system or None)
        body = {"id": uuid.uuid4().hex, "chat": self.chat, "messages": messages, "params": dict(self.params)}
        events = session.default_client().run({**body, "attached": False})
        next(events)
        events.close()
        self.send({"type": "started", "run": body["id"], "messages": messages})

    def stop(self) -> None:
        """End the answer that is being written, if any."""
        client = session.default_client()
        run = client.chat(self.chat)["run"]
        if run:
            client.cancel(run["run"])


def _server_id() -> str:
    """Of the server that is there already; a private one starts meanwhile, and the panel goes through the kernel."""
    try:
        return session.default_client(start=False).hello()["server_id"]
    except ServerNotFound:
        threading.Thread(target=session.default_client, daemon=True).start()
        return ""
