"""Public case B18: clients in other processes, and processes that ops start."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.support import child_calls
from tests.support.processes import server_process

from gradserve import Client, aio
from gradserve_server.testing import RunningServer

HANG_SECONDS = 60


def test_B18_pickled_client_works_in_a_spawned_process(example_server: RunningServer, client: Client) -> None:
    client.vjp("square_with_grad", 3.0)  # so that it has a connection, which must not be pickled
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        blocking = processes.submit(child_calls.square, client, 3.0)
        asynchronous = processes.submit(child_calls.square_async, aio.Client(example_server.target), 4.0)
        assert blocking.result(HANG_SECONDS) == (9.0, 6.0)
        assert asynchronous.result(HANG_SECONDS) == (16.0, 8.0)


@pytest.mark.parametrize(("kind", "in_child"), [("blocking", "(16.0, 8.0)"), ("asyncio", "FORKED")])
def test_B18_client_connects_anew_after_a_fork_or_says_that_it_cannot(
    example_server: RunningServer, kind: str, in_child: str
) -> None:
    script = [sys.executable, child_calls.__file__, kind, example_server.target]
    ran = subprocess.run(script, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert ran.stdout.splitlines() == ["before (9.0, 6.0)", f"child {in_child}", "status 0", "after (25.0, 10.0)"], ran


def test_B18_process_that_an_op_starts_is_spawned() -> None:
    ops = Path(__file__).with_name("ops_b_processes.py")
    with server_process(str(ops)) as server, Client(server.target) as client:
        outputs = client.forward("added_elsewhere", np.float32([1, 2, 3]), timeout=HANG_SECONDS).outputs
    assert outputs["start_method"][()] == b"spawn"
    assert outputs["total"] == 6.0
