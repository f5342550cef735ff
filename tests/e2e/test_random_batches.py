"""Random calls that run joined with others, bad, cancelled and late ones among them, against the same calls alone.

``python -m tests.support.random_batches 10000`` is the same at full size.
"""

import asyncio
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
import pytest
from tests.support.calls_of_rows import draw_calls
from tests.support.random_batches import OPS, SETTINGS, report, send_all, send_alone, storm, storm_of_equals

from gradserve.tensors import Array
from gradserve_server.plans import Plan
from gradserve_server.scheduling import joining
from gradserve_server.scheduling.joining import Share
from gradserve_server.scheduling.queue import WorkQueue
from gradserve_server.scheduling.work import Work
from gradserve_server.testing import RunningServer


@pytest.fixture(scope="module")
def joining_server(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(OPS, **SETTINGS)


@pytest.fixture(scope="module")
def deterministic_server(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(OPS, deterministic=True, **SETTINGS)


def test_calls_joined_with_others_get_what_each_gets_alone(joining_server, deterministic_server, monkeypatch) -> None:
    from_bytes, share_of_all = [], Plan.share_of_all
    monkeypatch.setattr(
        Plan, "share_of_all", lambda plan, requests: from_bytes.append(len(requests)) or share_of_all(plan, requests)
    )
    found = storm(joining_server, deterministic_server, 3 * draw_calls(400, np.random.default_rng(1)))
    assert found.shortfalls() == []
    assert sum(from_bytes) > 20  # calls of the stream
    assert found.ended["bad: OpContractError"] > 0
    assert found.ended["bad: InvalidRequest"] > 20
    assert found.ended["late: DeadlineExceeded"] > 0
    assert found.ended["cancelled: CancelledError"] > 0


def test_light_calls_joined_on_the_event_loop_get_what_each_gets_alone(
    serve, deterministic_server, monkeypatch
) -> None:
    server = serve(OPS, **{**SETTINGS, "light_call_microseconds": 10**6})
    taken, take_light = [], WorkQueue.take_light
    monkeypatch.setattr(WorkQueue, "take_light", lambda queue: taken.append(take_light(queue)) or taken[-1])
    calls = draw_calls(800, np.random.default_rng(4))
    endings = asyncio.run(send_all(server.target, calls, callers=4))
    alone = asyncio.run(send_alone(deterministic_server.target, calls))
    assert report(calls, endings, alone, []).wrong == []
    assert max(map(len, taken)) > 1
    assert sum(map(len, taken)) > 100


def test_calls_of_ops_that_move_between_lanes_get_what_each_gets_alone(
    serve, deterministic_server, monkeypatch
) -> None:
    server = serve(OPS, **{**SETTINGS, "slow_call_milliseconds": 1})
    moved, take = [], WorkQueue.take

    def recording(queue: WorkQueue, *, slow: bool = False) -> list[Work]:
        taken = take(queue, slow=slow)
        moved.extend(taken if slow else [])
        return taken

    monkeypatch.setattr(WorkQueue, "take", recording)
    calls = draw_calls(1600, np.random.default_rng(5))
    endings = asyncio.run(send_all(server.target, calls))
    alone = asyncio.run(send_alone(deterministic_server.target, calls))
    assert report(calls, endings, alone, []).wrong == []
    assert len(moved) > 20


def test_equal_calls_of_a_deterministic_server_get_equal_bits(deterministic_server) -> None:
    good = [call for call in draw_calls(30, np.random.default_rng(2)) if call.kind == "good"]
    equals = storm_of_equals(deterministic_server, good)
    assert equals.wrong == []
    assert equals.largest_batch == 1


split = joining._split


def swap_callers(shares: Sequence[Share], array: Array, axis: int | None, stack: int) -> list[Array]:
    parts = split(shares, array, axis, stack)
    alike = [(i, j) for i, a in enumerate(parts) for j, b in enumerate(parts) if i < j and a.shape == b.shape]
    for i, j in alike[:1]:
        parts[i], parts[j] = parts[j], parts[i]
    return parts


def swap_rows(shares: Sequence[Share], array: Array, axis: int | None, stack: int) -> list[Array]:
    if axis is None:
        return split(shares, array, axis, stack)
    order = np.arange(array.shape[axis])
    order[[0, -1]] = order[[-1, 0]]
    return split(shares, np.take(array, order, axis), axis, stack)


@pytest.mark.parametrize("mix_up", [swap_callers, swap_rows])
def test_rows_that_were_mixed_up_are_found(joining_server, deterministic_server, mix_up: Callable) -> None:
    calls = draw_calls(400, np.random.default_rng(3))
    with mock.patch.object(joining, "_split", mix_up):
        found = storm(joining_server, deterministic_server, calls)
    wrong = [fault for fault in found.wrong if fault.startswith("good")]
    assert len(wrong) > 4
    assert {fault.split(" of ")[1].split()[0] for fault in wrong} >= {"weigh", "layer"}
