"""SGLang's native routes: `/generate` and what its clients call beside it."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator
from functools import partial

from nbgen import __version__, sse
from nbgen.commands import ContinueGeneration, FlushCache, PauseGeneration, ReleaseMemory, ResumeMemory
from nbgen.engine_state import EngineStatus
from nbgen.errors import NbgenError, Unavailable
from nbgen.messages import EmbedRequest, GenerateRequest
from nbgen.protocols import sglang, sglang_answer, sglang_info, sglang_loads
from nbgen.protocols.json_body import refuse_unsupported
from nbgen.protocols.sample import Sample
from nbgen.protocols.sglang import Generation
from nbgen.protocols.sglang_answer import Answer
from nbgen.protocols.sglang_info import ServerOptions
from nbgen.protocols.sglang_memory import parse_tags
from nbgen.sampling_params import SamplingParams
from nbgen.server import kserve_metrics, launch_options, metrics
from nbgen.server.base_handler import MEDIA_BODY, NbgenHandler
from nbgen.server.generation_handler import GenerationHandler
from nbgen.server.off_loop import off_loop
from nbgen.server.question import ask
from nbgen.server.runs import MAX_LIVE, Run

#: How long a token may take before the engine counts as unhealthy.
PROBE_SECONDS = 20.0
FLUSH_POLL_SECONDS = 0.1


class SglangHandler(NbgenHandler):
    """Errors in SGLang's shapes."""

    error_body = staticmethod(sglang_answer.error_body)


class GenerateHandler(SglangHandler, GenerationHandler):
    """One prompt or many, answered whole or as a stream. A caller who leaves aborts them."""

    body_limit = MEDIA_BODY

    async def post(self) -> None:
        options = self.app.server_options
        parse = partial(sglang.parse_generate, preferred=options.preferred, truncate=options.truncate)
        self._generation = await self.parsed(parse)
        self._answers = _answers(self._generation, options)
        requests = await self.with_media(self._generation.requests, self._generation.media)
        await self.generate(requests, stream=self._generation.stream)

    put = post

    def whole(self, runs: list[Run]) -> bytes:
        results = [answer.result(sample, run.started) for run, answer, sample in self._each(runs)]
        return sglang_answer.result_body(results, self._generation.single)

    def chunk(self, runs: list[Run]) -> bytes:
        return _chunks(self._each(runs))

    def sign_of_life(self, runs: list[Run]) -> bytes:
        return sse.EMPTY

    async def next_chunk(self, runs: list[Run]) -> bytes:
        each = [(run, answer, sample.snapshot()) for run, answer, sample in self._each(runs)]
        size = sum(sample.size for _, _, sample in each)
        return await off_loop(size, _chunks, each)

    def end(self, runs: list[Run], error: NbgenError | None) -> bytes:
        return (sglang_answer.error_event(error) if error else b"") + sse.DONE

    def _each(self, runs: list[Run]) -> Iterator[tuple[Run, Answer, Sample]]:
        for run, answers in zip(runs, self._answers, strict=True):
            for answer, sample in zip(answers, run.samples, strict=True):
                yield run, answer, sample


class AbortHandler(SglangHandler):
    """Ends the request of exactly this rid, or all. The answer does not tell whether there was one."""

    async def post(self) -> None:
        rid, every = sglang.parse_abort(self.body)
        if every:
            self.runs.abort_all()
        else:
            self.runs.abort(rid)
        self.finish()


class PauseHandler(SglangHandler):
    """Pauses generation until `continue_generation`. New requests are accepted, and wait."""

    async def post(self) -> None:
        mode = sglang.parse_pause(self.body)
        if not self.engine.tell(PauseGeneration(mode=mode)):
            raise Unavailable("no model is loaded, so there is nothing to pause")
        self.finish(sglang_answer.done(f"Generation paused ({mode})."))


class ContinueHandler(SglangHandler):
    """Ends a pause."""

    async def post(self) -> None:
        self.engine.tell(ContinueGeneration())
        self.finish(sglang_answer.done("Generation continued."))


class CacheHandler(SglangHandler):
    """Empties the prefix cache, unless requests are alive: then it does nothing, and the answer says so."""

    async def empty(self, seconds: float) -> None:
        """Empty it as soon as nothing is alive, within so many seconds."""
        deadline = time.monotonic() + seconds
        while len(self.runs) and time.monotonic() < deadline and not self.reader.gone:
            await self.reader.wait(FLUSH_POLL_SECONDS)
        running = len(self.runs)
        if not running:
            self.engine.tell(FlushCache())
        self.set_status(400 if running else 200)
        words = f"Cache not flushed: {running} requests are alive." if running else "Cache flushed."
        self.finish(words + "\n", set_content_type="text/plain; charset=utf-8")


class FlushCacheHandler(CacheHandler):
    """SGLang's route."""

    actions = {**NbgenHandler.actions, "GET": "write"}  # noqa: RUF012

    async def get(self) -> None:
        await self.empty(sglang.parse_timeout(self.get_query_argument("timeout", "0")))

    post = get


class ResetPrefixCacheHandler(CacheHandler):
    """vLLM's route. What it can reset besides is refused."""

    async def post(self) -> None:
        unset = dict.fromkeys(("reset_running_requests", "reset_external"), (None, False))
        refuse_unsupported({n: self.get_query_argument(n, "0").lower() not in ("false", "0") for n in unset}, unset)
        await self.empty(0.0)


class ReleaseMemoryHandler(SglangHandler):
    """Releases the memory that `tags` name. Running requests end with an error, later ones are refused."""

    command: type[ReleaseMemory | ResumeMemory] = ReleaseMemory

    async def post(self) -> None:
        await self.engine.change_memory(self.command, parse_tags(self.body))
        self.finish(b"null")


class ResumeMemoryHandler(ReleaseMemoryHandler):
    """Allocates the memory that `tags` name again. Answers when requests are accepted."""

    command = ResumeMemory


class HealthHandler(SglangHandler):
    """Whether a request would be served, judged by the state of the engine's process, without a trial request."""

    tells_health = True
    _track_activity = False

    async def get(self) -> None:
        self.set_status(200 if self.is_well() else 503)
        self.finish()

    head = get

    def is_well(self) -> bool:
        """The condition for a 200."""
        return self.engine.healthy


class ReadyHandler(HealthHandler):
    """As health, but a 503 while the engine is paused and requests wait: for load balancers."""

    def is_well(self) -> bool:
        return self.engine.healthy and not self.engine.paused


class HealthGenerateHandler(SglangHandler):
    """Whether the engine generates tokens: asks for one, ahead of all waiting requests. Loads no model."""

    actions = {**NbgenHandler.actions, "GET": "write"}  # noqa: RUF012
    _track_activity = False

    async def get(self) -> None:
        self.set_status(200 if await self._gives_tokens() else 503)
        self.finish()

    async def _gives_tokens(self) -> bool:
        if self.engine.state != "ready" or self.engine.paused:
            return False
        before, probe = self._generated(), asyncio.create_task(ask(self.engine, self._probe(), PROBE_SECONDS))
        try:
            while not probe.done():
                await asyncio.wait({probe}, timeout=1)
                if self._generated() > before:  # if no request can be admitted, tokens of others will do
                    return True
            return probe.exception() is None
        finally:
            probe.cancel()
            with contextlib.suppress(NbgenError, TimeoutError, asyncio.CancelledError):
                await probe

    def _probe(self) -> GenerateRequest | EmbedRequest:
        rid = f"health-{uuid.uuid4().hex}"
        if self.engine.model is not None and self.engine.model.is_embedding:
            return EmbedRequest(rid=rid, input_ids=[0])
        params = SamplingParams(max_new_tokens=1, temperature=0.0)
        return GenerateRequest(rid=rid, input_ids=[0], namespace=("health",), priority=2**31, params=params)

    def _generated(self) -> int:
        return self.engine.status.generated_tokens if self.engine.status else 0


class ModelInfoHandler(SglangHandler):
    """The configured model and, once it is loaded, its properties. Loads nothing."""

    _track_activity = False

    async def get(self) -> None:
        self.finish(sglang_info.model_info(self.engine.config, self.engine.model, self.app.server_options))

    head = get


class ServerInfoHandler(SglangHandler):
    """Options, features, limits and the engine's status. Loads nothing."""

    _track_activity = False

    async def get(self) -> None:
        engine, app = self.engine, self.app
        limits = {"body_bytes": MEDIA_BODY, "live_requests": MAX_LIVE, "reader_seconds": app.reader_seconds}
        self.finish(
            sglang_info.server_info(
                engine.config,
                engine.model,
                engine.status,
                version=__version__,
                state=engine.state,
                options=app.server_options,
                limits=limits,
                started=app.started,
                command=launch_options.command(engine.config, app.server_options) if app.stands_alone else None,
            )
        )

    head = get


class LoadsHandler(SglangHandler):
    """The engine's load, for balancers. Loads no model."""

    _track_activity = False

    async def get(self) -> None:
        include, rank, form = (self.get_query_argument(name, None) for name in ("include", "dp_rank", "format"))
        wanted, now, engine = sglang_loads.parse_loads(include, rank, form), time.time(), self.engine
        load = sglang_loads.Load(
            engine.config, engine.model, engine.status or EngineStatus(), self.app.metrics.hit_rate
        )
        found = sglang_loads.loads(load, wanted, now)
        if wanted.as_metrics:
            self.finish(sglang_loads.metrics_body(found), set_content_type=metrics.CONTENT_TYPE)
        else:
            self.finish(sglang_loads.json_body(found, load, __version__, now))

    head = get


class MetricsHandler(SglangHandler):
    """Counters, durations and the engine's status, in Prometheus' text format."""

    _track_activity = False

    async def get(self) -> None:
        text = self.app.metrics.text() + kserve_metrics.text(self.app.models)
        self.finish(text, set_content_type=metrics.CONTENT_TYPE)

    head = get


def _chunks(each: Iterable[tuple[Run, Answer, Sample]]) -> bytes:
    return b"".join(answer.chunk(sample, run.started) for run, answer, sample in each)


def _answers(generation: Generation, options: ServerOptions) -> list[list[Answer]]:
    """The `Answer`s of each request, numbered prompt by prompt unless the call answers a single object."""
    requests = generation.requests
    places = iter(range(sum(request.params.n for request in requests)))
    return [
        [
            Answer(
                request,
                None if generation.single else next(places),
                incremental=options.incremental,
                interval=interval or options.interval,
            )
            for _ in range(request.params.n)
        ]
        for request, interval in zip(requests, generation.intervals, strict=True)
    ]


HANDLERS = [
    (r"generate", GenerateHandler),
    (r"abort_request", AbortHandler),
    (r"flush_cache", FlushCacheHandler),
    (r"reset_prefix_cache", ResetPrefixCacheHandler),
    (r"health", HealthHandler),
    (r"ping", HealthHandler),
    (r"ready", ReadyHandler),
    (r"health_generate", HealthGenerateHandler),
    (r"model_info", ModelInfoHandler),
    (r"get_model_info", ModelInfoHandler),
    (r"server_info", ServerInfoHandler),
    (r"get_server_info", ServerInfoHandler),
    (r"pause_generation", PauseHandler),
    (r"continue_generation", ContinueHandler),
    (r"release_memory_occupation", ReleaseMemoryHandler),
    (r"resume_memory_occupation", ResumeMemoryHandler),
    (r"v1/loads", LoadsHandler),
    (r"metrics/?", MetricsHandler),
]
