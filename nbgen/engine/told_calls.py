"""Recognizes how a model writes tool calls when its template describes the tools but writes no calls in turns.

The template's description shows a call between tags, or the model has tokens for calls. Knows only tokens' texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from nbgen.engine.call_format import ARGUMENTS, CALLS, NAMES, CallFormat, leaves_calls_out
from nbgen.engine.template_turns import TemplateTurns

#: Tokens around a JSON list of calls. Phi-4-mini has both; Granite 3 has the first, which its template describes.
MARKS = ("<|tool_call|>", "<|/tool_call|>")
_TOLD = re.compile(
    r'(?P<begin><[^<>\s/]+>\s*)\{"name":\s*[^{}]{1,80},\s*"(?P<key>arguments|parameters)":\s*[^{}]{1,80}\}'
    r"(?P<end>\s*</[^<>\s]+>)"
)


def told_calls(turns: TemplateTurns, tokens: Collection[str]) -> CallFormat | None:
    """The call format of a model with these `tokens`; None if nothing shows it."""
    if not leaves_calls_out(turns):
        return None
    if (told := _TOLD.search(turns.shown)) is not None:
        begin, key, end = told.groups()
        each = [f"{begin}{_object(name, key)}{end}" for name in NAMES]
        found = CallFormat.written_so(each[0], "\n".join(each))
    elif MARKS[0] in tokens and (MARKS[1] in tokens or MARKS[0] in turns.shown):
        begin, end = MARKS[0], MARKS[1] if MARKS[1] in tokens else ""
        one, two = (f"{begin}[{', '.join(map(_object, names))}]{end}" for names in (NAMES[:1], NAMES))
        found = CallFormat.written_so(one, two)
    else:
        return None
    if found and CALLS in found.fields:  # Granite 3.1 writes the tag as text
        field, mark = found.fields[CALLS], re.escape(MARKS[0])
        field["open_pattern"] = field["open_pattern"].replace(mark, f"(?:{mark}|<tool_call>)")
    return found and found._replace(in_content=True)


def _object(name: str, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: ARGUMENTS})
