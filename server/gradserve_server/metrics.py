"""Metrics: counts and times every call for Prometheus. The only user of prometheus_client."""

import functools
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from gradserve.errors import Code
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
        self._of_call = functools.cache(self._find_call)  # there are as many as the registry has ops
        self._of_stage = functools.cache(self._find_stage)
        self._ready = Gauge("gradserve_ready", "1 while the server answers calls, else 0.", registry=registry)

    def call_ended(self, call: Call, cause: Exception | None) -> None:
        """Counts and times a call."""
        requests, request_seconds = self._of_call(call.op, call.version, call.method, call.code)
        requests.inc()
        request_seconds.observe(call.seconds)
        for stage, seconds in call.stages.items():
            self._of_stage(call.op, call.method, stage, call.code).observe(seconds)

    def _find_call(self, op: str, version: int, method: str, code: Code) -> tuple[Counter, Histogram]:
        labelled = op or OTHER
        return (
            self._requests.labels(labelled, str(version) if op else "", method, code.name),
            self._request_seconds.labels(labelled, method, code.name),
        )

    def _find_stage(self, op: str, method: str, stage: str, code: Code) -> Histogram:
        return self._stage_seconds.labels(op or OTHER, method, stage, code.name)

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
