"""Stacks of output gradients are joined too, with stacks of as many, along the axis behind the stack's."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.server.evaluators import call
from tests.server.helpers import one
from tests.server.joinable_ops import OPS, ROWS, probe

from gradserve_server.evaluation import Evaluator
from gradserve_server.ops import Op
from gradserve_server.registry import Registry
from gradserve_server.rows import Limits
from gradserve_server.scheduling import device as device_module
from gradserve_server.scheduling.device import Device
from gradserve_server.scheduling.joining import RowsMismatch, Share, backward_call, run_together, share_of, stacked_call

COMPILED = probe(lambda x: x * tf.sin(x), "compiled", inputs={"x": ROWS}, batch_axis=0, jit_compile=True)
STACK = 4


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def stacked(op: Op, inputs: list[Any], upstream: list[Any], stack: int = STACK, max_bytes: int = 2**30) -> Share | None:
    call = stacked_call(op, stack, max_bytes)
    return share_of(op.layout, call, inputs, upstream, [axis is not None for axis in op.layout.inputs], stack=stack)


CALLS = {
    "flat of one shape": (OPS["flat"], [([numbers(2, 3, seed=n)], [numbers(STACK, 2, 3, seed=n)]) for n in range(3)]),
    "flat": (OPS["flat"], [([numbers(5)], [numbers(STACK, 5)]), ([numbers()], [one()]), ([numbers(2, 2)], [one()])]),
    "rows": (OPS["rows"], [([numbers(n, 3)], [numbers(STACK, n, 3)]) for n in (1, 4, 2)]),
    "one number for all": (OPS["rows"], [([numbers(n, 3)], [one()]) for n in (1, 4)]),
    "columns": (OPS["columns"], [([numbers(3, n)], [numbers(STACK, 3, n)]) for n in (3, 1)]),
    "shared": (
        OPS["shared"],
        [([numbers(n, 3), np.float32(2)[...]], [numbers(STACK, n, 3), numbers(STACK, n)]) for n in (2, 3)],
    ),
    "padded": (COMPILED, [([numbers(n, 3)], [numbers(STACK, n, 3)]) for n in (2, 3)]),
}


@pytest.mark.parametrize(("op", "calls"), CALLS.values(), ids=CALLS)
def test_joined_stacks_get_what_each_gets_alone(op: Op, calls) -> None:
    shares = [stacked(op, inputs, upstream) for inputs, upstream in calls]
    assert len({share.key for share in shares}) == 1
    axes = [*op.layout.outputs, *op.layout.inputs]
    for share, (outputs, gradients) in zip(shares, run_together(shares), strict=True):
        alone = op.program.stacked_vjp(share.inputs, share.output_gradients, STACK)
        together = zip([*outputs, *gradients], [*alone[0], *alone[1]], axes, strict=True)
        for got, wanted in [(got, wanted) for got, wanted, axis in together if axis is not None]:
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_stacks_of_other_sizes_and_single_gradients_are_never_joined() -> None:
    op = OPS["rows"]
    x, dy = numbers(2, 3), numbers(STACK, 2, 3)
    single = share_of(op.layout, backward_call(op), [x], [dy[0]], [True])
    keys = {share.key for share in (single, stacked(op, [x], [dy]), stacked(op, [x], [dy[:3]], 3))}
    assert len(keys) == 3
    assert stacked(op, [x], [dy[:1]], 1) is None  # of too large a batch it could not be told
    assert stacked(op, [x], [dy[:, :1]]) is None
    assert stacked(OPS["flat"], [x], [dy[0]]) is None


def test_batch_of_stacks_that_is_too_large_to_be_pulled_back_is_found_out() -> None:
    op = OPS["rows"]
    limit = STACK * 2 * 3 * 4
    shares = [stacked(op, [numbers(2, 3)], [numbers(STACK, 2, 3)], max_bytes=limit) for _ in range(2)]
    run_together(shares[:1])
    with pytest.raises(RowsMismatch):
        run_together(shares)


async def test_stacks_that_wait_together_run_as_one(monkeypatch) -> None:
    sizes = []
    monkeypatch.setattr(device_module, "run_together", lambda shares: sizes.append(len(shares)) or run_together(shares))
    device = Device("cpu:0", time.perf_counter)
    limits = Limits(max_rows=64, max_response_bytes=2**20)
    evaluator = Evaluator(Registry(OPS.values()), lambda _, *work: device.submit(*work), limits)
    device.submit(lambda: time.sleep(0.05))
    calls = [(numbers(n, 3), numbers(STACK, n, 3)) for n in (1, 2, 3)]
    results = await asyncio.gather(
        *(call(evaluator, "vjp", "rows", {"x": x}, output_gradients={"output": dy}, stack=STACK) for x, dy in calls)
    )
    device.close(10.0)
    assert sizes == [3]
    for (x, dy), result in zip(calls, results, strict=True):
        wanted = OPS["rows"].program.stacked_vjp([x], [dy], STACK)[1][0]
        np.testing.assert_allclose(result.input_gradients["x"].array, wanted, rtol=1e-6, atol=1e-6)
