"""The server's report on its model, for people to read.

Knows the fields of `GET model` and nothing of how they were fetched.
"""

from __future__ import annotations

import html
from typing import Any

from nbgen.notebook.display import muted
from nbgen.notebook.table import NO_MATHS

_WORDS = {"released": "memory released; nbgen.load() resumes it"}


class Status:
    """The model's state in a line or two. `raw` is the server's own answer."""

    def __init__(self, url: str, raw: dict[str, Any]) -> None:
        self.url = url
        self.raw = raw

    @property
    def state(self) -> str:
        """stopped, starting, loading, ready, released, stopping or failed."""
        return str(self.raw.get("state", "unknown"))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        first, *rest = self._lines()
        return f'<div class="{NO_MATHS}"><div>{html.escape(first)}</div>{"".join(map(muted, rest))}</div>'

    def _lines(self) -> list[str]:
        words = _WORDS.get(self.state, self.state)
        if seconds := self.raw.get("unasked_seconds"):
            words += f" after {seconds:g} s without a request; the next one loads it"
        lines = [f"{self.raw.get('name') or 'no model'}: {words}"]
        if error := self.raw.get("error"):
            lines.append(str(error))
        if model := self.raw.get("model"):
            lines.append(_model_line(model))
        if pulse := self.raw.get("status"):
            lines.append(_pulse_line(pulse))
        log = [f"log: {self.raw['log']}"] if "log" in self.raw else []
        return [*lines, f"server: {self.url}", *log]


def _model_line(model: dict[str, Any]) -> str:
    parts = [
        model.get("model_type"),
        f"{_count(model['parameters'])} parameters" if model.get("parameters") else None,
        " ".join(filter(None, [model.get("quantization"), model["dtype"], "on", model["device"], _layers(model)]))
        if model.get("device")
        else None,
        f"context {model['context_length']}" if model.get("context_length") else None,
    ]
    return " · ".join(str(part) for part in parts if part)


def _layers(model: dict[str, Any]) -> str | None:
    """Where the model's layers come from, unless from transformers."""
    return f"in {own}" if (own := model.get("layers_in", "transformers")) != "transformers" else None


def _pulse_line(pulse: dict[str, Any]) -> str:
    """The engine's load in a line. Fields at their default of 0 are left out on the wire."""
    line = f"{pulse.get('running', 0)} running · {pulse.get('waiting', 0)} waiting"
    if total := pulse.get("blocks_total"):
        used = total - pulse.get("blocks_free", 0)
        line += f" · KV cache {used / total:.0%} used"
    if memory := pulse.get("memory_used"):
        line += f" · {memory / 2**30:.2f} GiB"
    return line


def _count(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return str(number)
