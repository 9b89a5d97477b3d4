"""Conversations as trees: every run of a chat adds a path of turns, so that an edited question or a second answer
becomes a branch and nothing is lost.

Kept in memory, the least recently used forgotten first. Knows no HTTP; a run is read, never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.messages import FinishReason
from nbgen.protocols.chat_messages import Call, CalledFunction, Part, part_size, without_files
from nbgen.protocols.native import Message

if TYPE_CHECKING:
    from nbgen.server.runs import Run

KEEP_CHATS = 256
#: Limit of all chats together, with their files as base64. A single chat this large takes no more messages.
KEEP_CHARACTERS = 128 * 2**20
#: Limit of one chat's turns with files, beyond which its oldest files are forgotten.
KEEP_FILE_CHARACTERS = 64 * 2**20


class Turn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message; `parent` is the index of the turn before it. An answer has its run's id and figures.

    `tool_calls` are an answer's; a tool's turn names by `tool_call_id` the call whose result it is.
    """

    parent: int | None
    role: str
    content: str | list[Part]
    reasoning: str = ""
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    run: str | None = None
    finish_reason: FinishReason | None = None
    usage: dict[str, int] | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, message: Message, parent: int | None) -> Turn:
        """A turn that is not the model's answer, made of a message."""
        return cls(
            parent=parent,
            role=message.role,
            content=message.content,
            tool_calls=message.tool_calls or None,
            tool_call_id=message.tool_call_id,
        )

    @property
    def size(self) -> int:
        """Number of characters, including files."""
        content = len(self.content) if isinstance(self.content, str) else sum(map(part_size, self.content))
        calls = sum(len(call.function.name) + len(call.function.arguments) for call in self.tool_calls or ())
        return content + len(self.reasoning) + calls

    def says(self, message: Message) -> bool:
        """Whether the turn equals this message."""
        own = (self.role, self.content, self.tool_calls, self.tool_call_id)
        return own == (message.role, message.content, message.tool_calls or None, message.tool_call_id)

    @property
    def message(self) -> Message:
        """The turn as a message to the model."""
        return Message(
            role=self.role,  # type: ignore[arg-type]
            content=self.content,
            tool_calls=self.tool_calls,
            tool_call_id=self.tool_call_id,
        )


class Chat:
    """One conversation: its turns in the order they came. `newest` is the run of the last answer, while it is kept."""

    def __init__(self) -> None:
        self.newest: Run | None = None
        #: Number of characters; of a running answer, those that `turns` has already counted.
        self.size = 0
        self._turns: list[Turn] = []
        self._children: dict[int | None, list[int]] = {}
        self._writing: dict[int, Run] = {}

    def add(self, messages: Sequence[Message], run: Run) -> None:
        """Add an answer that begins, and any of the `messages` before it that are new."""
        place: int | None = None
        for message in messages:
            place = self._find(place, message)
        self._writing[self._append(Turn(parent=place, role="assistant", content="", run=run.id))] = run
        self.newest = run
        self._forget_files()

    def turns(self) -> list[Turn]:
        """All turns; a running answer has the text that has come so far."""
        for place, run in self._writing.items():
            self._fill(self._turns[place], run)
        return self._turns

    def settle(self, run: Run) -> None:
        """The run is over: keep its text and numbers."""
        for place in [place for place, writing in self._writing.items() if writing is run]:
            self._fill(self._turns[place], run)
            del self._writing[place]

    def messages(self) -> list[Message]:
        """The messages from the first turn to the newest answer, which is left out while it has no text or calls."""
        turns, path = self.turns(), list[Message]()
        place: int | None = len(turns) - 1 if turns else None
        while place is not None:
            turn = turns[place]
            if turn.content or turn.tool_calls or turn.role != "assistant":
                path.append(turn.message)
            place = turn.parent
        return path[::-1]

    def _forget_files(self) -> None:
        kept = 0
        for turn in reversed(self._turns):
            kept += turn.size if isinstance(turn.content, list) else 0
            if isinstance(turn.content, list) and kept > KEEP_FILE_CHARACTERS:
                self._change(turn, without_files(turn.content), turn.reasoning, turn.tool_calls)

    def _find(self, parent: int | None, message: Message) -> int:
        """The index of the child of turn `parent` that equals the message, appended if there is none."""
        for place in self._children.get(parent, ()):
            if self._turns[place].says(message):
                return place
        return self._append(Turn.of(message, parent))

    def _append(self, turn: Turn) -> int:
        """Append the turn; its index."""
        place = len(self._turns)
        self._turns.append(turn)
        self._children.setdefault(turn.parent, []).append(place)
        self.size += turn.size
        return place

    def _change(self, turn: Turn, content: str | list[Part], reasoning: str, calls: list[Call] | None) -> None:
        self.size -= turn.size
        turn.content, turn.reasoning, turn.tool_calls = content, reasoning, calls
        self.size += turn.size

    def _fill(self, turn: Turn, run: Run) -> None:
        """Fill the turn with the text and numbers of its run."""
        calls = [Call(CalledFunction(call.name, call.arguments), call.id) for call in run.tool_calls]
        self._change(turn, run.text, run.reasoning, calls or None)
        turn.finish_reason = run.finish_reason
        turn.usage = run.usage
        turn.ttft_s, turn.tokens_per_s = run.ttft_s, run.tokens_per_s
        turn.error = run.error.message if run.error else None


class Chats:
    """The conversations of this server."""

    def __init__(self) -> None:
        self._chats: dict[str, Chat] = {}

    def open(self, name: str) -> Chat:
        """The chat of this name, marked as most recently used; a new one is empty."""
        chat = self._chats.pop(name, None) or Chat()
        self._chats[name] = chat
        self._forget()
        return chat

    def find(self, name: str) -> Chat | None:
        """The chat of this name, if it is known."""
        return self._chats.get(name)

    def check_room(self, name: str) -> None:
        """Raise InvalidRequest for a chat that is full. Its turns are kept."""
        chat = self.find(name)
        if chat is not None and chat.size >= KEEP_CHARACTERS:
            raise InvalidRequest(
                f"the chat {name[:80]!r} has {chat.size} characters, and all chats keep {KEEP_CHARACTERS}: begin "
                "another",
                field="chat",
            )

    def _forget(self) -> None:
        size = sum(chat.size for chat in self._chats.values())
        for name in list(self._chats)[:-1]:
            if len(self._chats) <= KEEP_CHATS and size <= KEEP_CHARACTERS:
                return
            size -= self._chats.pop(name).size
