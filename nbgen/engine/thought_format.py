"""How a model writes its thoughts before an answer, learned from what its chat template writes. Knows no tokens."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from nbgen.engine.template_turns import ANSWER, SPACES, TemplateTurns

THOUGHT = "nbgen thinks"
#: The names that templates and response templates have for thoughts.
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
#: The field for tags before an answer's text that do not belong to it, such as `<|channel|>final<|message|>`.
LEAD = "lead"
#: Known pairs of tags around thoughts, for templates that leave thoughts out of past turns.
PAIRS = (
    *(("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>")),
    *(("<|channel>thought", "<channel|>"), ("<|inner_prefix|>", "<|inner_suffix|>")),
)
_TAG = r"(?:<[^<>]+>|\[[^\[\]]+\])"


class ThoughtFormat(NamedTuple):
    """The tags around a thought, and a pattern for other tags before the answer's text (`lead`); "" for none."""

    before: str
    after: str
    lead: str = ""
    #: What must be written before the answer's text, and between a thought and whatever follows it.
    opening: str = ""
    following: str = ""
    #: The key of a turn from which the template reads thoughts.
    name: str = THOUGHTS[0]

    @classmethod
    def of(cls, turns: TemplateTurns, source: str) -> ThoughtFormat | None:
        """The format of a template with the text `source`; None if it knows no thoughts."""
        text = turns.text({"role": "assistant", "content": ANSWER, **dict.fromkeys(THOUGHTS, THOUGHT)})
        before, found, after = text.partition(THOUGHT)
        if found and ANSWER in after:
            end = after.partition(ANSWER)[0].strip()
            if tag := _opening_tag(turns, before.rstrip(), end):
                return cls(tag, *_first_and_lead(turns, end))
        pair = next((pair for pair in PAIRS if pair[1] in source), None)
        return cls(*pair, _around_text(turns, pair)) if pair else None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields for a response template of transformers."""
        thought = {THOUGHTS[0]: {"open": self.before, "close": self.after, "content": "text"}}
        lead = {LEAD: {"open_pattern": self.lead, "close_pattern": r"(?=.)", "content": "text"}}
        return thought | (lead if self.lead else {})

    @property
    def anchor(self) -> str:
        """A pattern for where an answer begins: at the prompt's end, or before a tag that opens a thought there."""
        tag = re.escape(self.before)
        return rf"(?={tag}\s*\Z)|(?<!{tag}\s*)\Z"

    def begun(self, prompt: str) -> bool:
        """Whether a prompt that ends so has opened a thought."""
        return bool(self.before) and prompt.rstrip().endswith(self.before)

    def is_open_at_start(self, answer: str, opens: bool) -> bool:
        """Whether an answer begins within a thought: it closes one that it does not open, or prompts do (`opens`)."""
        head, closing, _ = answer.partition(self.after)
        return (opens or bool(closing)) and bool(self.before) and self.before not in head


def _opening_tag(turns: TemplateTurns, before: str, end: str) -> str:
    """The tag that opens a thought: the one that `end` closes, or else whatever the model's turn has before it."""
    if before.endswith(twin := end.replace("/", "", 1)):
        return twin
    last = re.search(rf"{_TAG}\s*\Z", before)
    return before.removeprefix(turns.header).strip() or (last.group() if last else "")  # the prompt opens it


def _around_text(turns: TemplateTurns, pair: tuple[str, str]) -> str:
    """A pattern for the tags around the text of the model's turns; "" if there are none."""
    tag = turns.start.strip()
    tagged = re.fullmatch(_TAG, tag) and tag not in pair
    return rf"{SPACES}(?:{re.escape(tag)}|{re.escape(_closing(tag))})\s*" if tagged else ""


def _closing(tag: str) -> str:
    return tag.replace("START", "END") if "START" in tag else tag.replace("<", "</")


def _first_and_lead(turns: TemplateTurns, end: str) -> tuple[str, str]:
    """The tag that ends a thought, and a pattern for what follows it; the prompt may end with the beginning of that."""
    first = re.match(_TAG, end)
    if first is None or not (rest := end[first.end() :].strip()):
        return end, ""
    header = turns.header.rstrip()
    begun = next((n for n in range(len(rest), 0, -1) if header.endswith(rest[:n])), 0)
    return first.group(), rf"{SPACES}(?:{re.escape(rest[:begun])})?{re.escape(rest[begun:])}\s*"
