"""Output that changes in place: in a notebook through a display id, in a terminal or a console by printing.

Knows where output is shown, not what it says: callers give the text.
"""

from __future__ import annotations

import html
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbgen.notebook.partial_json import parse_partial
from nbgen.notebook.result import Result
from nbgen.notebook.shown_text import text_bundle, visible
from nbgen.notebook.table import html_table

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

UPDATE_SECONDS = 0.1
#: Modules whose classes need no table, as they show themselves well enough: a schema may be a date.
PLAIN = ("builtins", "datetime", "decimal", "uuid")
#: The end of a message id from a client in Python, which numbers its messages; pages use random ids.
_NUMBERED = re.compile(r"_\d+$")


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    return _kernel() is not None


def in_page() -> bool:
    """Whether a page sent the request, and no client in Python, such as a console, papermill, nbconvert or Voilà."""
    return in_notebook() and not _NUMBERED.search(_asked().get("header", {}).get("msg_id", ""))


def in_console() -> bool:
    """Whether a console sent the request: Jupyter's, Qt's or Spyder's, which never change output they have shown.

    Consoles allow `input()`; programs that run whole notebooks do not.
    """
    return in_notebook() and not in_page() and bool(_asked().get("content", {}).get("allow_stdin"))


def in_report() -> bool:
    """Whether a program runs the notebook for readers who will see no widget: papermill, nbconvert."""
    return in_notebook() and not in_page() and not os.environ.get("SERVER_SOFTWARE", "").startswith("voila/")


def can_change() -> bool:
    """Whether output that a cell has shown can be changed later."""
    return in_notebook() and not in_console()


def _asked() -> dict[str, Any]:
    """The request message that the kernel is handling."""
    kernel = _kernel()
    return kernel.get_parent() if hasattr(kernel, "get_parent") else {}


def _kernel() -> Any:
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None)


def _captured() -> bool:
    """Whether a widget captures output now, as in `with Output():` or `interact`. It misses later changes of output."""
    widgets = getattr(sys.modules.get("ipywidgets.widgets.widget"), "_instances", {})
    asked = _asked().get("header", {}).get("msg_id", "")
    return bool(asked) and any(getattr(each, "msg_id", "") == asked for each in list(widgets.values()))


def _held(bundle: dict[str, Any], metadata: dict[str, Any] | None) -> tuple[dict[str, Any], ...]:
    """The value for `outputs` of an Output widget that shows this."""
    return ({"output_type": "display_data", "data": bundle, "metadata": metadata or {}},)


class Output:
    """One output of the running cell, shown once and replaced from then on; `add` shows it in one more place."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None
        #: Where a widget captures the output: an Output widget of our own inside it, which can be changed.
        self._inner: Any = None

    @property
    def shown(self) -> bool:
        return self._handle is not None or self._inner is not None

    def show(self, bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        """Show this, in place of the earlier content wherever that was shown."""
        if not self.shown:
            self.add(bundle, metadata)
            return
        if self._handle is not None:
            self._handle.update(bundle, raw=True, metadata=metadata)
        if self._inner is not None:
            self._inner.outputs = _held(bundle, metadata)

    def add(self, bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        """Add one more output to the running cell, which changes together with the earlier ones."""
        from IPython.display import DisplayHandle, display

        if _captured():
            self._inner = self._inner or sys.modules["ipywidgets"].Output()
            self._inner.outputs = _held(bundle, metadata)
            display(self._inner)
            return
        self._handle = self._handle or DisplayHandle()
        self._handle.display(bundle, raw=True, metadata=metadata)


class Answer:
    """A model's text while it streams: Markdown in a notebook, plain text in a terminal or a console.

    With `table` it is the JSON of a schema's object, which a notebook shows as a table that fills.
    """

    def __init__(self, table: bool = False) -> None:
        self._output = Output() if can_change() else None
        self._line = Output()
        self._table = table
        self._next = 0.0

    def begin(self) -> None:
        """Reserve the output's place in the cell before there is any text."""
        if self._output is not None:
            self._output.show({"text/plain": "…"})

    def update(self, result: Result, new: str) -> None:
        """Show the text so far; `new` is its newest part."""
        if self._output is None:
            print(visible(new), end="", flush=True)
        elif time.monotonic() >= self._next:
            self._output.show(forming_bundle(result.text) if self._table else text_bundle(result.text))
            self._next = time.monotonic() + UPDATE_SECONDS

    def clear(self) -> None:
        """Remove the text, as the finished value shows itself."""
        if self._output is not None and self._output.shown:
            self._output.show({"text/plain": ""})

    def finish(self, result: Result, error: BaseException | None = None) -> None:
        """Show the whole answer, and below it its numbers, or an error that nothing else shows. May be called again."""
        failed = "" if error is None else f"{type(error).__name__}: {error}"
        caption = failed if result.finish_reason == "error" else result.caption
        if not result.text and not caption:
            return
        if self._output is None:
            print(f"\n({caption})" if caption else "")
            return
        line = {"text/plain": caption, "text/html": muted(caption)}
        if failed and not result.text:
            self._output.show(line)
            return
        self._output.show(*result.bundle())
        if caption:
            self._line.show(line)


def forming_bundle(text: str) -> dict[str, str]:
    """Unfinished JSON, as the table that it is going to be."""
    return {"text/plain": visible(text), "text/html": html_table(parse_partial(text))}


def show_as_table(kind: Any) -> None:
    """Have IPython show objects of a schema's class as tables, unless the class has a display of its own."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    formatter = None if shell is None else shell.display_formatter
    custom = any(hasattr(kind, name) for name in ("_repr_html_", "_repr_mimebundle_"))
    if formatter is None or custom or not isinstance(kind, type) or kind.__module__ in PLAIN:
        return
    formatter.formatters["text/html"].for_type(kind, html_table)


class ProgressLine:
    """A line of progress that changes in place. A file or a pipe gets only its first and its last state."""

    def __init__(self) -> None:
        self._output = Output() if can_change() else None
        self._stays = not in_notebook() and not sys.stderr.isatty()
        self._first = self._line = ""

    def show(self, text: str, fraction: float | None = None) -> None:
        line = text if fraction is None else f"{text} · {fraction:.0%}"
        if line == self._line:
            return
        if self._output is not None:
            self._output.show({"text/plain": line, "text/html": _bar(line, fraction)})
        elif self._stays:
            self._first = self._first or self._print(line)
        else:
            print("\r" + line.ljust(len(self._line)), end="", file=sys.stderr, flush=True)
        self._line = line

    def clear(self, text: str = "") -> None:
        """Leave `text`, or nothing, where the line was."""
        if self._output is not None:
            self._output.show({"text/plain": text, "text/html": muted(text) if text else ""})
        elif self._stays:
            if (last := text or self._line) != self._first:
                self._print(last)
        else:
            end = "\n" if text else "\r"
            print("\r" + text.ljust(len(self._line)), end=end, file=sys.stderr, flush=True)

    def _print(self, line: str) -> str:
        print(line, file=sys.stderr, flush=True)
        return line


class LoadProgress:
    """Shows a load's `progress` events on a line, which appears with the first of them."""

    def __init__(self, name: str | None = None) -> None:
        """Without a `name`, the line has the name of the event's `model`."""
        self._name = name
        self._line: ProgressLine | None = None

    def __call__(self, step: dict[str, Any] | None) -> None:
        """Show the next event's data; None when loading is over."""
        if step is None:
            self.finish()
            return
        self._line = self._line or ProgressLine()
        total = step.get("total") or 0
        fraction = step.get("done", 0) / total if total else None
        name = str(self._name or step.get("model") or "model")
        name = Path(name).name if os.path.isabs(name) else name
        self._line.show(f"{name}: {step.get('stage', '')}", fraction)

    def finish(self, text: str = "") -> None:
        if self._line is None and text:
            self._line = ProgressLine()
        if self._line is not None:
            self._line.clear(text)
            self._line = None


def muted(text: str) -> str:
    """A line in small, pale letters."""
    return f'<div style="opacity: 0.65; font-size: 85%">{html.escape(text)}</div>'


def _bar(text: str, fraction: float | None) -> str:
    value = "" if fraction is None else f' value="{fraction:.3f}"'
    bar = f"<progress{value}></progress> {html.escape(text)}"
    return f'<div style="opacity: 0.8; font-size: 85%"><label>{bar}</label></div>'
