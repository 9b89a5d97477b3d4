"""The completion panel as a widget: a text, its continuation, and what else the model could have said at each token."""

from __future__ import annotations

import uuid
from typing import Any, Unpack

import traitlets

from nbgen.notebook import session
from nbgen.notebook.options import SamplingOptions
from nbgen.notebook.panel import Panel
from nbgen.notebook.request import beside, one_answer, sampling_options
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.signatures import takes_sampling
from nbgen.notebook.transcript import Bundle, continuation
from nbgen.sampling_params import DEFAULT_NEW_TOKENS

MAX_ALTERNATIVES = 20


class Stream(Panel):
    """A text and its continuation, coloured by probability. Options are those of `nbgen.generate(complete=True)`.

    `alternatives` (0 to 20) is how many of the likeliest tokens are shown at each place; choosing one continues there.
    `adapter` names a loaded LoRA adapter.
    """

    title = "The completion panel"
    instead = (
        'Here, nbgen.generate("…", complete=True) continues a text, and nbgen.logprobs("…") says how likely it was.'
    )

    prompt = traitlets.Unicode(help="The text that stands in the input at first.").tag(sync=True)
    beside = traitlets.Dict(help="What goes with every run: an adapter.").tag(sync=True)
    alternatives = traitlets.Int(6, min=0, max=MAX_ALTERNATIVES, help="Tokens shown at each place.").tag(sync=True)

    @takes_sampling(new_tokens=DEFAULT_NEW_TOKENS)
    @short_traceback
    def __init__(
        self,
        prompt: str = "",
        *,
        alternatives: int = 6,
        height: int = 440,
        transport: str = "auto",
        adapter: str = "",
        **options: Unpack[SamplingOptions],
    ) -> None:
        self._prompt = ""
        super().__init__(
            panel="stream",
            chat=uuid.uuid4().hex,
            prompt=prompt,
            alternatives=alternatives,
            params=one_answer(sampling_options(options)),
            beside=beside(adapter),
            height=height,
            transport=transport,
        )

    @property
    def text(self) -> str:
        """The prompt and its newest continuation, as far as it has come; empty before the first."""
        if run := session.default_client().chat(self.chat)["run"]:
            return str(run["prompt"] + run["text"])
        turns = self._runs.turns()  # a server of another kind keeps no chats
        return self._prompt + str(turns[-1]["content"]) if turns else ""

    def _receive(self, message: dict[str, Any]) -> None:
        if message.get("type") == "start":
            self._prompt = message["body"].get("prompt", "")
        super()._receive(message)

    def _written(self) -> Bundle:
        return continuation(self.text)
