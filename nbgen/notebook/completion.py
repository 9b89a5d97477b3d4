"""What Tab offers in the first line of a magic: its actions and options, and their values, and nothing else.

Knows argument parsers and IPython's matchers; nothing of what the magics do.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

#: Options that name a variable.
VARIABLES = ("schema", "image", "audio", "video", "tool")


def matcher(shell: Any, parsers: Mapping[str, Any], actions: Sequence[str]) -> Any:
    """A matcher for `shell.Completer.custom_matchers`. `parsers` are the magics'; the line magic takes `actions`."""

    def complete(context: CompletionContext) -> SimpleMatcherResult:
        text = context.text_until_cursor.replace("=", " ")
        magic, *before = text.split() or [""]
        whole_cell = magic.startswith("%%")
        if magic not in parsers or (whole_cell and context.cursor_line):
            return {"completions": []}
        fragment = "" if text[-1].isspace() else before.pop() if before else magic
        known = parsers[magic]._option_string_actions
        words = _words(shell, known, before, fragment, () if whole_cell else actions)
        found = [SimpleCompletion(word) for word in words if word.startswith(fragment)]
        return {"completions": found, "matched_fragment": fragment, "suppress": True, "ordered": True}

    return context_matcher(identifier="nbgen")(complete)


def _words(
    shell: Any, known: Mapping[str, Any], before: Sequence[str], fragment: str, actions: Sequence[str]
) -> Iterable[str]:
    """The words that may follow `before` in a magic's line."""
    option = known.get(before[-1]) if before else None
    if option is not None and option.nargs != 0:  # it takes a value
        return option.choices or (_variables(shell) if option.dest in VARIABLES else ())
    if before == ["load"] and not fragment.startswith("-"):
        return ["bundled", *_folders(fragment)]
    if not actions or before[:1] in (["load"], ["connect"]):
        return sorted(name for name in known if name.startswith("--"))
    return () if before else actions


def _variables(shell: Any) -> list[str]:
    """The names of the user's own variables."""
    return sorted(name for name in shell.user_ns.keys() - shell.user_ns_hidden if not name.startswith("_"))


def _folders(beginning: str) -> list[str]:
    """Folders whose paths begin so, in which a model could be."""
    return sorted(f"{path}/" for path in glob.glob(f"{glob.escape(beginning)}*") if Path(path).is_dir())
