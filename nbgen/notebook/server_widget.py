"""A widget whose page talks to the server that this kernel uses, also after the kernel changes to another server.

Knows which server it is; nothing of the requests.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar
from weakref import WeakSet

import anywidget
import traitlets

from nbgen.errors import InvalidRequest, NbgenError
from nbgen.notebook import session
from nbgen.notebook.remote import AnyClient

#: How traitlets begins, for the argument that a person gave.
_TRAIT = re.compile(r"^The (?:value of the )?'(\w+)' trait of an? \w+ instance ")


class ServerWidget(anywidget.AnyWidget):
    """The traits by which a page finds the server, to reach it directly or through this kernel."""

    server_id = traitlets.Unicode(help="The server that this kernel uses.").tag(sync=True)
    transport = traitlets.Enum(
        ["auto", "direct", "comm"], "auto", help="Whether the browser asks the server itself, or the kernel does."
    ).tag(sync=True)

    _all: ClassVar[WeakSet[ServerWidget]] = WeakSet()

    def __init__(self, **traits: Any) -> None:
        try:
            super().__init__(**traits)
        except traitlets.TraitError as error:
            raise InvalidRequest(_TRAIT.sub(r"\1 ", str(error)).rstrip(".")) from None
        self._all.add(self)

    @classmethod
    def turn_to(cls, client: AnyClient) -> None:
        """Have all open widgets use this server from now on."""
        if not (widgets := list(cls._all)):
            return
        try:
            server_id = str(client.hello()["server_id"])
        except NbgenError:
            return  # the next request reports it
        for widget in widgets:
            widget.server_id = server_id


session.turned.append(ServerWidget.turn_to)
