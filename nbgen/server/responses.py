"""OpenAI's responses, which can be fetched, continued and referred to later.

Kept in memory, the oldest forgotten first. Knows no HTTP; a run is read, never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest, NbgenError, NotFound, renamed
from nbgen.protocols.responses import ResponseCall
from nbgen.protocols.responses_answer import Answer
from nbgen.protocols.responses_items import Item, json_size
from nbgen.server.conversations import KEEP_BYTES, Conversations
from nbgen.server.item_index import ItemIndex, SharedItems
from nbgen.server.runs import Run

KEEP_RESPONSES = 1024
#: Counted for an item that an earlier response holds, too.
POINTER_BYTES = 8


class Response:
    """One response: its run's present state, or its final body. A run in background is kept, to be read again."""

    def __init__(self, asked: ResponseCall, model: str, run: Run) -> None:
        self.id = asked.id
        self.run_id = run.id
        self.input = asked.input
        #: The items before its own input.
        self.earlier = asked.items[: len(asked.items) - len(asked.input)]
        #: Bytes of what it holds besides items.
        self.size = asked.size + POINTER_BYTES * len(self.earlier)
        self._background = bool(asked.body.background)
        self._about = asked.id, asked.body, model, run.created
        self._names = asked.call.names
        self._run: Run | None = run
        self._ended: dict[str, Any] | None = None

    def answer(self, *, after: int = -1) -> Answer:
        """A renderer of the response from its first output; its streams begin after the event number `after`."""
        return Answer(*self._about, after=after)

    def body(self) -> dict[str, Any]:
        """The response as it stands."""
        if self._ended is not None:
            return self._ended
        run = self._run
        assert run is not None
        return self.answer().body(run.outputs, run.samples[0], self.in_its_words(run.error), run.ended_at)

    def in_its_words(self, error: NbgenError | None) -> NbgenError | None:
        """The error with the engine's names of fields replaced by the call's."""
        return renamed(error, self._names) if isinstance(error, InvalidRequest) else error

    def run_in_background(self, what: str) -> Run:
        """The run of a response in background. Raises InvalidRequest, saying that no other response can be `what`."""
        if not self._background or self._run is None:
            raise InvalidRequest(f"only a response in background can be {what}")
        return self._run

    def settle(self) -> bool:
        """Keep the final body if the run has ended; returns whether it has."""
        if self._ended is None and self._run and self._run.ended is not None:
            self._ended = self.body()
            _write_logprobs(self.output)
            self.size += json_size(self.output) if self._background else 0  # the kept run holds the output once more
            self._run = self._run if self._background else None
        return self._ended is not None

    @property
    def refused(self) -> bool:
        """Whether it failed and is not in background, so that its caller has got the error."""
        return not self._background and self.body()["status"] == "failed"

    def items(self) -> list[Item]:
        """All items of the chat up to its end. Raises InvalidRequest before that."""
        if self._ended is None:
            raise InvalidRequest(f"the response {self.id} has not ended yet", field="previous_response_id")
        return self.earlier + self.own_items()

    def own_items(self) -> list[Item]:
        """Its own input and output items, without those of responses before it."""
        return self.input + self.output

    @property
    def output(self) -> list[Item]:
        """The items of its answer; none before its end."""
        output: list[Item] = self._ended["output"] if self._ended is not None else []
        return output


class Responses:
    """The responses of this server, and its conversations. Responses are kept up to KEEP_BYTES of input and output."""

    def __init__(self) -> None:
        self.conversations = Conversations()
        self._kept: dict[str, Response] = {}
        self._items = ItemIndex()
        self._held = SharedItems()

    @property
    def size(self) -> int:
        """About the number of bytes of everything that a call may refer to."""
        return self.conversations.size + self._held.size + self._besides

    def add(self, response: Response, run: Run, sizes: Sequence[int] = ()) -> None:
        """Keep the response, whose items have these `sizes`; when its run ends, drop the oldest beyond KEEP_BYTES."""
        self._kept[response.id] = response
        self._held.add(response.earlier + response.input, sizes)
        run.end_watchers.add(lambda: self._settle(response))
        self._settle(response)

    def get(self, id: str) -> Response:
        """The response of this id. Raises NotFound."""
        if (found := self._kept.get(id)) is None:
            raise NotFound(f"there is no response {id[:80]!r} here, or no more", field="response_id")
        return found

    def delete(self, id: str) -> None:
        """Forget the response. Raises NotFound."""
        self._pop(self.get(id))

    def history(self, id: str) -> list[Item]:
        """All items up to the end of this response. Raises InvalidRequest."""
        if (found := self._kept.get(id)) is None:
            raise InvalidRequest(
                f"there is no response {id[:80]!r} here, or no more: send what was said before as `input`",
                field="previous_response_id",
            )
        return found.items()

    def conversation(self, id: str) -> Sequence[Item]:
        """All items of this conversation. Raises NotFound."""
        return self.conversations.get(id).items

    def item(self, id: str) -> Item:
        """An item of a conversation, or of the input or output of a response that has ended. Raises InvalidRequest."""
        found = self.conversations.find(id) or self._items.find(id)
        if found is None:
            raise InvalidRequest(f"there is no item {id[:80]!r} here, or no more: send it whole", field="input")
        return found

    @property
    def _besides(self) -> int:
        """Bytes of what responses hold besides items."""
        return sum(response.size for response in self._kept.values())

    def _settle(self, response: Response) -> None:
        if not response.settle() or self._kept.get(response.id) is not response:
            return
        self._held.add(response.output)
        if response.refused:
            self._pop(response)
        else:
            self._items.add(response.id, response.own_items())
        self._forget()

    def _forget(self) -> None:
        besides = self._besides
        for response in list(self._kept.values())[:-1]:
            if len(self._kept) <= KEEP_RESPONSES and self._held.size + besides <= KEEP_BYTES:
                return
            if response.settle():
                besides -= self._pop(response).size

    def _pop(self, response: Response) -> Response:
        self._items.remove(response.id, response.own_items())
        self._held.remove(response.earlier + response.own_items())
        return self._kept.pop(response.id)


def _write_logprobs(items: list[Item]) -> None:
    """Replace log-probabilities by their JSON: as lists they take four times as much memory."""
    for part in (part for item in items for part in item.get("content", ())):
        if part.get("logprobs"):
            part["logprobs"] = msgspec.Raw(msgspec.json.encode(part["logprobs"]))
