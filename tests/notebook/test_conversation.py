"""What a conversation sends with each turn."""

from typing import Any

import pytest

from nbgen.notebook.conversation import Conversation
from nbgen.notebook.result import Result
from nbgen.notebook.text_stream import TextStream
from nbgen.notebook.turns import NO_RESULT

CALL = {"id": "c1", "name": "forecast", "arguments": "{}"}


def forecast() -> None:
    """The weather, which somebody interrupts."""
    raise KeyboardInterrupt


def test_calls_that_were_interrupted_have_results_in_the_next_turn() -> None:
    sent: list[list[dict[str, Any]]] = []

    def ask(messages: list[dict[str, Any]], **_: Any) -> TextStream:
        sent.append(messages)
        delta = {"text": "", "tool_calls": [CALL]} if len(sent) == 1 else {"text": "hello"}
        done = {"finish_reason": {"type": "stop"}, "usage": {}}
        return TextStream(iter([("delta", delta), ("done", done)]), Result())

    talk = Conversation(ask, options={"tools": forecast})
    with pytest.raises(KeyboardInterrupt):
        talk("Rain?")
    talk("Never mind")
    assert [message["role"] for message in sent[-1]] == ["user", "assistant", "tool", "user"]
    assert sent[-1][2] == {"role": "tool", "tool_call_id": "c1", "content": NO_RESULT}
