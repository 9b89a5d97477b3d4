"""What Prometheus may know of this server: counters and times of requests, the engine's pulse.

Names and labels are those of SGLang 0.5.23, so that its dashboards work. Never holds a prompt, an id or a secret.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from nbgen.engine_state import EngineStatus
from nbgen.server.engine_client import EngineClient
from nbgen.server.runs import Run

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model_name",)
#: Requests whose prompts make the hit rate.
RECENT = 100

TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
ITL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 5)
E2E_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)

COUNTERS = {
    "num_requests": "Requests that have ended.",
    "num_aborted_requests": "Requests that were aborted or failed.",
    "prompt_tokens": "Prompt tokens of requests that have ended.",
    "cached_tokens": "Those of them that the prefix cache held.",
    "generation_tokens": "Generated tokens.",
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
        self._itl = _histogram("inter_token_latency_seconds", "Between two tokens.", ITL_SECONDS, registry)
        self._e2e = _histogram("e2e_request_latency_seconds", "To the end.", E2E_SECONDS, registry)
        registry.register(self)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The gauges as they stand: what a registry asks its collectors for."""
        status = self._engine.status or EngineStatus()
        block_size, used = self._engine.config.block_size, status.blocks_total - status.blocks_free
        gauges = {
            "num_running_reqs": ("Sequences that run.", status.running),
            "num_queue_reqs": ("Sequences that wait.", status.waiting),
            "num_used_tokens": ("Tokens of the KV cache that sequences use.", used * block_size),
            "token_usage": ("Share of the KV cache that sequences use.", used / max(status.blocks_total, 1)),
            "gen_throughput": ("Generated tokens a second.", status.throughput),
            "cache_hit_rate": (f"Cached share of the last {RECENT} prompts.", self._hit_rate()),
            "num_retractions": ("Sequences that had to start again.", status.preemptions),
        }
        for name, (words, value) in gauges.items():
            family = GaugeMetricFamily(f"sglang:{name}", words, labels=LABELS)
            family.add_metric([self._engine.config.model], value)
            yield family

    def follow(self, run: Run) -> None:
        """Count a run that begins."""
        run.watchers.add(_Meter(run, self).update)

    def tokens(self, run: Run, count: int, seconds: float, *, first: bool) -> None:
        """`count` new tokens of one of the run's samples, `seconds` after the last ones or, if first, the start."""
        self._counters["generation_tokens"].labels(run.model).inc(count)
        if first:
            self._ttft.labels(run.model).observe(seconds)
            return
        for _ in range(count):
            self._itl.labels(run.model).observe(seconds / count)

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

    def _hit_rate(self) -> float:
        return sum(cached for cached, _ in self._recent) / max(sum(prompt for _, prompt in self._recent), 1)


class _Meter:
    """How much of one run has been counted."""

    def __init__(self, run: Run, metrics: Metrics) -> None:
        self._run = run
        self._metrics = metrics
        self._outputs = 0
        self._last: dict[int, float] = {}
        self._ended = False

    def update(self) -> None:
        """Count what is new."""
        now, new = time.monotonic(), self._run.outputs[self._outputs :]
        self._outputs += len(new)
        for output in new:
            if output.token_ids:
                first = output.index not in self._last
                seconds = now - self._last.get(output.index, self._run.started)
                self._metrics.tokens(self._run, len(output.token_ids), seconds, first=first)
                self._last[output.index] = now
        if self._run.ended is not None and not self._ended:
            self._ended = True
            self._metrics.ended(self._run)


def _histogram(name: str, words: str, seconds: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(f"sglang:{name}", words, LABELS, buckets=seconds, registry=registry)
