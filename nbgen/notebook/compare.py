"""Several settings or models on one prompt, side by side, as a widget."""

from __future__ import annotations

import itertools
import secrets
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import traitlets

from nbgen.errors import InvalidRequest, NbgenError
from nbgen.notebook import session
from nbgen.notebook.contenders import Contender, contenders
from nbgen.notebook.data_frames import import_pandas
from nbgen.notebook.display import in_page
from nbgen.notebook.panel import Panel
from nbgen.notebook.request import builtin, chat_messages, chat_options, continued, one_answer, sampling_options
from nbgen.notebook.result import Result
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.signatures import takes_sampling
from nbgen.notebook.tools import chat_body
from nbgen.notebook.transcript import Bundle, comparison

MAX_CELLS = 16
POLL_SECONDS = 0.1
#: How long to wait for a page that shows the panel to start the runs. There may be no page, as under nbconvert.
PAGE_SECONDS = 3.0
#: Options whose value is itself a list; only a list of lists makes a grid of them.
LISTS = ("stop", "stop_regex", "stop_token_ids")
#: The fields of a cell that its run's body takes over.
CHOSEN = ("params", "adapter", "template_options")


class Compare(Panel):
    """A grid of answers to one prompt, one for each combination of models and settings. Made by `nbgen.compare`."""

    title = "The comparison"
    instead = "Here, .wait() asks for the answers and returns them."

    prompt = traitlets.Unicode(help="The prompt of all answers.").tag(sync=True)
    system = traitlets.Unicode(help="The system prompt.").tag(sync=True)
    complete = traitlets.Bool(help="Continue the prompt as it stands, rather than answer it.").tag(sync=True)
    cells: traitlets.List[dict[str, Any]] = traitlets.List(help="A label and the sampling options of each answer.").tag(
        sync=True
    )
    columns = traitlets.Int(help="Answers in a row.").tag(sync=True)

    @property
    def results(self) -> list[Result]:
        """The newest answer of each cell so far, in the order of the grid."""
        newest = {turn["run"].rpartition(".")[2]: turn for turn in self._turns() if turn.get("run")}
        return [Result.of_turn(newest.get(str(place), {}), cell["params"]) for place, cell in enumerate(self.cells)]

    def to_df(self) -> Any:
        """A pandas DataFrame with a row for each cell: label, settings that differ, the answer and its numbers."""
        pandas = import_pandas("to_df")
        params = [cell["params"] for cell in self.cells]
        names = dict.fromkeys(name for each in params for name in each)
        differing = [name for name in names if any(each.get(name) != params[0].get(name) for each in params)]
        return pandas.DataFrame(
            {"label": cell["label"], **{name: cell["params"].get(name) for name in differing}, **result.row()}
            for cell, result in zip(self.cells, self.results, strict=True)
        )

    @short_traceback
    def wait(self, seconds: float = 60.0) -> list[Result]:
        """The answers once all are complete, or what has come after so many seconds.

        Starts the runs itself unless a page that shows the panel does so. Answers that the panel reads through the
        kernel come only while the kernel is free, so not during this call. Ctrl-C ends all that are being written.
        """
        end = time.monotonic() + seconds
        try:
            if not self._asked_by_page():
                self._ask(end)
            found = self.results
            while not all(result.finish_reason for result in found) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
                found = self.results
        except KeyboardInterrupt:
            self._stop()
            raise
        self._write_down()
        return found

    def _stop(self) -> None:
        """End every answer that is being written."""
        ended = {turn["run"] for turn in self._turns() if turn.get("finish_reason") or turn.get("error")}
        for run in {turn["run"] for turn in self._turns() if turn.get("run")} - ended:
            with suppress(NbgenError):
                self._runs.stop(run)

    def _written(self) -> Bundle:
        labels = [cell["label"] for cell in self.cells]
        return comparison(self._asked(), list(zip(labels, self.results, strict=True)))

    def _asked(self) -> list[dict[str, Any]]:
        """The messages of the newest answers; the user may have changed the prompt in the panel."""
        chat = session.default_client().chat(self.chat)
        said = [turn for turn in chat["messages"] if turn["role"] != "assistant"]
        prompt = (chat["run"] or {}).get("prompt") or self.prompt
        return said or chat_messages(prompt, None if self.complete else self.system or None)

    def _asked_by_page(self) -> bool:
        """Whether a page has started the runs, or will: one that has to load models first may take longer."""
        loads = any(cell.get("load") for cell in self.cells)
        shown = self._transcript.shown and in_page()
        end = time.monotonic() + (PAGE_SECONDS if shown else 0)
        while not (asked := bool(self._turns()) or (shown and loads)) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        return asked

    def _turns(self) -> list[dict[str, Any]]:
        return [*session.default_client().chat(self.chat)["turns"], *self._runs.turns()]

    def _ask(self, end: float) -> None:
        """Start the runs of all cells. Models that the kernel's own server has to load first are loaded in turn."""
        said = {"prompt": self.prompt} if self.complete else {"messages": chat_messages(self.prompt, self.system)}
        asked = uuid.uuid4().hex
        turns: dict[str, list[int]] = {"": []}
        for place, cell in enumerate(self.cells):
            turns.setdefault("" if "server" in cell else cell.get("load", ""), []).append(place)
        for load, places in turns.items():
            while load and self._runs.live() and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
            if load:
                session.load(load)
            for place in places:
                cell = self.cells[place]
                chosen: dict[str, Any] = {name: cell[name] for name in CHOSEN if name in cell}
                body = {"id": f"{asked}.{place}", "chat": self.chat, **said, **chosen}
                self._runs.start(body, cell.get("server"), attached=self._ends_here(body))


@takes_sampling()
@short_traceback
def compare(
    prompt: str,
    *,
    model: Any = None,
    system: str | None = None,
    complete: bool = False,
    template_options: Any = None,
    transport: str = "auto",
    **options: Any,
) -> Compare:
    """Answers to one prompt under several settings or from several models, streaming side by side.

    Every option given as a list, an array or a range makes the grid wider: `compare("Hi", temperature=[0, 0.7, 1.2],
    top_p=[0.5, 1])` shows six answers. An option that is a list by itself, such as `stop`, takes a list of lists. All
    answers have the same seed unless `sampling_seed` is a list.
    `template_options` are the chat template's own variables, or a list: `[{"enable_thinking": True}, {}]`.

    `model` is a list, too, or a mapping with labels as its keys. A text names a loaded adapter, or a model as
    `nbgen.load` takes it: one server loads such models one after the other, and the last one stays. What
    `nbgen.connect` or `nbgen.serve` returned stands for another server, which answers at the same time.
    Raises InvalidRequest for a wrong option and for more than 16 answers.
    """
    if not isinstance(prompt, str):
        raise InvalidRequest(f"one text is the prompt of all answers, got {type(prompt).__name__}", field="prompt")
    if complete:
        continued(prompt, system)
    named, servers = ([Contender()], []) if model is None else contenders(model, session.default_client())
    given = builtin(options | ({} if template_options is None else {"template_options": template_options}))
    axes = {name: value for name, value in given.items() if _is_axis(name, value)}
    fixed = {"sampling_seed": secrets.randbelow(2**31), **{k: v for k, v in given.items() if k not in axes}}
    cells = []
    for one, *values in itertools.product(named, *axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        cells.append(_cell(one, chosen, _run_fields({**fixed, **chosen}, complete)))
    if not 0 < len(cells) <= MAX_CELLS:
        raise InvalidRequest(f"these settings make {len(cells)} answers; 1 to {MAX_CELLS} can be compared")
    return Compare(
        panel="compare",
        chat=uuid.uuid4().hex,
        prompt=prompt,
        system=system or "",
        complete=complete,
        cells=cells,
        columns=min(4, len(list(axes.values())[-1]) if axes else len(named)),
        transport=transport,
        servers=servers,
    )


def _is_axis(name: str, value: Any) -> bool:
    if name in LISTS:
        return isinstance(value, list) and any(isinstance(item, list) for item in value)
    return isinstance(value, list)


def _run_fields(options: dict[str, Any], complete: bool) -> dict[str, Any]:
    """The fields of a run's body for these options. Raises InvalidRequest for a wrong one."""
    template = chat_body((), template_options=options.pop("template_options", None))
    return {"params": one_answer((sampling_options if complete else chat_options)(options)), **template}


def _cell(one: Contender, chosen: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    settings = [f"{name} {_in_words(value)}" for name, value in chosen.items()]
    label = " · ".join([one.label, *settings] if one.label else settings)
    return {"label": label or "answer", **fields, **one.fields()}


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{name} {item}" for name, item in value.items()) or None
    return "default" if value is None else str(value)
