"""The server's metrics for Prometheus: counters and durations of requests, and the engine's status.

Names and labels are those of SGLang 0.5.23, so that its dashboards work. Never holds a prompt, an id or a secret.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from nbgen.engine_state import EngineStatus
from nbgen.server.engine_client import EngineClient
from nbgen.server.runs import Run

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model_name",)
#: Number of latest requests over which the cache hit rate is taken.
RECENT = 100

TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
ITL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 5)
E2E_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)

TOKENS = ("sglang:generation_tokens", "Generated tokens.")
ITL = ("sglang:inter_token_latency_seconds", "Between two tokens.")
COUNTERS = {
    "num_requests": "Requests that have ended.",
    "num_aborted_requests": "Requests that were aborted or failed.",
    "prompt_tokens": "Prompt tokens of requests that have ended.",
    "cached_tokens": "Those of them that the prefix cache held.",
}


class Metrics:
    """One registry for one server."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT)
        registry = self._registry = CollectorRegistry()
        self._counters = {
            name: Counter(f"sglang:{name}", words, LABELS, registry=registry) for name, words in COUNTERS.items()
        }
        self._ttft = _histogram("time_to_first_token_seconds", "To the first token.", TTFT_SECONDS, registry)
        self._e2e = _histogram("e2e_request_latency_seconds", "To the end.", E2E_SECONDS, registry)
        self._token_times: dict[str, TokenTimes] = defaultdict(TokenTimes)
        registry.register(self)

    def text(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The present gauges; the registry calls this, since this object is one of its collectors."""
        status = self._engine.status or EngineStatus()
        gauges = {
            "num_running_reqs": ("Sequences that run.", status.running),
            "num_queue_reqs": ("Sequences that wait.", status.waiting),
            "num_used_tokens": ("Tokens of the KV cache that sequences use.", status.used_tokens),
            "token_usage": ("Share of the KV cache that sequences use.", status.usage),
            "gen_throughput": ("Generated tokens a second.", status.throughput),
            "cache_hit_rate": (f"Cached share of the last {RECENT} prompts.", self.hit_rate),
            "spec_accept_rate": ("Share of the guessed tokens that came.", status.accept_rate),
            "spec_accept_length": ("Tokens that a step with guesses gained.", status.accept_length),
            "num_retractions": ("Sequences that had to start again.", status.preemptions),
        }
        for name, (words, value) in gauges.items():
            family = GaugeMetricFamily(f"sglang:{name}", words, labels=LABELS)
            family.add_metric([self._engine.config.model], value)
            yield family
        tokens, itl = CounterMetricFamily(*TOKENS, labels=LABELS), HistogramMetricFamily(*ITL, labels=LABELS)
        for model, times in self._token_times.items():
            tokens.add_metric([model], times.tokens)
            itl.add_metric([model], times.buckets, times.seconds)
        yield from (tokens, itl)

    def follow(self, run: Run) -> None:
        """Count a run that begins."""
        run.watchers.add(_Meter(run, self).update)

    def token_times(self, run: Run) -> TokenTimes:
        """The histogram in which the run's tokens are counted."""
        return self._token_times[run.model]

    def first_token(self, run: Run, seconds: float) -> None:
        """Count the first token of one of the run's samples, `seconds` after the run's start."""
        self._ttft.labels(run.model).observe(seconds)

    def ended(self, run: Run) -> None:
        """The run is over."""
        sample, label = run.samples[0], run.model
        reason = run.finish_reason
        self._counters["num_requests"].labels(label).inc()
        if run.error is not None or (reason is not None and reason.type == "abort"):
            self._counters["num_aborted_requests"].labels(label).inc()
        self._counters["prompt_tokens"].labels(label).inc(sample.prompt_tokens)
        self._counters["cached_tokens"].labels(label).inc(sample.cached_tokens)
        self._e2e.labels(label).observe((run.ended or time.monotonic()) - run.started)
        if sample.prompt_tokens:
            self._recent.append((sample.cached_tokens, sample.prompt_tokens))

    @property
    def hit_rate(self) -> float:
        """The share of the latest prompts' tokens that the prefix cache held."""
        return sum(cached for cached, _ in self._recent) / max(sum(prompt for _, prompt in self._recent), 1)


class TokenTimes:
    """A model's tokens and the times between them, as a histogram.

    prometheus_client's histogram would cost more than a token's decoding: three locks, and a search of all buckets.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self._counts = [0] * (len(ITL_SECONDS) + 1)

    def add(self, count: int, seconds: float) -> None:
        """Count `count` tokens that took `seconds` in total."""
        self.tokens += count
        self.seconds += seconds
        self._counts[bisect_left(ITL_SECONDS, seconds / count)] += count

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds, each with the number of times up to it."""
        bounds = [floatToGoString(bound) for bound in (*ITL_SECONDS, math.inf)]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class _Meter:
    """How much of one run has been counted."""

    def __init__(self, run: Run, metrics: Metrics) -> None:
        self._run = run
        self._metrics = metrics
        self._times = metrics.token_times(run)
        self._outputs = 0
        self._last: dict[int, float] = {}
        self._ended = False

    def update(self) -> None:
        """Count what is new."""
        run = self._run
        for output in run.outputs[self._outputs :]:
            if output.token_ids:
                self._count(output.index, len(output.token_ids))
        self._outputs = len(run.outputs)
        if run.ended is not None and not self._ended:
            self._ended = True
            self._metrics.ended(run)

    def _count(self, index: int, count: int) -> None:
        """Count new tokens of one of the run's samples."""
        now, last = time.monotonic(), self._last.get(index)
        self._last[index] = now
        if last is None:
            self._times.tokens += count
            self._metrics.first_token(self._run, now - self._run.started)
        else:
            self._times.add(count, now - last)


def _histogram(name: str, words: str, seconds: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(f"sglang:{name}", words, LABELS, buckets=seconds, registry=registry)
