"""The bounds of a queue, deadlines in it, and what callers are told; with a clock that the tests turn."""

import asyncio
import math
import random
import threading
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from tests.server.queues import Hands, run, teach, work

from gradserve.errors import DeadlineExceeded, ResourceExhausted
from gradserve_server.scheduling.device import Device
from gradserve_server.scheduling.estimates import Estimates
from gradserve_server.scheduling.lane import Lane
from gradserve_server.scheduling.queue import WorkQueue
from gradserve_server.scheduling.work import Bounds, Load


@pytest.fixture
def queue(clock: Hands) -> WorkQueue:
    return WorkQueue("cpu:0", Bounds(max_requests=3, max_bytes=100), clock)


async def test_queue_refuses_one_call_more_than_its_bound_and_names_both_figures(queue, clock) -> None:
    for _ in range(3):
        queue.put(work(clock))
    with pytest.raises(ResourceExhausted, match="wanted at most 3 calls, got 3 that wait and 1 more") as raised:
        queue.put(work(clock))
    assert (raised.value.reason, raised.value.facts["wanted"], raised.value.facts["got"]) == ("QUEUE_FULL", "3", "4")
    queue.take()
    queue.put(work(clock))
    assert queue.requests == 3


async def test_queue_refuses_one_byte_more_than_its_bound(queue, clock) -> None:
    queue.put(work(clock, size_bytes=60))
    with pytest.raises(ResourceExhausted, match="at most 100 bytes, got 60 that wait and 41 more"):
        queue.put(work(clock, size_bytes=41))
    queue.put(work(clock, size_bytes=40))
    assert (queue.requests, queue.bytes) == (2, 100)


async def test_call_that_is_dropped_leaves_its_place_at_once(queue, clock) -> None:
    works = [work(clock, size_bytes=30) for _ in range(3)]
    for each in works:
        queue.put(each)
    queue.drop(works[1])
    assert (queue.requests, queue.bytes, works[1].run) == (2, 60, None)
    assert [run(queue, clock), run(queue, clock)] == [[works[0]], [works[2]]]
    queue.drop(works[0])  # it has begun
    assert (queue.requests, queue.bytes) == (0, 0)


async def test_call_whose_deadline_passed_in_the_queue_is_told_and_never_taken(queue, clock) -> None:
    late, in_time = work(clock, seconds=1.0), work(clock, seconds=9.0)
    queue.put(late)
    queue.put(in_time)
    clock.seconds += 1.0
    assert queue.take() == [in_time]
    with pytest.raises(DeadlineExceeded, match="before the call was begun, after 1 s") as raised:
        await late.future
    assert raised.value.reason == "DEADLINE_PASSED_IN_QUEUE"


async def test_call_that_the_queue_would_not_reach_in_time_is_refused_at_once(queue, clock) -> None:
    teach(queue, clock, 2.0, kind="slow")
    queue.put(work(clock, kind="slow"))
    queue.put(work(clock, kind="slow"))
    with pytest.raises(ResourceExhausted, match="2 calls wait there for about 4 s") as raised:
        queue.put(work(clock, seconds=1.0))
    assert raised.value.reason == "DEADLINE_OUT_OF_REACH"
    assert raised.value.retry_after_seconds == pytest.approx(3.0, rel=0.01)
    queue.put(work(clock, seconds=5.0))


async def test_calls_that_can_join_one_that_waits_are_not_expected_to_take_any_longer(clock) -> None:
    queue = WorkQueue("cpu:0", Bounds(max_joined=4, max_wait_seconds=0.0), clock)
    teach(queue, clock, 2.0, kind="op")
    share = SimpleNamespace(key="same")
    for number in range(9):
        queue.put(work(clock, kind="op", share=share))
        assert queue.expected_wait_seconds() == pytest.approx(2.0 * (number // 4 + 1), rel=0.01)
    assert [len(run(queue, clock)), len(run(queue, clock)), len(queue.take())] == [4, 4, 1]
    assert (queue.requests, queue.expected_wait_seconds()) == (0, pytest.approx(2.0, rel=0.01))


async def test_oldest_call_waits_for_others_only_where_several_callers_were_at_work(clock) -> None:
    queue = WorkQueue("cpu:0", Bounds(max_wait_seconds=5.0), clock)
    share = SimpleNamespace(key="same")
    queue.put(work(clock, share=share))
    assert len(run(queue, clock)) == 1  # alone: at once
    for _ in range(3):
        queue.put(work(clock, share=share))
    assert len(run(queue, clock)) == 3
    first = work(clock, share=share)
    queue.put(first)
    taking = asyncio.ensure_future(asyncio.to_thread(queue.take))
    await asyncio.sleep(0.05)
    assert not taking.done()
    for _ in range(2):
        queue.put(work(clock, share=share))
    assert len(await taking) == 3  # as many as were at work before


@pytest.mark.parametrize(
    ("pause", "joined"),
    [
        pytest.param(1.4e-3, 6, id="until-the-oldest-waited-long"),
        pytest.param(2.1e-3, 1, id="until-none-came-for-a-while"),
    ],
)
async def test_oldest_call_waits_while_others_keep_coming_and_not_forever(clock, pause: float, joined: int) -> None:
    lane = Lane(Bounds(max_wait_seconds=8e-3), clock, Estimates())
    share = SimpleNamespace(key="same")
    for _ in range(9):
        lane.add(work(clock, share=share))
    assert len(lane.take_oldest()) == 9
    lane.add(work(clock, share=share))
    clock.seconds += pause
    while lane.wait_seconds():
        lane.add(work(clock, share=share))
        clock.seconds += pause
    assert len(lane.take_oldest()) == joined


async def test_oldest_call_waits_no_longer_once_as_many_wait_as_may_join_it(clock) -> None:
    queue = WorkQueue("cpu:0", Bounds(max_wait_seconds=5.0, max_joined=2), clock)
    one, other = SimpleNamespace(key="one"), SimpleNamespace(key="other")
    for _ in range(3):
        for share in (one, other):
            queue.put(work(clock, share=share))
    clock.seconds += 9.0
    while queue.requests:
        run(queue, clock)  # 6 were at work at once
    for share in (one, other):
        queue.put(work(clock, share=share))
    taking = asyncio.ensure_future(asyncio.to_thread(queue.take))
    await asyncio.sleep(0.05)
    assert not taking.done()  # 2 calls, of two kinds
    queue.put(work(clock, share=one))
    assert len(await taking) == 2


async def test_call_that_comes_after_its_deadline_is_told_so(queue, clock) -> None:
    with pytest.raises(DeadlineExceeded):
        queue.put(work(clock, seconds=0.0))
    assert queue.requests == 0


async def test_what_runs_counts_for_what_is_left_of_it(queue, clock) -> None:
    teach(queue, clock, 2.0, kind="slow")
    queue.put(work(clock, kind="slow"))
    queue.take()
    clock.seconds += 1.5
    assert queue.expected_wait_seconds() == pytest.approx(0.5, rel=0.01)
    clock.seconds += 9.0
    assert queue.expected_wait_seconds() == 0.0


async def test_queue_that_is_closed_hands_out_what_waits_and_then_nothing(queue, clock) -> None:
    last = work(clock)
    queue.put(last)
    queue.close()
    assert (run(queue, clock), run(queue, clock), run(queue, clock)) == ([last], [], [])


def test_estimate_of_one_slow_call_is_small_and_soon_forgotten() -> None:
    estimates = Estimates()
    assert estimates.of("a") == 0.0
    estimates.add("a", 10.0)
    assert estimates.of("a") == 2.0
    for _ in range(10):
        estimates.add("a", 0.01)
    assert estimates.of("a") < 0.02


@pytest.fixture
async def device() -> AsyncIterator[Device]:
    device = Device("cpu:0", time.perf_counter, Bounds(max_requests=64, max_bytes=64_000))
    yield device
    await asyncio.to_thread(device.close, 10.0)


async def storm(device: Device, rng: random.Random) -> tuple[int, int]:
    """Submits calls, of which some end early, in every state; returns the most that waited, and how many ran."""
    ran, most, works = [], 0, []
    for number in range(500):
        deadline = time.perf_counter() + rng.choice([0.0005, math.inf])
        try:
            one = device.submit(
                lambda number=number: (ran.append(number), time.sleep(rng.random() * 1e-3)),
                Load(size_bytes=rng.randrange(1000), deadline=deadline),
            )
        except (ResourceExhausted, DeadlineExceeded):  # this thread itself may have been kept waiting that long
            await asyncio.sleep(0.002)
            continue
        works.append(one)
        most = max(most, device.queue.requests)
        if rng.random() < 0.5:
            rng.choice(works).future.cancel()
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 1e-3)
    await asyncio.gather(*(one.future for one in works), return_exceptions=True)
    await asyncio.sleep(0)
    return most, len(ran)


@pytest.mark.parametrize("seed", range(3))
async def test_random_ends_of_calls_leave_no_slot_taken_and_no_bound_passed(device: Device, seed: int) -> None:
    most, ran = await storm(device, random.Random(seed))
    assert 1 < most <= 64
    assert ran > 50
    assert (device.queue.requests, device.queue.bytes, device.queue.expected_wait_seconds()) == (0, 0, 0.0)
    assert await device.submit(lambda: "next").future == "next"


@pytest.mark.parametrize("leaks", [False, True])
async def test_slot_that_a_cancelled_call_keeps_would_be_seen(device: Device, monkeypatch, leaks: bool) -> None:
    if leaks:
        monkeypatch.setattr(device.queue, "drop", lambda _: None)
    begun, gate = threading.Event(), threading.Event()
    device.submit(lambda: (begun.set(), gate.wait()))
    await asyncio.to_thread(begun.wait)
    works = [device.submit(lambda: None, Load(size_bytes=10)) for _ in range(5)]
    for one in works:
        one.future.cancel()
    await asyncio.sleep(0)
    held = (device.queue.requests, device.queue.bytes)
    gate.set()
    assert held == ((5, 50) if leaks else (0, 0))
