"""A server that is asked for more than it can do: what cannot be answered in time is dropped or refused, and nothing leaks."""

import asyncio
import collections
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from gradserve import aio
from gradserve.errors import Cancelled, DeadlineExceeded, GradserveError, ResourceExhausted
from gradserve_server.testing import ServerProcess, server_process

OPS = "tests.support.ops_slow"
BOUND = 64
SLACK_SECONDS = 0.05
"""A deadline reaches the server as what is left of it, so that it is later there by the time of the way."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--max-queue-requests", str(BOUND), "--max-call-seconds", "20")
    with server_process(OPS, *options) as server:
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[aio.Client]:
    async with aio.Client(server.target) as client:
        await client.op("sleep")
        yield client


async def sleep(client: aio.Client, seconds: float, timeout: float = 30.0) -> None:
    inputs = {"seconds": np.float64(seconds), "useful_until": np.float64(time.time() + timeout)}
    await client.forward("sleep", inputs, timeout=timeout)


async def counted(client: aio.Client) -> tuple[float, float]:
    begun, lateness_seconds = (await client.forward("counted", np.float32(0))).output.tolist()
    return begun, lateness_seconds


@contextlib.contextmanager
def longest_pause() -> Iterator[list[float]]:
    """Measures the longest time for which this machine let a thread wait that wanted to run; the list then holds it."""
    found, is_over = [0.0], threading.Event()

    def watch() -> None:
        before = time.monotonic()
        while not is_over.wait(0.001):
            now = time.monotonic()
            found[0] = max(found[0], now - before)
            before = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


async def test_expired_calls_reach_no_compute_and_a_call_with_time_left_is_answered(client: aio.Client) -> None:
    begun_before, _ = await counted(client)
    ended: collections.Counter[str] = collections.Counter()

    async def call_again_and_again() -> None:
        for _ in range(5):
            try:
                await sleep(client, 0.02, timeout=0.1)
                ended["answered"] += 1
            except (DeadlineExceeded, ResourceExhausted) as error:
                ended[error.reason] += 1

    with longest_pause() as pause:
        callers = asyncio.gather(*(call_again_and_again() for _ in range(200)))
        await asyncio.sleep(0.5)
        await sleep(client, 0.0, timeout=20.0)
        await callers
    begun, lateness_seconds = await counted(client)
    assert sum(ended.values()) == 1000
    assert lateness_seconds < SLACK_SECONDS + 2 * pause[0]
    assert ended["answered"] > 0
    cut_short = begun - begun_before - 1 - ended["answered"]
    assert cut_short <= ended["DEADLINE_EXCEEDED"]
    assert ended["QUEUE_FULL"] + ended["DEADLINE_OUT_OF_REACH"] > 0, ended


async def test_queue_that_is_full_refuses_with_the_seconds_to_wait(client: aio.Client) -> None:
    for _ in range(3):
        await sleep(client, 0.05)
    busy = [asyncio.ensure_future(sleep(client, 0.03)) for _ in range(BOUND + 40)]
    ended = await asyncio.gather(*busy, return_exceptions=True)
    refused = [error for error in ended if error is not None]
    assert 0 < len(refused) <= 40
    for error in refused:
        assert isinstance(error, ResourceExhausted)
        assert error.reason == "QUEUE_FULL"
        assert f"at most {BOUND} calls" in str(error)
        assert error.retry_after_seconds is not None
        assert 0 < error.retry_after_seconds < 10


async def test_calls_cancelled_at_any_time_take_no_slot_for_good(client: aio.Client) -> None:
    rng = random.Random(7)

    async def call(number: int) -> str:
        await asyncio.sleep(rng.random() * 0.5)
        task = asyncio.ensure_future(sleep(client, rng.choice([0.0, 0.002])))
        await asyncio.sleep(rng.random() * 0.02)
        if number % 10:
            task.cancel()
        try:
            await task
        except (asyncio.CancelledError, Cancelled):
            return "cancelled"
        except GradserveError as error:
            return error.reason
        return "answered"

    ended = collections.Counter(await asyncio.gather(*(call(number) for number in range(500))))
    assert ended["cancelled"] > 100
    assert ended.keys() <= {"cancelled", "answered", "QUEUE_FULL"}, ended
    together = await asyncio.gather(*(sleep(client, 0.0) for _ in range(BOUND)), return_exceptions=True)
    assert together == [None] * BOUND


async def test_call_without_a_deadline_ends_at_the_server_s_own() -> None:
    with server_process(OPS, "--max-call-seconds", "0.3") as server:
        async with aio.Client(server.target, timeout=None) as client:
            inputs = {"seconds": np.float64(1.0), "useful_until": np.float64(0)}
            with pytest.raises(DeadlineExceeded, match=r"longer than 0\.3 s") as raised:
                await client.forward("sleep", inputs)
            assert raised.value.reason == "SERVER_DEADLINE"
