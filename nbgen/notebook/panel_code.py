"""The panels' JavaScript and CSS as a widget of its own, to which every panel of a kernel refers.

anywidget sends its code with each widget, and notebooks save it with each. This code is sent and saved once, and a page
runs it once. Knows nothing of what the code does.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import traitlets
from ipywidgets import Widget

STATIC = Path(__file__).parent / "static"


class PanelCode(Widget):
    """What `js/src/loader.js` loads: an ES module whose default export has anywidget's `render`, and its CSS."""

    javascript = traitlets.Unicode().tag(sync=True)
    css = traitlets.Unicode().tag(sync=True)

    _shared: ClassVar[PanelCode | None] = None

    @classmethod
    def shared(cls) -> PanelCode:
        """The one of this kernel; a new one if `Widget.close_all()` has closed it."""
        if cls._shared is None or cls._shared.comm is None:
            javascript, css = ((STATIC / name).read_text(encoding="utf-8") for name in ("panel.js", "panel.css"))
            cls._shared = cls(javascript=javascript, css=css)
        return cls._shared

    @classmethod
    def anew(cls, unknown: PanelCode) -> PanelCode:
        """One for a page that was opened after the `unknown` one was sent, and has not got it from the kernel since."""
        if cls._shared is unknown:
            cls._shared = None
        return cls.shared()
