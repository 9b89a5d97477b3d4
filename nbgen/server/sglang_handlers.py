"""SGLang's native routes: `/generate` and what its clients call beside it."""

from __future__ import annotations

from nbgen.errors import Conflict, InvalidRequest, ModelError, NbgenError, Unavailable
from nbgen.protocols import sglang, sglang_answer
from nbgen.protocols.sglang import Generation
from nbgen.protocols.sglang_answer import Answer
from nbgen.server.base_handler import GENERATE_BODY, NbgenHandler
from nbgen.server.runs import Run


class SglangHandler(NbgenHandler):
    """Errors in SGLang's shapes."""

    error_body = staticmethod(sglang_answer.error_body)

    def as_ours(self, status: int, error: BaseException | None) -> NbgenError:
        """A model that cannot be loaded is the server's trouble here: the caller named none."""
        ours = super().as_ours(status, error)
        return Unavailable(ours.message) if isinstance(ours, ModelError) else ours


class GenerateHandler(SglangHandler):
    """One prompt or many, answered whole or as a stream. A caller who leaves aborts them."""

    body_limit = GENERATE_BODY

    async def post(self) -> None:
        generation = sglang.parse_generate(self.body)
        runs: list[Run] = []
        try:
            self._start(generation, runs)
            await (self._stream if generation.stream else self._answer)(generation, runs)
        finally:
            for run in runs:
                self.runs.abort(run.id)

    async def put(self) -> None:
        await self.post()

    def _start(self, generation: Generation, runs: list[Run]) -> None:
        for request in generation.requests:
            run = Run(request)
            self.reader.watch(run.watchers)
            try:
                self.runs.start(run)
            except Conflict as error:
                raise InvalidRequest(error.message, field="rid") from None
            runs.append(run)

    async def _answer(self, generation: Generation, runs: list[Run]) -> None:
        while not self.reader.gone and any(run.ended is None for run in runs):
            await self.reader.wait()
            _raise_first_error(runs)
        if self.reader.gone:
            return
        _raise_first_error(runs)
        results = [
            answer.result(sample, run.started)
            for run, answers in _answers(generation, runs)
            for answer, sample in zip(answers, run.samples, strict=True)
        ]
        self.finish(sglang_answer.result_body(results, generation.single))

    async def _stream(self, generation: Generation, runs: list[Run]) -> None:
        """Headers wait for the first output, so that a refusal is still a real status."""
        while runs and not self.reader.gone and not any(run.outputs or run.error for run in runs):
            await self.reader.wait()
        _raise_first_error(runs)
        answered = _answers(generation, runs)
        while not self.reader.gone:
            over = all(run.ended is not None for run in runs)
            failed = next((run.error for run in runs if run.error), None)
            chunk = b"".join(
                answer.chunk(sample, run.started, generation.interval)
                for run, answers in answered
                for answer, sample in zip(answers, run.samples, strict=True)
            )
            if over or failed:
                chunk += (sglang_answer.error_event(failed) if failed else b"") + sglang_answer.DONE
            if chunk:
                await self.write_event(chunk)
            if over or failed:
                self.end_events()
                return
            await self.reader.wait()


class AbortHandler(SglangHandler):
    """Ends the request of exactly this rid, or all. Says nothing of whether there was one."""

    async def post(self) -> None:
        rid, every = sglang.parse_abort(self.body)
        if every:
            self.runs.abort_all()
        else:
            self.runs.abort(rid)
        self.finish()


class FlushCacheHandler(SglangHandler):
    """Empties the prefix cache, unless requests are alive: then nothing is done and the answer says so."""

    async def get(self) -> None:
        running = len(self.runs)
        if not running:
            self.engine.flush_cache()
        self.set_status(400 if running else 200)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        words = f"Cache not flushed: {running} requests are alive." if running else "Cache flushed."
        self.finish(words + "\n", set_content_type="text/plain; charset=utf-8")

    post = get


class HealthHandler(SglangHandler):
    """Whether a request would be served: facts about the engine's process, not a try."""

    _track_activity = False

    async def get(self) -> None:
        self.set_status(200 if self.engine.healthy else 503)
        self.finish()


class ModelInfoHandler(SglangHandler):
    """What is configured and, once loaded, what it is. Loads nothing."""

    _track_activity = False

    async def get(self) -> None:
        self.finish(sglang_answer.model_info(self.engine.config, self.engine.model))


def _answers(generation: Generation, runs: list[Run]) -> list[tuple[Run, list[Answer]]]:
    """Each run with its answers, numbered prompt by prompt unless the call answers one object."""
    places = iter(range(sum(len(run.samples) for run in runs)))
    return [
        (run, [Answer(run.request, None if generation.single else next(places)) for _ in run.samples]) for run in runs
    ]


def _raise_first_error(runs: list[Run]) -> None:
    for run in runs:
        if run.error is not None:
            raise run.error


HANDLERS = [
    (r"generate", GenerateHandler),
    (r"abort_request", AbortHandler),
    (r"flush_cache", FlushCacheHandler),
    (r"health", HealthHandler),
    (r"health_generate", HealthHandler),
    (r"model_info", ModelInfoHandler),
    (r"get_model_info", ModelInfoHandler),
]
