"""How gpt-oss writes: every part of an answer is a message in a channel, thoughts and calls too. Knows no tokens.

`<|channel|>analysis<|message|>…<|end|>` is a thought, and `<|channel|>final<|message|>…` is text. A message whose
recipient is a function (`to=functions.name` or `to=name`, before the channel or after it) is a call with the arguments
as JSON.
"""

from __future__ import annotations

from typing import Any

from nbgen.engine.call_format import CALLS, FIRST, NAMES, CallFormat, call_turn
from nbgen.engine.template_turns import ANSWER, TemplateTurns
from nbgen.engine.thought_format import LEAD, THOUGHT, THOUGHTS, ThoughtFormat

THINKS, SAYS = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
CALLS_OPEN, WITH = "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"
END, NEXT = "<|end|>", "<|start|>assistant"
_ENDS = [END, "<|return|>", "<|call|>"]
#: Headers are short and do not begin with white space, so that a repeated search finds one, or none, quickly.
_START, _CHANNEL = r"(?:<\|start\|>assistant)?", r"<\|channel\|> ?"
_MESSAGE = r"(?:<\|constrain\|>[^<]{0,50})?<\|message\|>"
_TO = r" ?to=(?:functions\.)?(?P<name>[\w.-]{1,200})"
#: The rest of a header without a recipient.
_REST = rf"(?:(?! to=)[^<]){{0,50}}{_MESSAGE}"
_CALL = rf"{_START}(?:{_TO} ?{_CHANNEL}[^<]{{0,50}}|{_CHANNEL}\w{{1,50}}{_TO}[^<]{{0,50}}){_MESSAGE}"
_FIELD: dict[str, Any] = {
    "open_pattern": _CALL,
    "close": _ENDS,
    "content": "json",
    "repeats": True,
    "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
}


class HarmonyFormat(ThoughtFormat):
    """Splits such answers into thoughts and texts; an answer may have several of each."""

    @property
    def fields(self) -> dict[str, Any]:
        several = {"content": "text", "repeats": True, "join": "\n\n"}
        thought = {"open_pattern": rf"{_START}{_CHANNEL}analysis{_REST}", "close": _ENDS, **several}
        text = rf"{_START}{_CHANNEL}(?:final|commentary){_REST}|(?:\A|<\|start\|>assistant)<\|message\|>"
        lead = {"open_pattern": rf"<\|(?:end|return|call)\|>|{text}", "close_pattern": r"(?=.)", "content": "text"}
        return {"content": several, THOUGHTS[0]: thought, LEAD: lead}

    def is_open_at_start(self, answer: str, opens: bool) -> bool:
        """Never: each message has a header of its own."""
        return False


HARMONY = HarmonyFormat(THINKS, END, opening=SAYS, following=NEXT, name="thinking")


def writes_harmony(turns: TemplateTurns) -> bool:
    """Whether a template writes so: whether it renders a thought and a text in their channels."""
    text = turns.text({"role": "assistant", "content": ANSWER, **dict.fromkeys(THOUGHTS, THOUGHT)})
    return f"{THINKS}{THOUGHT}{END}" in text and f"{SAYS}{ANSWER}" in text


def harmony_calls(turns: TemplateTurns) -> CallFormat | None:
    """How models with such a template call tools, one at a time; None if the template shows no calls."""
    one = call_turn(turns, NAMES[:1], as_text=False)
    if f"to=functions.{FIRST}" not in one:
        return None
    return CallFormat(CALLS_OPEN, WITH, "", "", "json", {CALLS: _FIELD})
