"""Lanes: slow ops do not hold up the others, and no two calls of one op run at once."""

import asyncio
import collections
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import SCALAR, trace_one
from tests.server.queues import Hands, run, teach, work

from gradserve.errors import ResourceExhausted
from gradserve_server.scheduling.device import Device
from gradserve_server.scheduling.queue import WorkQueue
from gradserve_server.scheduling.work import Bounds, Load
from gradserve_server.testing import running_server

SLOW = {"kind": "slow call", "group": "slow"}
QUICK = {"kind": "quick call", "group": "quick"}


@pytest.fixture
def queue(clock: Hands) -> WorkQueue:
    return WorkQueue("cpu:0", Bounds(slow_seconds=1.0, max_requests=6), clock)


async def make_slow(queue: WorkQueue, clock: Hands, **load: Any) -> None:
    """Makes as many slow calls in a row as it takes, but for the last."""
    for _ in range(2):
        queue.put(work(clock, **load))
        run(queue, clock, 20.0)


async def test_op_whose_calls_turn_out_slow_leaves_the_others_with_all_that_wait(queue, clock) -> None:
    await make_slow(queue, clock, **SLOW)
    first, second, third = (work(clock, **SLOW) for _ in range(3))
    quick = work(clock, **QUICK)
    for each in (first, second, quick, third):
        queue.put(each)
    assert run(queue, clock, 20.0) == [first]
    assert [run(queue, clock), run(queue, clock, slow=True), run(queue, clock, slow=True)] == [
        [quick],
        [second],
        [third],
    ]
    later = work(clock, **SLOW)
    queue.put(later)
    assert run(queue, clock, slow=True) == [later]


async def test_op_that_is_quick_again_returns_once_none_of_its_calls_is_left_among_the_slow(queue, clock) -> None:
    await make_slow(queue, clock, **SLOW)
    queue.put(work(clock, **SLOW))
    run(queue, clock, 20.0)
    for _ in range(4):
        queue.put(work(clock, **SLOW))
    for _ in range(3):
        run(queue, clock, slow=True)
    behind = work(clock, **SLOW)
    queue.put(behind)  # one waits still
    taken = queue.take(slow=True)
    running = work(clock, **SLOW)
    queue.put(running)
    queue.finish(taken)
    assert [run(queue, clock, slow=True), run(queue, clock, slow=True)] == [[behind], [running]]
    back = work(clock, **SLOW)
    queue.put(back)
    assert run(queue, clock) == [back]


async def test_op_stays_among_the_slow_for_as_long_as_calls_of_any_kind_of_it_are_slow(queue, clock) -> None:
    teach(queue, clock, 0.1, kind="forward", group="op")
    await make_slow(queue, clock, kind="vjp", group="op")
    queue.put(work(clock, kind="vjp", group="op"))
    run(queue, clock, 20.0)
    for _ in range(9):
        forward = work(clock, kind="forward", group="op")
        queue.put(forward)
        assert run(queue, clock, 0.1, slow=True) == [forward]


async def test_hiccups_make_no_op_slow(queue, clock) -> None:
    for seconds in (20.0, 20.0, 0.1, 20.0, 20.0):
        queue.put(work(clock, **SLOW))
        run(queue, clock, seconds)
    next_one = work(clock, **SLOW)
    queue.put(next_one)
    assert run(queue, clock) == [next_one]


async def test_own_work_of_the_server_says_nothing_of_an_op(queue, clock) -> None:
    teach(queue, clock, 20.0, group="op")
    call = work(clock, kind="call", group="op")
    queue.put(call)
    assert run(queue, clock) == [call]


async def test_both_lanes_together_hold_no_more_than_may_wait(queue, clock) -> None:
    await make_slow(queue, clock, **SLOW)
    for _ in range(6):
        queue.put(work(clock, size_bytes=10, **SLOW))
    run(queue, clock, 20.0)
    queue.put(work(clock, size_bytes=10, **QUICK))
    assert (queue.requests, queue.bytes) == (6, 60)
    for load in (SLOW, QUICK):
        with pytest.raises(ResourceExhausted, match="at most 6 calls, got 6 that wait"):
            queue.put(work(clock, **load))


async def test_call_that_moved_and_is_dropped_leaves_its_place_at_once(queue, clock) -> None:
    await make_slow(queue, clock, **SLOW)
    works = [work(clock, size_bytes=10, **SLOW) for _ in range(3)]
    for each in works:
        queue.put(each)
    run(queue, clock, 20.0)
    queue.drop(works[1])
    assert (queue.requests, queue.bytes) == (1, 10)
    assert run(queue, clock, slow=True) == [works[2]]


async def test_call_is_refused_for_what_waits_in_its_own_lane_alone(queue, clock) -> None:
    await make_slow(queue, clock, **SLOW)
    queue.put(work(clock, **SLOW))
    run(queue, clock, 20.0)
    queue.put(work(clock, **SLOW))
    queue.put(work(clock, seconds=0.1, **QUICK))
    with pytest.raises(ResourceExhausted) as raised:
        queue.put(work(clock, seconds=0.1, **SLOW))
    assert raised.value.reason == "DEADLINE_OUT_OF_REACH"


async def test_queue_that_is_closed_hands_out_what_waits_in_both_lanes(queue, clock) -> None:
    await make_slow(queue, clock, **SLOW)
    queue.put(work(clock, **SLOW))
    run(queue, clock, 20.0)
    slow, quick = work(clock, **SLOW), work(clock, **QUICK)
    queue.put(slow)
    queue.put(quick)
    queue.close()
    assert [run(queue, clock), run(queue, clock, slow=True)] == [[quick], [slow]]
    assert [queue.take(), queue.take(slow=True)] == [[], []]


async def test_work_that_waits_when_the_queue_is_closed_stays_where_it_is_taken(queue, clock) -> None:
    await make_slow(queue, clock, **SLOW)
    first, second = work(clock, **SLOW), work(clock, **SLOW)
    queue.put(first)
    queue.put(second)
    queue.close()
    assert [run(queue, clock, 20.0), run(queue, clock)] == [[first], [second]]


def test_ops_that_may_share_what_changes_never_run_at_once() -> None:
    weight = tf.Variable(2.0, trainable=False)
    sharing = [
        trace_one(lambda x: x + weight.assign_add(1.0), inputs={"x": SCALAR}, stateful=True),
        trace_one(lambda x: x * weight, inputs={"x": SCALAR}),
        trace_one(
            lambda x: tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), []),
            inputs={"x": SCALAR},
            gradient="unchecked",
        ),
    ]
    assert len({op.group for op in sharing}) == 1
    alone = trace_one(lambda x: x * x, inputs={"x": SCALAR})
    assert alone.group not in {op.group for op in sharing}


@pytest.mark.parametrize("seed", range(3))
async def test_calls_of_one_op_never_run_at_once_and_those_of_a_slow_and_a_quick_op_do(seed: int) -> None:
    rng = random.Random(seed)
    device = Device("cpu:0", time.perf_counter, Bounds(slow_seconds=0.002, light_seconds=0.001))
    running: collections.Counter[str] = collections.Counter()
    lock, clashes, beside = threading.Lock(), [], []

    def call(op: str, seconds: float) -> None:
        with lock:
            running[op] += 1
            clashes.extend(op for op, count in running.items() if count > 1)
            beside.append(sum(running.values()))
        time.sleep(seconds)
        with lock:
            running[op] -= 1

    works = []
    for _ in range(400):
        op = rng.choice("abcd")
        seconds = rng.choice([0.0, 0.0, 0.0, 0.03]) if op == "a" else rng.choice([0.0, 0.0005, 0.004])
        load = Load(group=op, kind=op, is_bounded=rng.random() < 0.5)
        works.append(device.submit(lambda op=op, seconds=seconds: call(op, seconds), load))
        if rng.random() < 0.1:
            works[-1].future.cancel()
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.01)
    await asyncio.gather(*(one.future for one in works), return_exceptions=True)
    await asyncio.to_thread(device.close, 10.0)
    assert clashes == []
    assert max(beside) == 2


@pytest.mark.parametrize(("slow_call_milliseconds", "is_held_up"), [(10, False), (0, True)])
def test_slow_op_holds_up_the_others_only_where_it_has_no_lane(slow_call_milliseconds: int, is_held_up: bool) -> None:
    module = str(Path(__file__).parents[2] / "benchmarks" / "ops_busy.py")
    with (
        running_server(module, slow_call_milliseconds=slow_call_milliseconds) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        x = np.float32(1)
        client.forward("quick", x)
        for _ in range(3):
            client.forward("busy", np.int32(2000))  # the server learns that it is slow
        busy = pool.submit(client.forward, "busy", np.int32(20_000))
        time.sleep(0.1)
        for _ in range(5):
            client.forward("quick", x)
        assert busy.done() == is_held_up
        assert np.isfinite(busy.result().output)
