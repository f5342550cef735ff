"""The peers: other servers on the same work, each with a client of its own, in processes of their own environments."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clock import Figures
from rounds import Measure, Refused
from servers import HERE, cpu_seconds

SCRIPTS = HERE / "peers"
TF_RPC = "tf_rpc"
"""TensorFlow's own server, which runs in this environment."""
OF_OWN_ENVIRONMENTS = ("tesseract", "pytriton")
_END_SECONDS = 10


class Peer:
    """A peer's server and its client, both running."""

    def __init__(self, client: "subprocess.Popen[str]", server_pid: int) -> None:
        """Takes a client whose standard input and output are pipes, and waits until the server has answered it."""
        self._client = client
        self._server_pid = server_pid
        self._read()

    def measure_of(self, shape: tuple[int, ...], callers: int, seconds: float) -> Measure:
        """Returns what measures it.

        Args:
            shape: Shape of x and of dy.
            callers: How many callers call at once.
            seconds: For how long they call.
        """
        command = json.dumps({"shape": shape, "callers": callers, "seconds": seconds})

        async def measure() -> Figures:
            before = cpu_seconds(self._server_pid)
            figures = await asyncio.to_thread(self._ask, command)
            return {**figures, "cpu_us": 1e6 * (cpu_seconds(self._server_pid) - before) / figures["calls"]}

        return measure

    def _ask(self, command: str) -> Figures:
        assert self._client.stdin is not None  # noqa: S101  # it is a pipe
        print(command, file=self._client.stdin, flush=True)
        return self._read()

    def _read(self) -> Figures:
        assert self._client.stdout is not None  # noqa: S101  # it is a pipe
        line = self._client.stdout.readline()
        if not line:
            raise RuntimeError(f"a client has ended: {self._client.args!r}")
        answer: dict[str, float] = json.loads(line)
        if "refused" in answer:
            raise Refused(str(answer["refused"]))
        return answer


@contextlib.contextmanager
def peers(environments: Path | None) -> Iterator[dict[str, Peer]]:
    """Runs all peers that there are; yields them by name.

    Args:
        environments: Where ``peers/setup`` made its environments; None for TensorFlow's own server alone.
    """
    pythons = {TF_RPC: sys.executable}
    if environments is not None:
        for name in OF_OWN_ENVIRONMENTS:
            pythons[name] = str(environments.absolute() / name / "bin" / "python")
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(_running(name, python)) for name, python in pythons.items()}


@contextlib.contextmanager
def _running(name: str, python: str) -> Iterator[Peer]:
    port = str(_free_port())
    with tempfile.TemporaryDirectory(prefix="gradserve-peer-") as directory, contextlib.ExitStack() as stack:
        log = stack.enter_context((Path(directory) / "log").open("w+"))
        start: dict[str, Any] = {
            "cwd": directory,  # where a peer may leave what it likes
            "env": {**os.environ, "PYTHONPATH": str(HERE), "TF_CPP_MIN_LOG_LEVEL": "3"},
            "stderr": log,
        }
        server = stack.enter_context(
            _process([python, str(SCRIPTS / f"{name}_server.py"), port], stdin=subprocess.PIPE, stdout=log, **start)
        )
        command = [python, str(SCRIPTS / f"{name}_client.py"), port]
        client = stack.enter_context(_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **start))
        try:
            peer = Peer(client, server.pid)
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(f"peer {name}: {error}:\n{log.read()[-2000:]}") from None
        yield peer


@contextlib.contextmanager
def _process(command: list[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """Runs a process, and ends it together with those that it started."""
    process: subprocess.Popen[str] = subprocess.Popen(command, text=True, start_new_session=True, **options)
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
