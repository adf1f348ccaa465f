"""Metrics of the server in the text format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from transformer_mt.tools.serving.batching import BatchStatistics

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LINES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters and histograms of one server. Labels never contain text of users."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "tmt_requests", "Requests by path and status", ["method", "path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "tmt_request_seconds", "Time of a request", ["path"], buckets=SECONDS, registry=registry
        )
        self.in_flight = Gauge("tmt_requests_in_flight", "Translations that run or wait", registry=registry)
        self.characters = Counter(
            "tmt_source_characters", "Characters translated", ["language_pair"], registry=registry
        )
        self.cancelled = Counter("tmt_cancelled", "Translations given up", ["reason"], registry=registry)
        self.batch_lines = Histogram("tmt_batch_lines", "Lines of a batch", buckets=LINES, registry=registry)
        self.batch_requests = Histogram("tmt_batch_requests", "Texts of a batch", buckets=LINES, registry=registry)
        self.batch_seconds = Histogram("tmt_batch_seconds", "Time of a batch", buckets=SECONDS, registry=registry)
        self.reloads = Counter("tmt_reloads", "Checkpoints loaded while serving", registry=registry)

    def observe_batch(self, batch: BatchStatistics) -> None:
        """Record a batch."""
        self.batch_lines.observe(batch.n_lines)
        self.batch_requests.observe(batch.n_requests)
        self.batch_seconds.observe(batch.seconds)

    def render(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)
