"""Renders the runs that a reader follows as events of nbgen's own API, from the offsets where the reader left off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from nbgen.engine_state import LoadProgress
from nbgen.errors import NotFound
from nbgen.messages import GenerateOutput
from nbgen.protocols import native
from nbgen.server.engine_client import EngineClient
from nbgen.server.runs import Run, Runs


class RunEvents:
    """One run, followed from an offset: renders what has happened since the last call."""

    def __init__(self, run: Run, offset: int, runs: Runs, engine: EngineClient) -> None:
        self._run = run
        self._offset = min(offset, len(run.outputs))
        self._runs = runs
        self._engine = engine
        self._state = ("", 0)
        self._progress: LoadProgress | None = None
        self.done = False

    def take(self, places: Callable[[], Mapping[str, int]]) -> bytes:
        """The events since the last call. `places` are those in the queue by run id. `done` is true after the last."""
        if self.done:
            return b""
        state = self._runs.state(self._run)
        over = state in ("done", "error")
        place = places().get(self._run.id, 0) if state == "queued" else 0
        announced = self._announce("running" if over and self._run.outputs else state, place)
        deltas = self._deltas()
        if not over:
            return announced + self._load_progress(state) + deltas
        self.done = True
        return announced + deltas + self._end(state)

    def _announce(self, state: str, place: int) -> bytes:
        if (state, place) == self._state:
            return b""
        self._state = (state, place)
        return self._event("run", chat=self._run.chat, state=state, place=place, model=self._run.model)

    def _load_progress(self, state: str) -> bytes:
        progress = self._engine.progress
        if state != "loading" or progress is None or progress is self._progress:
            return b""
        self._progress = progress
        return self._event("progress", **native.progress_fields(progress))

    def _deltas(self) -> bytes:
        """One event for consecutive outputs of one sample, so that the offset in each event is exact."""
        events, group = [], list[GenerateOutput]()
        for output in self._run.outputs[self._offset :]:
            if group and output.index != group[0].index:
                events.append(self._delta(group))
                group = []
            group.append(output)
        if group:
            events.append(self._delta(group))
        return b"".join(events)

    def _delta(self, group: list[GenerateOutput]) -> bytes:
        self._offset += len(group)
        text = "".join(output.content for output in group)
        tokens = sum(len(output.token_ids) for output in group)
        parts = [part for output in group for part in output.parts or ()]
        more = native.part_fields(parts) if parts else {}
        if not (text or tokens or more):
            return b""
        logprobs = [native.token_fields(entry) for output in group for entry in output.logprobs]
        more |= {"logprobs": logprobs} if logprobs else {}
        return self._event("delta", index=group[0].index, text=text, tokens=tokens, **more)

    def _end(self, state: str) -> bytes:
        run = self._run
        if run.error is not None:
            return self._event("error", state=state, error=native.error_fields(run.error))
        return self._event(
            "done",
            state=state,
            finish_reason=run.finish_reason,
            usage=run.usage,
            ttft_s=run.ttft_s,
            tokens_per_s=run.tokens_per_s,
            identity=run.identity,
        )

    def _event(self, name: str, **fields: object) -> bytes:
        return native.event(name, self._run.id, self._offset, **fields)


def take(followed: Iterable[RunEvents], runs: Runs) -> bytes:
    """The events of all followed runs since the last call; places in the queue are computed at most once."""
    places = cache(runs.places)
    return b"".join(events.take(places) for events in followed)


def missing(id: str, error: NotFound) -> bytes:
    """The only event of a run that does not exist."""
    return native.event("error", id, 0, state="error", error=native.error_fields(error))
