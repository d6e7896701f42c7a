"""The metrics at /metrics for Prometheus, and the log line of each minute."""

import statistics
from collections import Counter as Tally
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass
class Traffic:
    """The requests answered since the last line."""

    statuses: Tally[int] = field(default_factory=Tally)
    seconds: list[float] = field(default_factory=list)

    def line(self) -> str:
        """Format a line; empty if there were no requests."""
        if not self.statuses:
            return ""
        parts = [f"{count:,} × {status}" for status, count in sorted(self.statuses.items())]
        median, last = statistics.median(self.seconds), max(self.seconds)
        figures = f"median {median * 1000:.1f} ms, slowest {last * 1000:.1f} ms"
        return f"answered {', '.join(parts)} in the last minute, {figures}"


class Metrics:
    """All figures: those of the traffic, and those of the model, in two registries."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._of_model = of_model = CollectorRegistry()
        self.traffic = Traffic()
        self._requests = Counter(
            "kit_serve_requests", "Requests answered", ("path", "status"), registry=registry
        )
        self._latency = Histogram(
            "kit_serve_latency_seconds",
            "From the request's head to the answer's",
            ("path",),
            buckets=SECONDS,
            registry=registry,
        )
        self.queue = Gauge("kit_serve_queue_length", "Samples that wait", registry=registry)
        self.batches = Histogram(
            "kit_serve_batch_size", "Samples computed together", buckets=SIZES, registry=registry
        )
        self.step = Gauge("kit_serve_checkpoint_step", "Step of what is served", registry=of_model)
        self.accuracy = Gauge(
            "kit_serve_checkpoint_accuracy", "Share of the test samples", registry=of_model
        )
        self.written = Gauge(
            "kit_serve_checkpoint_written_seconds", "When, since 1970", registry=of_model
        )
        self.reloads = Counter("kit_serve_reloads", "Checkpoints taken", registry=registry)
        self.failures = Counter("kit_serve_failures", "Batches that failed", registry=registry)

    def exposed(self, *, of_model: bool) -> bytes:
        """Return the metrics for Prometheus, including those of the model if `of_model`.

        These need the token; the others are open, so that Prometheus needs no secret.
        """
        found = generate_latest(self._registry)
        return found + generate_latest(self._of_model) if of_model else found

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(path, status).inc()
        self._latency.labels(path).observe(seconds)
        self.traffic.statuses[status] += 1
        self.traffic.seconds.append(seconds)

    def minute(self) -> str:
        """Return a line on the traffic since the last call."""
        traffic, self.traffic = self.traffic, Traffic()
        return traffic.line()
