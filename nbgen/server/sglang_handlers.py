"""SGLang's native routes: `/generate` and what its clients call beside it."""

from __future__ import annotations

from collections.abc import Iterator

from nbgen.errors import NbgenError
from nbgen.protocols import sglang, sglang_answer
from nbgen.protocols.sample import Sample
from nbgen.protocols.sglang import Generation
from nbgen.protocols.sglang_answer import Answer
from nbgen.server.base_handler import NbgenHandler
from nbgen.server.generation_handler import GenerationHandler
from nbgen.server.runs import Run


class SglangHandler(NbgenHandler):
    """Errors in SGLang's shapes."""

    error_body = staticmethod(sglang_answer.error_body)


class GenerateHandler(SglangHandler, GenerationHandler):
    """One prompt or many, answered whole or as a stream. A caller who leaves aborts them."""

    async def post(self) -> None:
        self._generation = sglang.parse_generate(self.body)
        self._answers: list[list[Answer]] = _answers(self._generation)
        await self.generate(self._generation.requests, stream=self._generation.stream)

    async def put(self) -> None:
        await self.post()

    def whole(self, runs: list[Run]) -> bytes:
        results = [answer.result(sample, run.started) for run, answer, sample in self._each(runs)]
        return sglang_answer.result_body(results, self._generation.single)

    def chunk(self, runs: list[Run]) -> bytes:
        interval = self._generation.interval
        return b"".join(answer.chunk(sample, run.started, interval) for run, answer, sample in self._each(runs))

    def end(self, runs: list[Run], error: NbgenError | None) -> bytes:
        return (sglang_answer.error_event(error) if error else b"") + sglang_answer.DONE

    def _each(self, runs: list[Run]) -> Iterator[tuple[Run, Answer, Sample]]:
        for run, answers in zip(runs, self._answers, strict=True):
            for answer, sample in zip(answers, run.samples, strict=True):
                yield run, answer, sample


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


def _answers(generation: Generation) -> list[list[Answer]]:
    """Each request's answers, numbered prompt by prompt unless the call answers one object."""
    requests = generation.requests
    places = iter(range(sum(request.params.n for request in requests)))
    return [
        [Answer(request, None if generation.single else next(places)) for _ in range(request.params.n)]
        for request in requests
    ]


HANDLERS = [
    (r"generate", GenerateHandler),
    (r"abort_request", AbortHandler),
    (r"flush_cache", FlushCacheHandler),
    (r"health", HealthHandler),
    (r"health_generate", HealthHandler),
    (r"model_info", ModelInfoHandler),
    (r"get_model_info", ModelInfoHandler),
]
