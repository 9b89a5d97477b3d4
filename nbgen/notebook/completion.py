"""What Tab offers in the first line of a magic: its actions and options, and their values, and nothing else.

Knows argument parsers and IPython's matchers; nothing of what the magics do.
"""

from __future__ import annotations

import glob
import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from nbgen.notebook.cell_errors import CellErrors
from nbgen.notebook.magic_line import below_comments

#: Options that name a variable, and how files end that they may name instead; None is no file.
VARIABLES = {"schema": ".json", "image": "", "audio": "", "video": "", "tool": None, "out": None}
#: What a schema may be, too.
TYPES = ("bool", "dict", "float", "int", "list", "str")
#: What JupyterLab says beside each word; IPython calls arguments of its own magics so.
KIND = "param"
#: A word as a shell reads it, in which a backslash takes a space along.
_WORD = re.compile(r"(?:\\.|[^\s\\])+\\?|\\")
#: An option that = joins to its value.
_OPTION = re.compile(r"(\s--[\w-]+)=")
#: What may stand before a line magic.
_ASSIGNED = re.compile(r"^[\w\s,.]+=\s*(?=%nbgen\s)")


def matcher(shell: Any, parsers: Mapping[str, Any], actions: Mapping[str, Sequence[str]], errors: CellErrors) -> Any:
    """A matcher for `shell.Completer.custom_matchers`. `parsers` are the magics'; the line magic takes `actions`."""

    def complete(context: CompletionContext) -> SimpleMatcherResult:
        text = _OPTION.sub(r"\1 ", _ASSIGNED.sub("", context.text_until_cursor))
        words = _WORD.findall(text)
        if words and not text.endswith(words[-1]):
            words.append("")
        magic, *before = words or [""]
        whole_cell = magic.startswith("%%")
        if magic not in parsers or not before or (whole_cell and not _begins(context)):
            return {"completions": []}
        fragment = before.pop()
        known = parsers[magic]._option_string_actions
        option = known.get(before[-1]) if before else None
        offered: Iterable[str]
        if option is not None and option.nargs != 0:  # it takes a value
            offered = option.choices or _values(shell, option.dest, fragment)
        elif whole_cell:
            offered = sorted(name for name in known if name.startswith("--"))
        else:
            offered = _arguments(actions, errors, before, fragment)
        # IPython adds its own where we know nothing; so we offer what stands there.
        found = [word for word in offered if word.startswith(fragment)] or [fragment]
        completions = [SimpleCompletion(word, type=KIND) for word in found]
        return {"completions": completions, "matched_fragment": fragment, "suppress": True, "ordered": True}

    return context_matcher(identifier="nbgen")(complete)


def _begins(context: CompletionContext) -> bool:
    """Whether the cell begins with the cursor's line."""
    above = context.full_text.split("\n")[: context.cursor_line]
    return not below_comments("\n".join([*above, ""]))


def _arguments(
    actions: Mapping[str, Sequence[str]], errors: CellErrors, before: Sequence[str], fragment: str
) -> Iterable[str]:
    """What may follow `before` in the line magic: an action, what it acts on, or its options."""
    if before == ["load"] and not fragment.startswith("-"):
        return ["bundled", *_paths(fragment, None)]
    if before == ["fix"]:
        return [str(number) for number in errors.numbers()]
    return actions.get(before[0], ()) if before else actions


def _values(shell: Any, option: str, fragment: str) -> Iterable[str]:
    """What this option may name: the user's own variables and their attributes, types, files."""
    if option not in VARIABLES:
        return ()
    ending = VARIABLES[option]
    files = [] if ending is None else _paths(fragment, ending)
    return [*_variables(shell, fragment), *(TYPES if option == "schema" else ()), *files]


def _variables(shell: Any, fragment: str) -> list[str]:
    """The names of the user's own variables, or of the attributes that one of them has without running its code."""
    first, *parts = fragment.split(".")
    own = {name: shell.user_ns[name] for name in shell.user_ns.keys() - shell.user_ns_hidden}
    if not parts:
        return sorted(name for name in own if not name.startswith("_"))
    value = own.get(first)
    for part in parts[:-1]:
        value = inspect.getattr_static(value, part, None)
    place = fragment.rpartition(".")[0]
    return [] if value is None else [f"{place}.{name}" for name in dir(value) if not name.startswith("_")]


def _paths(beginning: str, ending: str | None) -> list[str]:
    """Folders, and files with this ending, whose paths begin so. Without an ending there are only folders."""
    written = re.sub(r"\\(.)", r"\1", beginning)
    home = os.path.expanduser(written) if written.startswith("~/") else written
    found = []
    for path in glob.glob(f"{glob.escape(home)}*"):
        folder = os.path.isdir(path)
        if folder or (ending is not None and path.endswith(ending)):
            found.append(written + path.removeprefix(home) + "/" * folder)
    return sorted(re.sub(r"""([\s'"\\;#&$])""", r"\\\1", path) for path in found)
