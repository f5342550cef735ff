"""Metrics: counts and times every call for Prometheus. The only user of prometheus_client.

Calls are counted in plain numbers by the event loop alone, and turned into Prometheus's form when they are scraped:
prometheus_client's own histograms take a lock and go through their buckets for each number.
"""

import bisect
import collections
import itertools
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Gauge, start_http_server
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gradserve.errors import Code
from gradserve_server.telemetry import Call, Ended

_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms' buckets, from 100 microseconds to a minute."""
_BOUNDS = [*map(str, _SECONDS), "+Inf"]
OTHER = "_other"
"""Label of calls that name no op of the registry: what callers make up never becomes a label."""


def new_registry() -> CollectorRegistry:
    """Returns an empty registry, for a server to have its own."""
    return CollectorRegistry()


class _Times:
    """A histogram of seconds."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect.bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Adds it to what is scraped; an observation that comes meanwhile may be missing in one of the two."""
        cumulated = itertools.accumulate(list(self._counts))
        family.add_metric(labels, list(zip(_BOUNDS, cumulated, strict=True)), self._sum)


_Key = tuple[str, int, str, Code]
"""Op, version, method and code of a call: there are as many as the registry has ops."""


class _CallTimes(Collector):
    """What is known of all calls."""

    def __init__(self) -> None:
        self._requests: collections.Counter[_Key] = collections.Counter()
        self._calls: dict[tuple[str, str, Code], _Times] = collections.defaultdict(_Times)
        self._stages: dict[tuple[str, str, str, Code], _Times] = collections.defaultdict(_Times)

    def add(self, call: Call) -> None:
        op, method, code = call.op, call.method, call.code
        self._requests[op, call.version, method, code] += 1
        self._calls[op, method, code].observe(call.seconds)
        for stage, seconds in call.stages.items():
            self._stages[op, method, stage, code].observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yields everything in Prometheus's form, on the thread of a scrape."""
        requests = CounterMetricFamily(
            "gradserve_requests", "Calls that have ended.", labels=["op", "version", "method", "code"]
        )
        for (op, version, method, code), count in list(self._requests.items()):
            requests.add_metric([op or OTHER, str(version) if op else "", method, code.name], count)
        yield requests
        calls = HistogramMetricFamily(
            "gradserve_request_duration_seconds",
            "Time from the first byte in a handler to the last, failures included.",
            labels=["op", "method", "code"],
        )
        for (op, method, code), times in list(self._calls.items()):
            times.add_to(calls, [op or OTHER, method, code.name])
        yield calls
        stages = HistogramMetricFamily(
            "gradserve_stage_duration_seconds",
            "Time in one stage of a call: decode, queue, compute or encode.",
            labels=["op", "method", "stage", "code"],
        )
        for (op, method, stage, code), times in list(self._stages.items()):
            times.add_to(stages, [op or OTHER, method, stage, code.name])
        yield stages


class Metrics:
    """A ``CallObserver`` that counts and times calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Registers the metrics.

        Args:
            registry: Where they are registered; each server under test has its own.
        """
        self._registry = registry
        self._calls = _CallTimes()
        registry.register(self._calls)
        self._ready = Gauge("gradserve_ready", "1 while the server answers calls, else 0.", registry=registry)

    def calls_ended(self, ended: Sequence[Ended]) -> None:
        """Counts and times calls."""
        for call, _ in ended:
            self._calls.add(call)

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
