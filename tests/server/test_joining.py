"""Joined calls: every caller gets the rows that it would get alone, whoever else is in the batch, and its own errors."""

import asyncio
import collections
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.evaluators import call
from tests.server.helpers import floats, one
from tests.server.joinable_ops import OPS

from gradserve.errors import GradserveError, InvalidRequest
from gradserve_server.evaluation import Evaluator
from gradserve_server.ops import Op
from gradserve_server.registry import Registry
from gradserve_server.rows import Limits
from gradserve_server.scheduling import device as device_module
from gradserve_server.scheduling import joining
from gradserve_server.scheduling.device import Device
from gradserve_server.scheduling.joining import Share, backward_call, forward_call, run_together, share_of
from gradserve_server.scheduling.work import Bounds
from gradserve_server.testing import running_server


def results_of(share: Share) -> list[np.ndarray]:
    outputs, gradients = share.call.run(share.inputs, share.output_gradients)
    return [*outputs, *gradients]


def shares_of(op: Op, calls: Sequence[tuple[Sequence[Any], Sequence[Any]]], wanted: bool = True) -> list[Share | None]:
    asked = [wanted and axis is not None for axis in op.layout.inputs]
    return [share_of(op.layout, backward_call(op), inputs, upstream, asked) for inputs, upstream in calls]


def matrix(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)


CALLS = {
    "flat": [([floats(*range(5))], [one()]), ([matrix(2)], [matrix(2, 1)]), ([np.float32(3.0)[...]], [one()])],
    "product": [([matrix(2), matrix(2, 1)], [one()]), ([floats(1), floats(2)], [floats(3)])],
    "rows": [([matrix(n, n)], [matrix(n, 9 + n)]) for n in (1, 4, 2)],
    "columns": [([matrix(n, n).T], [matrix(n, 9 + n).T]) for n in (3, 1)],
    "shared": [([matrix(n), np.float32(2)[...]], [matrix(n, 5), np.ones(n, np.float32)]) for n in (2, 3)],
}


@pytest.mark.parametrize("name", CALLS)
def test_joined_calls_get_what_each_gets_alone(name: str) -> None:
    shares = [share for share in shares_of(OPS[name], CALLS[name]) if share is not None]
    assert len({share.key for share in shares}) == 1
    for share, (outputs, gradients) in zip(shares, run_together(shares), strict=True):
        alone = results_of(share)
        together = [*outputs, *gradients]
        rows = [i for i, axis in enumerate([*share.layout.outputs, *share.layout.inputs]) if axis is not None]
        for i in rows:
            assert together[i].shape == alone[i].shape
            np.testing.assert_allclose(together[i], alone[i], rtol=1e-6, atol=1e-6)


def test_forward_calls_are_joined_too_and_never_with_backward_ones() -> None:
    op = OPS["flat"]
    shares = [share_of(op.layout, forward_call(op), [floats(*values)], [], [False]) for values in ([1, 2], [3])]
    assert [outputs[0].tolist() for outputs, _ in run_together(shares)] == [[1, 4], [9]]
    (backward,) = shares_of(op, [([floats(1)], [one()])])
    assert backward.key != shares[0].key


def test_calls_that_cannot_be_joined_have_no_share_or_another_key() -> None:
    (of_two, of_three) = shares_of(
        OPS["shared"], [([matrix(2), np.float32(n)[...]], [matrix(2), np.ones(2, np.float32)]) for n in (2, 3)]
    )
    assert of_two.key != of_three.key  # another weight
    op = OPS["shared"]
    inputs, upstream = [matrix(2), np.float32(2)[...]], [matrix(2), np.ones(2, np.float32)]
    assert share_of(op.layout, backward_call(op), inputs, upstream, [True, True]) is None  # a sum over all rows
    assert shares_of(OPS["rows"], [([matrix(2)], [matrix(3)])]) == [None]  # dy of other rows
    assert shares_of(OPS["rows"], [([matrix(0)], [matrix(0)])]) == [None]
    assert shares_of(OPS["flat"], [([matrix(2)], [floats(1)])]) == [None]
    assert shares_of(OPS["product"], [([matrix(2), floats(1)], [one()])]) == [None]  # it would broadcast
    assert shares_of(OPS["flat"], [([np.ones(20_000, np.float32)], [one()])]) == [None]  # large
    (broad, own) = shares_of(OPS["rows"], [([matrix(2)], [one()]), ([matrix(2)], [matrix(2)])])
    assert broad.key != own.key


@pytest.fixture
async def device() -> AsyncIterator[Device]:
    device = Device("cpu:0", time.perf_counter, Bounds(max_requests=10_000))
    yield device
    await asyncio.to_thread(device.close, 10.0)


@pytest.fixture
def batches(monkeypatch) -> list[list[Share]]:
    """The batches that ran."""
    seen: list[list[Share]] = []

    def run(shares: Sequence[Share]) -> Any:
        seen.append(list(shares))
        return run_together(shares)

    monkeypatch.setattr(device_module, "run_together", run)
    return seen


@pytest.fixture
def evaluator(device: Device) -> Evaluator:
    limits = Limits(max_rows=64, max_response_bytes=2**20)
    return Evaluator(Registry(OPS.values()), lambda _, *work: device.submit(*work), limits)


async def hold(device: Device) -> None:
    """Lets calls gather for a while."""
    device.submit(lambda: time.sleep(0.05))
    await asyncio.sleep(0.01)


async def test_call_that_fails_fails_alone_and_its_neighbours_are_answered(evaluator, device, batches) -> None:
    await hold(device)
    good = [call(evaluator, "vjp", "positive", {"x": floats(1 + n, 2)}) for n in range(5)]
    bad = call(evaluator, "vjp", "positive", {"x": floats(1, -1)})
    results = await asyncio.gather(*good[:2], bad, *good[2:], return_exceptions=True)
    assert isinstance(results.pop(2), InvalidRequest)
    assert [len(batch) for batch in batches] == [6]
    for n, result in enumerate(results):
        np.testing.assert_allclose(result.input_gradients["x"].array, 1 / floats(1 + n, 2))


async def test_cancelled_call_takes_only_its_own_rows_out(evaluator, device, batches) -> None:
    await hold(device)
    tasks = [asyncio.ensure_future(call(evaluator, "vjp", "flat", {"x": floats(n)})) for n in range(4)]
    await asyncio.sleep(0.005)
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results.pop(1), asyncio.CancelledError)
    assert [result.outputs["output"].tolist() for result in results] == [[0.0], [4.0], [9.0]]
    assert [len(batch) for batch in batches] == [3]


@pytest.mark.parametrize("most", [1, 4])
async def test_no_more_calls_are_joined_than_may_be(batches, most: int) -> None:
    device = Device("cpu:0", time.perf_counter, Bounds(max_joined=most))
    limits = Limits(max_rows=64, max_response_bytes=2**20)
    evaluator = Evaluator(Registry(OPS.values()), lambda _, *work: device.submit(*work), limits)
    await hold(device)
    await asyncio.gather(*(call(evaluator, "vjp", "rows", {"x": matrix(1, n)}) for n in range(40)))
    assert max(map(len, batches), default=1) == most
    device.close(10.0)


def random_call(rng: random.Random) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]:
    name = rng.choice(["flat", "product", "rows", "columns"])
    numbers = np.random.default_rng(rng.randrange(2**32))
    shape = {"rows": (rng.randint(1, 4), 3), "columns": (3, rng.randint(1, 4))}.get(
        name, rng.choice([(), (3,), (2, 2), (1, 5)])
    )
    inputs = {key: numbers.standard_normal(shape).astype(np.float32) for key in OPS[name].signature.inputs}
    return name, inputs, {"output": numbers.standard_normal(shape).astype(np.float32)}


async def storm(evaluator: Evaluator, device: Device, rng: random.Random, count: int) -> collections.Counter[str]:
    """Makes calls of all ops and shapes, bad, cancelled and late ones among them; returns how they ended."""
    ended: collections.Counter[str] = collections.Counter()

    async def make_call(number: int) -> None:
        await asyncio.sleep(rng.random() * count * 2e-4)
        name, inputs, upstream = random_call(rng)
        kind = rng.choices(["good", "bad", "cancelled", "late"], [85, 5, 5, 5])[0]
        if kind == "bad":
            upstream["output"] = np.ones((7, 7, 7), np.float32)
        deadline = time.perf_counter() + 0.002 if kind == "late" else None
        task = asyncio.ensure_future(call(evaluator, "vjp", name, inputs, output_gradients=upstream, deadline=deadline))
        if kind == "cancelled":
            await asyncio.sleep(rng.random() * 0.01)
            task.cancel()
        try:
            result = await task
        except (asyncio.CancelledError, GradserveError) as error:
            ended[f"{kind}: {type(error).__name__}"] += 1
            return
        alone = OPS[name].program.vjp(list(inputs.values()), list(upstream.values()))
        arrays = [result.outputs["output"], *(gradient.array for gradient in result.input_gradients.values())]
        for got, wanted in zip(arrays, [*alone[0], *alone[1]], strict=True):
            near = got.shape == wanted.shape and np.allclose(
                got, wanted, rtol=5e-7, atol=32 * 2.0**-23 * np.abs(wanted).max()
            )
            ended[f"{kind}: {'right' if near else 'WRONG'}"] += 1
        if number % 50 == 0:
            device.submit(lambda: time.sleep(0.02))

    await asyncio.gather(*(make_call(number) for number in range(count)))
    return ended


async def test_randomised_calls_each_get_their_own_rows(evaluator, device, batches) -> None:
    ended = await storm(evaluator, device, random.Random(0), 2000)
    assert ended["good: right"] > 2000
    assert ended["bad: InvalidRequest"] > 50
    assert ended["late: DeadlineExceeded"] + ended["cancelled: CancelledError"] > 50
    assert not any("WRONG" in how for how in ended), ended
    assert ended.keys() & {"good: InvalidRequest", "good: OpFailed", "good: CancelledError"} == set()
    sizes = [len(batch) for batch in batches]
    assert statistics.median(sizes) >= 8
    flat = [batch for batch in batches if batch[0].layout.is_flat and len(batch) >= 8]
    assert flat
    assert all(len({share.inputs[0].shape for share in batch}) >= 2 for batch in flat)


async def test_rows_that_were_mixed_up_would_be_found(evaluator, device, monkeypatch) -> None:
    def mixed_up(shares: Sequence[Share], array: np.ndarray, axis: int | None, stack: int) -> list[np.ndarray]:
        parts = joining_split(shares, array, axis, stack)
        alike = [(i, j) for i, a in enumerate(parts) for j, b in enumerate(parts) if i < j and a.shape == b.shape]
        for i, j in alike[:1]:
            parts[i], parts[j] = parts[j], parts[i]
        return parts

    joining_split = joining._split  # the fault is planted inside
    monkeypatch.setattr(joining, "_split", mixed_up)
    ended = await storm(evaluator, device, random.Random(0), 500)
    assert ended["good: WRONG"] > 0


def test_answers_of_a_deterministic_server_are_equal_bit_for_bit_under_load(batches) -> None:
    module = str(Path(__file__).with_name("ops_coupled.py"))
    with running_server(module, bad_ops="skip", deterministic=True) as server, server.client() as client:
        x = matrix(3)
        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(lambda _: client.vjp("softmax_over_classes", x, x), range(200)))
        assert {(result.output.tobytes(), result.gradient.tobytes()) for result in results} == {
            (results[0].output.tobytes(), results[0].gradient.tobytes())
        }
    assert batches == []
