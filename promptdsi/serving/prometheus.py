"""The figures at /metrics, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one server, in a registry of its own so that two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        labels = ("method", "route", "status")
        self.requests = Counter("promptdsi_requests", "Requests answered", labels, registry=self.registry)
        self.seconds = Histogram("promptdsi_request_seconds", "Time to answer", ("route",), buckets=SECONDS, registry=self.registry)
        self.batches = Histogram("promptdsi_batch_queries", "Queries encoded in one batch", buckets=SIZES, registry=self.registry)

    def gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """A figure that is computed whenever /metrics is read."""
        Gauge(f"promptdsi_{name}", description, registry=self.registry).set_function(value)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
