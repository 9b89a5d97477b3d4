"""How a model writes what it thinks before it answers: read off what its chat template writes. Knows no tokens."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from nbgen.engine.template_turns import ANSWER, SPACES, TemplateTurns

THOUGHT = "nbgen thinks"
#: The names that templates and response templates have for thoughts.
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
#: The field of what stands before an answer's text and is none of it, as `<|channel|>final<|message|>`.
LEAD = "lead"
#: What thoughts stand between, where a template leaves them out of turns that are over.
PAIRS = (
    *(("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>")),
    *(("<|channel>thought", "<channel|>"), ("<|inner_prefix|>", "<|inner_suffix|>")),
)
_TAG = r"(?:<[^<>]+>|\[[^\[\]]+\])"


class ThoughtFormat(NamedTuple):
    """What stands before and after a thought, and a pattern of what else does before text; "" for nothing."""

    before: str
    after: str
    lead: str = ""
    #: What has to be written before text, and between a thought and whatever follows it.
    opening: str = ""
    following: str = ""
    #: The field of a turn that the template reads thoughts from.
    name: str = THOUGHTS[0]

    @classmethod
    def of(cls, turns: TemplateTurns, source: str) -> ThoughtFormat | None:
        """The format of a template whose text is `source`; None where it knows no thoughts."""
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
        """The fields of a response template."""
        thought = {THOUGHTS[0]: {"open": self.before, "close": self.after, "content": "text"}}
        lead = {LEAD: {"open_pattern": self.lead, "close_pattern": r"(?=.)", "content": "text"}}
        return thought | (lead if self.lead else {})

    @property
    def anchor(self) -> str:
        """A pattern of where an answer begins: at the prompt's end, or before the tag that opens a thought there."""
        tag = re.escape(self.before)
        return rf"(?={tag}\s*\Z)|(?<!{tag}\s*)\Z"


def _opening_tag(turns: TemplateTurns, before: str, end: str) -> str:
    """What opens a thought: the tag that `end` closes, or whatever the model's turn has before it."""
    if before.endswith(twin := end.replace("/", "", 1)):
        return twin
    last = re.search(rf"{_TAG}\s*\Z", before)
    return before.removeprefix(turns.header).strip() or (last.group() if last else "")  # the prompt opens it


def _around_text(turns: TemplateTurns, pair: tuple[str, str]) -> str:
    """A pattern of the tags that text stands between in the model's turns."""
    tag = turns.start.strip()
    tagged = re.fullmatch(_TAG, tag) and tag not in pair
    return rf"{SPACES}(?:{re.escape(tag)}|{re.escape(_closing(tag))})\s*" if tagged else ""


def _closing(tag: str) -> str:
    return tag.replace("START", "END") if "START" in tag else tag.replace("<", "</")


def _first_and_lead(turns: TemplateTurns, end: str) -> tuple[str, str]:
    """The tag that ends a thought, and the pattern of what follows it, of which the prompt may have the beginning."""
    first = re.match(_TAG, end)
    if first is None or not (rest := end[first.end() :].strip()):
        return end, ""
    header = turns.header.rstrip()
    begun = next((n for n in range(len(rest), 0, -1) if header.endswith(rest[:n])), 0)
    return first.group(), rf"{SPACES}(?:{re.escape(rest[:begun])})?{re.escape(rest[begun:])}\s*"
