"""What authors of ops import in their tests: a real server in the test's own process."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from gradserve import Client
from gradserve_server.app import App
from gradserve_server.config import Settings
from gradserve_server.logs import make_logger


class RunningServer:
    """A server that listens on loopback."""

    def __init__(self, app: App) -> None:
        """Takes an app that has started."""
        self.target = f"127.0.0.1:{app.port}"
        """Address for clients."""
        self.metrics_url = f"http://127.0.0.1:{app.metrics_port}/metrics"
        """Where Prometheus would scrape it."""

    def client(self, **options: Any) -> Client:
        """Returns a new client of this server; the options are those of ``gradserve.Client``."""
        return Client(self.target, **options)


@contextlib.contextmanager
def running_server(*modules: str, **settings: Any) -> Iterator[RunningServer]:
    """Runs a server on free ports of loopback for as long as the context lasts.

    Args:
        modules: Paths or dotted names of modules that define ops.
        settings: Further settings, by the names of ``gradserve_server.config.Settings``.

    Yields:
        The server, ready to answer.

    Raises:
        OpLoadError: A module or op cannot be loaded.

    Example:
        >>> with running_server("ops.py") as server, server.client() as client:  # doctest: +SKIP
        ...     assert client.vjp("square_with_grad", 3.0).gradient == 6.0
    """
    chosen = Settings(modules=list(modules), **{"port": 0, "metrics_port": 0, "log_level": "error", **settings})
    app = App(chosen, make_logger(chosen.log_level, chosen.log_format))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gradserve-test-server", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(app.start(), loop).result()
        yield RunningServer(app)
    finally:
        asyncio.run_coroutine_threadsafe(app.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
