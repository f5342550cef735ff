"""Metrics: counts and times every call for Prometheus. The only user of prometheus_client."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from gradserve_server.telemetry import Call

_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms' buckets, from 100 microseconds to a minute."""
OTHER = "_other"
"""Label of calls that name no op of the registry: what callers make up never becomes a label."""


def new_registry() -> CollectorRegistry:
    """Returns an empty registry, for a server to have its own."""
    return CollectorRegistry()


class Metrics:
    """A ``CallObserver`` that counts and times calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Registers the metrics.

        Args:
            registry: Where they are registered; each server under test has its own.
        """
        self._registry = registry
        self._requests = Counter(
            "gradserve_requests", "Calls that have ended.", ["op", "version", "method", "code"], registry=registry
        )
        self._request_seconds = Histogram(
            "gradserve_request_duration_seconds",
            "Time from the first byte in a handler to the last, failures included.",
            ["op", "method", "code"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._stage_seconds = Histogram(
            "gradserve_stage_duration_seconds",
            "Time in one stage of a call: decode, queue, compute or encode.",
            ["op", "method", "stage", "code"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._ready = Gauge("gradserve_ready", "1 while the server answers calls, else 0.", registry=registry)

    def call_ended(self, call: Call, cause: Exception | None) -> None:
        """Counts and times a call."""
        op, code = call.op or OTHER, call.code.name
        self._requests.labels(op, str(call.version) if call.op else "", call.method, code).inc()
        self._request_seconds.labels(op, call.method, code).observe(call.seconds)
        for stage, seconds in call.stages.items():
            self._stage_seconds.labels(op, call.method, stage, code).observe(seconds)

    def set_ready(self, ready: bool) -> None:
        """Says whether the server answers calls."""
        self._ready.set(ready)

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Serves ``/metrics`` over HTTP from a thread.

        Returns:
            The port, which the system chooses if ``port`` is 0, and a function that stops serving.

        Raises:
            OSError: The address cannot be bound.
        """
        server, thread = start_http_server(port, addr=host, registry=self._registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return server.server_port, stop
