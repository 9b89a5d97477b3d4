"""What a magic's line names: the caller's variables, their attributes, builtins and files.

Knows frames and files; nothing of what the values are for.
"""

from __future__ import annotations

import builtins
import difflib
import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError


def visible_names(shell: Any) -> dict[str, Any]:
    """The variables that the magic's caller sees: those of a calling function take precedence over the notebook's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("nbgen", "IPython"):
        frame = frame.f_back
    return {**shell.user_ns, **frame.f_locals}


def named(option: str, name: str, names: Mapping[str, Any], own: Collection[str]) -> Any:
    """The variable, builtin or attribute `a.b` of this name. The user's `own` are what an unknown name may mean."""
    known = {**vars(builtins), **names}
    first, *parts = name.split(".")
    if first not in known:
        raise UsageError(f"--{option} {name}: there is no variable of this name{_meant(first, own)}")
    value, place = known[first], first
    for part in parts:
        try:
            value = getattr(value, part)
        except AttributeError:
            raise UsageError(
                f"--{option} {name}: {place} has no attribute {part!r}{_meant(part, dir(value))}"
            ) from None
        place += f".{part}"
    return value


def schema(name: str, names: Mapping[str, Any], own: Collection[str]) -> Any:
    """The type of this name, or the JSON schema in this file."""
    if not name.endswith(".json"):
        return named("schema", name, names, own)
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--schema {name}: {error}") from None


def medium(option: str, name: str, names: Mapping[str, Any]) -> Any:
    """The variable or attribute of this name; else the name itself, which is then a file's."""
    first, dot, _ = name.partition(".")
    if first not in names or (dot and Path(name).exists()):
        return name
    try:
        return named(option, name, names, ())
    except UsageError as error:
        raise UsageError(f"{error}. Nor is there a file of this name") from None


def _meant(name: str, known: Collection[str]) -> str:
    alike = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {alike[0]}?" if alike else ""
