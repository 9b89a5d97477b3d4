"""The base class of nbgen's panels: a widget that loads its JavaScript, and the traits which that reads.

The text of an answer lives on the server and never in a trait; nor does an access token. Knows nothing of pixels.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display
from ipywidgets import widget_serialization

from nbgen.errors import InvalidRequest, NbgenError, ServerNotFound
from nbgen.notebook import session
from nbgen.notebook.comm import CommRuns
from nbgen.notebook.display import in_console, in_notebook
from nbgen.notebook.panel_code import STATIC, PanelCode
from nbgen.notebook.remote import AnyClient
from nbgen.notebook.server_widget import ServerWidget
from nbgen.notebook.template import fill
from nbgen.notebook.transcript import Bundle, Transcript


class Panel(ServerWidget):
    """A widget whose answers the browser reads from the server itself, or through this kernel where it cannot."""

    _esm = STATIC / "loader.js"
    #: Its name in messages, and what users can call instead where no page shows it.
    title = "This panel"
    instead = ""

    code = traitlets.Instance(PanelCode, help="What draws it.").tag(sync=True, **widget_serialization)
    panel = traitlets.Unicode(help="Which panel the JavaScript shows.").tag(sync=True)
    chat = traitlets.Unicode(help="Names the conversation on the server and in the notebook.").tag(sync=True)
    params = traitlets.Dict(help="Sampling options of every answer.").tag(sync=True)
    height = traitlets.Int(440, min=220, help="Height in pixels.").tag(sync=True)

    def __init__(self, *, servers: Sequence[AnyClient] = (), lasting: str = "", **traits: Any) -> None:
        """Runs may name `servers` beside the kernel's own. `lasting` is a chat that a later kernel can find again."""
        super().__init__(server_id=_server_id(), code=PanelCode.shared(), **traits)
        self._runs = CommRuns(session.default_client, self.send, servers, lasting)
        self._transcript = Transcript()
        self._writing = threading.Lock()
        self.on_msg(lambda _, message, buffers: self._receive(message))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.chat!r}, transport={self.transport!r})"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        data, *metadata = super()._repr_mimebundle_(**options) or ({},)
        needs = "It needs the kernel that made it, and a page with widgets. Whatever was written in it stands below."
        kept = f"{self.title}\n{needs}"  # the first line is what JupyterLab shows of a collapsed output
        return ({**data, "text/plain": self._elsewhere if in_console() else kept}, *metadata)

    def _ipython_display_(self) -> None:
        if self.comm is None:
            print(f"{self.title} has been closed.")
            return
        if not in_notebook():
            print(self._elsewhere)
            return
        data, *metadata = self._repr_mimebundle_()
        display(data, metadata=metadata[0] if metadata else None, raw=True)
        self._transcript.show()
        self._write_down()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.title} cannot be pickled, which belongs to this kernel: keep what was written in it")

    @property
    def _elsewhere(self) -> str:
        return f"{self.title} needs a notebook. {self.instead}"

    def _ends_here(self, body: dict[str, Any]) -> bool:
        """Whether only this kernel can read a run that Python starts, as pages do not reach the server themselves."""
        return self.transport == "comm" and self._runs.ends_here(body)

    def _written(self) -> Bundle:
        """What the panel shows, for readers without a kernel."""
        raise NotImplementedError

    def _write_down(self) -> None:
        if not self._transcript.shown:
            return
        with self._writing:
            try:
                self._transcript.update(self._written())
            except NbgenError:
                return  # the transcript stays as it is until the server is there again
            self.send({"type": "written", "panel": self.model_id, "checksum": self._transcript.checksum})

    def _write_another(self) -> None:
        """Start the transcript anew, for the panel shows another conversation, maybe a new one."""
        with self._writing:
            self._transcript.clear()
        self._write_down()

    def _receive(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "begun":  # one page has begun a run: tell all, which fetch what they lack
            self.send(message)
        elif kind == "expand":
            self.send({"type": "expanded", "asked": message["text"], **_expanded(message["text"])})
        elif kind == "transcript":  # a page that was loaded since has an old one
            self.send({"type": "transcript", "data": self._transcript.written})
        elif kind == "code":
            self.code = PanelCode.anew(self.code)
        elif kind in ("ended", "kept"):
            threading.Thread(target=self._write_down, daemon=True).start()
        else:
            self._runs.receive(message)


def _expanded(text: str) -> dict[str, str]:
    """The text with its `{{…}}` filled in from the user's variables, or the text as it was and the error."""
    shell = get_ipython()
    try:
        return {"text": fill(text, shell.user_ns if shell else {})}
    except InvalidRequest as error:
        reason = str(error).partition(" Nothing was sent")[0]
        return {"text": text, "error": f"{reason} Press Enter again to send the braces as they are."}


def _server_id() -> str:
    """The id of a running server. If there is none, it is empty: a private one starts, and the kernel relays."""
    try:
        return str(session.default_client(start=False).hello()["server_id"])
    except ServerNotFound:
        threading.Thread(target=_start_server, daemon=True).start()
        return ""


def _start_server() -> None:
    with suppress(NbgenError):  # the first request reports it
        session.default_client()
