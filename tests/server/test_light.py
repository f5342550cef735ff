"""Light work: the event loop runs calls that were quick of late and cannot take much longer; the thread runs all others."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gradserve.errors import DeadlineExceeded
from gradserve_server.scheduling.device import Device
from gradserve_server.scheduling.estimates import Estimates
from gradserve_server.scheduling.gathering import Gathering
from gradserve_server.scheduling.work import Bounds, Load

LIGHT_SECONDS = 0.5
"""Far more than what these tests call quick takes on a busy machine."""
LIGHT = {"kind": "light", "is_bounded": True}


@pytest.fixture
async def device() -> AsyncIterator[Device]:
    device = Device("cpu:0", time.perf_counter, Bounds(light_seconds=LIGHT_SECONDS))
    yield device
    await asyncio.to_thread(device.close, 10.0)


async def runs_here(device: Device, **load: Any) -> bool:
    """Whether the second of two equal calls runs on the event loop."""
    for _ in range(2):
        ran_on = await device.submit(threading.current_thread, Load(**load)).future
        await asyncio.to_thread(time.sleep, 0.02)  # the thread falls asleep again
    return ran_on is threading.current_thread()


async def test_call_that_was_quick_runs_on_the_event_loop(device: Device) -> None:
    assert await runs_here(device, **LIGHT)


@pytest.mark.parametrize("changed", [{"is_bounded": False}, {"size_bytes": 2**14 + 1}], ids=["unbounded", "large"])
async def test_call_that_may_take_long_runs_on_the_thread(device: Device, changed) -> None:
    assert not await runs_here(device, **{**LIGHT, **changed})


async def test_first_call_of_a_kind_runs_on_the_thread(device: Device) -> None:
    assert await device.submit(threading.current_thread, Load(**LIGHT)).future is not threading.current_thread()


async def test_no_call_is_light_where_none_may_be() -> None:
    device = Device("cpu:0", time.perf_counter, Bounds(light_seconds=0.0))
    assert not await runs_here(device, **LIGHT)
    await asyncio.to_thread(device.close, 10.0)


async def test_light_call_waits_for_its_turn_behind_heavy_ones(device: Device) -> None:
    assert await runs_here(device, **LIGHT)
    ran: list[str] = []
    heavy = device.submit(lambda: (time.sleep(0.1), ran.append("heavy")))
    light = device.submit(lambda: ran.append("light"), Load(**LIGHT))
    await asyncio.gather(heavy.future, light.future)
    assert ran == ["heavy", "light"]


async def test_heavy_call_behind_light_ones_runs_on_the_thread(device: Device) -> None:
    assert await runs_here(device, **LIGHT)
    loads = [Load(**LIGHT), Load(), Load(**LIGHT)]
    works = [device.submit(threading.current_thread, load) for load in loads]
    ran_on = await asyncio.gather(*(work.future for work in works))
    assert ran_on[0] is threading.current_thread()
    assert ran_on[1] is not threading.current_thread()


async def test_light_call_that_fails_hands_its_error_to_its_caller(device: Device) -> None:
    assert await runs_here(device, **LIGHT)
    with pytest.raises(ZeroDivisionError):
        await device.submit(lambda: 1 // 0, Load(**LIGHT)).future
    assert await device.submit(lambda: "next", Load(**LIGHT)).future == "next"


async def test_light_call_that_is_cancelled_before_its_turn_never_runs(device: Device) -> None:
    assert await runs_here(device, **LIGHT)
    ran: list[str] = []
    dropped, kept = (device.submit(lambda name=name: ran.append(name), Load(**LIGHT)) for name in ("dropped", "kept"))
    dropped.future.cancel()
    await kept.future
    assert ran == ["kept"]
    assert (device.queue.requests, device.queue.bytes) == (0, 0)


async def test_light_call_whose_deadline_passed_before_its_turn_never_runs(device: Device) -> None:
    assert await runs_here(device, **LIGHT)
    ran: list[str] = []
    late = device.submit(lambda: ran.append("late"), Load(**LIGHT, deadline=time.perf_counter() + 0.01))
    time.sleep(0.02)  # noqa: ASYNC251  # the event loop is held up
    with pytest.raises(DeadlineExceeded):
        await late.future
    assert ran == []


async def test_close_runs_light_calls_whose_turn_has_not_come(device: Device) -> None:
    assert await runs_here(device, **LIGHT)
    work = device.submit(lambda: "done", Load(**LIGHT))
    device.close(10.0)
    assert await work.future == "done"


def test_light_calls_of_an_event_loop_that_is_over_do_not_keep_others_waiting() -> None:
    device = Device("cpu:0", time.perf_counter, Bounds(light_seconds=LIGHT_SECONDS))
    assert asyncio.run(runs_here(device, **LIGHT))

    async def leave() -> None:
        device.submit(lambda: None, Load(**LIGHT))

    asyncio.run(leave())
    assert asyncio.run(runs_here(device, **LIGHT))
    device.close(10.0)


async def test_random_calls_of_both_kinds_are_all_answered_and_in_order(device: Device) -> None:
    ran: list[int] = []
    works = []
    for number in range(600):
        heavy = number % 7 == 3
        load = Load(kind="heavy") if heavy else Load(**LIGHT)
        works.append(device.submit(lambda n=number: ran.append(n), load))
        if number % 5 == 0:
            await asyncio.sleep(0)
        if number % 50 == 0:
            await asyncio.sleep(0.005)
    await asyncio.wait_for(asyncio.gather(*(work.future for work in works)), 30)
    assert ran == list(range(600))


def test_kind_of_which_one_call_was_far_from_light_is_not_light_for_a_while() -> None:
    estimates = Estimates(light_seconds=1.0)
    assert not estimates.is_light("a")
    estimates.add("a", 0.5)
    assert estimates.is_light("a")
    estimates.add("a", 2.0)
    assert estimates.is_light("a")  # on the whole it is
    estimates.add("a", 11.0)
    lights = []
    for _ in range(70):
        estimates.add("a", 0.1)
        lights.append(estimates.is_light("a"))
    assert lights == [False] * 63 + [True] * 7


def test_kind_that_takes_long_is_not_light() -> None:
    estimates = Estimates(light_seconds=1.0)
    for _ in range(200):
        estimates.add("a", 2.0)
    assert not estimates.is_light("a")


def test_caller_that_is_alone_is_never_kept_waiting() -> None:
    gathering = Gathering()
    for _ in range(300):
        assert gathering.wanted == 1
        gathering.took(1)


def test_as_many_calls_are_waited_for_as_came_of_late_and_sometimes_twice_as_many() -> None:
    gathering = Gathering()
    wanted = []
    for _ in range(40):
        gathering.took(3)
        wanted.append(gathering.wanted)
    assert set(wanted) == {3, 6}
    assert 0 < wanted.count(6) < 10


def test_callers_that_went_are_forgotten() -> None:
    gathering = Gathering()
    gathering.took(50)
    wanted = []
    for _ in range(100):
        gathering.took(1)
        wanted.append(gathering.wanted)
    assert wanted[0] == 45
    assert wanted[-1] == 1
