"""What authors of ops import in their tests: a real server, in the test's own process or in one of its own."""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gradserve import Client
from gradserve.gradient_check import GradientCheck
from gradserve_server.app import App
from gradserve_server.config import Settings
from gradserve_server.logs import make_logger
from gradserve_server.ops import OpDefinition

_LOOK_SECONDS = 0.02
"""How often a log is read while something is waited for."""
_NO_VARIABLES = "NO_VARIABLE_IS_READ_"
"""Prefix of the environment variables that a server in a test takes, so that it does not depend on where it runs."""


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
    given: dict[str, Any] = {"modules": list(modules), "port": 0, "metrics_port": 0, "log_level": "error", **settings}
    chosen = Settings(**given, _env_prefix=_NO_VARIABLES)  # type: ignore[call-arg]  # pydantic's plugin would know it
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


def assert_gradient_correct(
    definition: OpDefinition, inputs: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, GradientCheck]:
    """Asserts, without a server, that the gradient of each signature of an op is what it claims to be.

    Args:
        definition: What ``@op`` returned.
        inputs: Arrays by name, where the gradient is compared with forward values, for the signature whose dtypes they have;
            None to draw some for each.
        options: Those of ``gradserve_server.checking.gradient_check.CheckOptions``.

    Returns:
        What was found, by signature key; "departs" is right for a surrogate gradient.

    Raises:
        AssertionError: A gradient that claims to be exact is not, or nothing could be compared. The text has every finding.
        OpLoadError: The op cannot be traced.

    Example:
        >>> assert_gradient_correct(ops.square_with_grad)  # doctest: +SKIP
    """
    # Imported here, since a test that only starts a server in another process needs no TensorFlow.
    from gradserve_server.autodiff.tracing import trace  # noqa: PLC0415
    from gradserve_server.checking.gradient_check import CheckOptions, check_gradient  # noqa: PLC0415

    traced = trace(definition, source=f"module {definition.module!r}", device="cpu:0")
    if inputs is not None:
        arrays = {name: np.asarray(array) for name, array in inputs.items()}
        traced = [op for op in traced if op.signature.fits_dtypes(arrays)]
    checks = {}
    for op in traced:
        given = None if inputs is None else op.signature.inputs_in_order(arrays, op.name)
        found = check_gradient(
            op, inputs=given, options=CheckOptions(**options), own_vjp=op.program.own_vjp, linear=op.linear
        )
        findings = "".join(f"\n  {finding.verdict}: {finding.test}: {finding.text}" for finding in found.findings)
        assert found.verdict in ("pass", "departs"), f"{op.signature.key}: {found.text}{findings}"  # noqa: S101  # it is for tests
        checks[op.signature.key] = found
    if not checks:
        raise AssertionError(f"op {definition.name!r}: inputs have the dtypes of none of its signatures")
    return checks


def server_command(*arguments: str) -> list[str]:
    """Returns the command line of a server on free ports of loopback, in this Python."""
    return [sys.executable, "-m", "gradserve_server.cli", *arguments, "--port", "0", "--metrics-port", "0"]


class ServerProcess:
    """A server in a process of its own, and its log, which is a file: that costs neither side much, and is never full."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        """Takes a process that was started with the log as its standard error, and waits until it listens."""
        self.process = process
        """The process."""
        self._log = log
        self._text = ""
        listening = self.wait_for("listening")
        self.target = f"127.0.0.1:{listening['port']}"
        """Address for clients."""
        self.metrics_url = f"http://127.0.0.1:{listening['metrics_port']}/metrics"
        """Where Prometheus would scrape it."""

    def log(self) -> str:
        """Returns the log so far; all of it once the process has ended."""
        with contextlib.suppress(FileNotFoundError):  # it is gone once ``server_process`` is over
            self._text = self._log.read_text(encoding="utf-8")
        return self._text

    def wait_for(self, event: str, timeout: float = 120.0) -> dict[str, Any]:
        """Returns the first line of the log with that event, once it is there.

        Raises:
            TimeoutError: It did not come in time, in seconds, or the server ended without it.
        """
        deadline = time.monotonic() + timeout
        while True:
            has_ended = self.process.poll() is not None or time.monotonic() > deadline
            found = self._find(event)
            if found is not None:
                return found
            if has_ended:
                raise TimeoutError(f"the server's log has no event {event!r}:\n{self.log()}")
            time.sleep(_LOOK_SECONDS)

    def _find(self, event: str) -> dict[str, Any] | None:
        whole_lines = self.log().rpartition("\n")[0].splitlines()
        records = (json.loads(line) for line in whole_lines if line.startswith("{"))
        return next((record for record in records if record.get("event") == event), None)

    def stop(self, timeout: float = 60.0) -> int:
        """Sends SIGTERM and waits, in seconds; returns the exit status."""
        self.process.terminate()
        return self.process.wait(timeout)


@contextlib.contextmanager
def server_process(
    *arguments: str, env: Mapping[str, str] | None = None, until: Literal["listening", "ready"] = "ready"
) -> Iterator[ServerProcess]:
    """Runs ``gradserve-server`` in a process of its own for as long as the context lasts.

    Args:
        arguments: Its command line, without ports.
        env: Its environment; this process's own if absent.
        until: What it has to be first: "listening", on its ports, or "ready" to answer.

    Yields:
        The server.

    Raises:
        TimeoutError: It did not get there; the text has its log.
    """
    command = server_command(*arguments)
    server = None
    with (
        tempfile.NamedTemporaryFile(prefix="gradserve-", suffix=".log") as log,
        subprocess.Popen(command, stderr=log, env=env) as process,  # noqa: S603  # our own program
    ):
        try:
            server = ServerProcess(process, Path(log.name))
            server.wait_for(until)
            yield server
            server.stop()
        finally:
            process.kill()  # does nothing to a process that has ended
            process.wait()
            if server is not None:
                server.log()
