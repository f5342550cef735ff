"""The queue of a device: first in, first out, and what nobody waits for any more never runs."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest

from gradserve import aio
from gradserve.errors import DeadlineExceeded
from gradserve_server.scheduling.device import Device
from gradserve_server.testing import RunningServer


@pytest.fixture
async def device() -> AsyncIterator[Device]:
    device = Device("cpu:0", clock=time.perf_counter)
    yield device
    await asyncio.to_thread(device.close, 10.0)


@pytest.fixture
async def client(behaviour_server: RunningServer) -> AsyncIterator[aio.Client]:
    async with aio.Client(behaviour_server.target) as client:
        yield client


async def test_device_runs_work_in_the_order_in_which_it_came(device: Device) -> None:
    ran: list[int] = []
    works = [device.submit(lambda: time.sleep(0.05)), *(device.submit(lambda n=n: ran.append(n)) for n in range(50))]
    await asyncio.gather(*(work.future for work in works))
    assert ran == list(range(50))


async def test_device_never_runs_queued_work_that_was_cancelled(device: Device) -> None:
    ran: list[str] = []
    busy = device.submit(lambda: time.sleep(0.1))
    dropped, kept = device.submit(lambda: ran.append("dropped")), device.submit(lambda: ran.append("kept"))
    dropped.future.cancel()
    await asyncio.gather(busy.future, kept.future)
    assert ran == ["kept"]


async def test_device_finishes_work_that_was_cancelled_after_it_began(device: Device) -> None:
    ran: list[str] = []
    begun = device.submit(lambda: (time.sleep(0.1), ran.append("begun")))
    await asyncio.sleep(0.03)
    begun.future.cancel()
    assert await device.submit(lambda: list(ran)).future == ["begun"]


async def test_device_hands_an_error_to_its_caller_and_goes_on(device: Device) -> None:
    with pytest.raises(ZeroDivisionError):
        await device.submit(lambda: 1 // 0).future
    assert await device.submit(lambda: "next").future == "next"


async def test_work_tells_how_long_it_waited_and_ran(device: Device) -> None:
    first, second = (device.submit(lambda: time.sleep(0.1)) for _ in range(2))
    await asyncio.gather(first.future, second.future)
    assert second.queue_seconds >= 0.1  # it waited for the first
    assert first.compute_seconds >= 0.1
    assert second.compute_seconds >= 0.1


async def test_device_close_finishes_what_is_queued() -> None:
    device, ran = Device("cpu:0", clock=time.perf_counter), []
    works = [device.submit(lambda n=n: (time.sleep(0.02), ran.append(n))) for n in range(3)]
    await asyncio.to_thread(device.close, 10.0)
    await asyncio.gather(*(work.future for work in works))
    assert ran == [0, 1, 2]


async def sleep(client: aio.Client, seconds: float, number: int, timeout: float = 30.0) -> None:
    inputs = {"seconds": np.float32(seconds), "number": np.int32(number)}
    await client.forward("sleep", inputs, timeout=timeout)


async def record(client: aio.Client, since: int) -> list[int]:
    return (await client.forward("record", {"since": np.int32(since)})).output.tolist()


async def test_calls_run_in_the_order_in_which_they_came(client: aio.Client) -> None:
    before = len(await record(client, 0))
    calls = []
    for number in range(5):
        calls.append(asyncio.create_task(sleep(client, 0.3 if number == 0 else 0.0, number)))
        await asyncio.sleep(0.04)
    await asyncio.gather(*calls)
    assert await record(client, before) == [0, 1, 2, 3, 4]


async def test_call_cancelled_while_queued_never_runs(client: aio.Client) -> None:
    before = len(await record(client, 0))
    busy = asyncio.create_task(sleep(client, 0.5, 1))
    await asyncio.sleep(0.1)
    queued = asyncio.create_task(sleep(client, 0.0, 2))
    await asyncio.sleep(0.1)
    queued.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await queued
    await asyncio.gather(busy, sleep(client, 0.0, 3))
    assert await record(client, before) == [1, 3]


async def test_call_whose_deadline_passed_while_queued_never_runs(client: aio.Client) -> None:
    before = len(await record(client, 0))
    busy = asyncio.create_task(sleep(client, 0.6, 1))
    await asyncio.sleep(0.1)
    with pytest.raises(DeadlineExceeded):
        await sleep(client, 0.0, 2, timeout=0.1)
    await asyncio.gather(busy, sleep(client, 0.0, 3))
    assert await record(client, before) == [1, 3]


async def test_server_answers_what_needs_no_device_while_the_device_is_busy(client: aio.Client) -> None:
    busy = asyncio.create_task(sleep(client, 0.5, 1))
    await asyncio.sleep(0.1)
    assert (await client.op("square")).name == "square"
    assert not busy.done()
    await busy


async def test_work_that_was_cancelled_while_queued_lets_go_of_its_tensors(device: Device) -> None:
    busy, dropped = device.submit(lambda: time.sleep(0.1)), device.submit(lambda: "never")
    dropped.future.cancel()
    await asyncio.sleep(0)
    assert dropped.run is None
    await busy.future
    assert await device.submit(lambda: "next").future == "next"
