"""Calls of ops that XLA compiles: they are joined, and padded to a few sizes, so that it compiles few times."""

import time

import numpy as np
import pytest
import tensorflow as tf
from tests.server.evaluators import call
from tests.server.helpers import ANY
from tests.server.joinable_ops import COLUMNS, ROWS, clipped, probe

from gradserve_server.evaluation import Evaluator
from gradserve_server.ops import Op, OpLoadError
from gradserve_server.registry import Registry
from gradserve_server.rows import Limits
from gradserve_server.scheduling.device import Device
from gradserve_server.scheduling.joining import backward_call, run_together, share_of
from gradserve_server.scheduling.work import Bounds

inner = tf.function(lambda x: x * x, jit_compile=True, autograph=False)
DECLARED = {
    "flat": (clipped, {"inputs": {"x": ANY}, "elementwise": True, "jit_compile": True}),
    "rows": (lambda x: tf.nn.softmax(x, axis=1), {"inputs": {"x": ROWS}, "batch_axis": 0, "jit_compile": True}),
    "columns": (
        lambda x: tf.cumsum(x, axis=0),
        {"inputs": {"x": COLUMNS}, "batch_axis": -1, "jit_compile": True},
    ),
    "part": (lambda x: inner(x) + 1.0, {"inputs": {"x": ANY}, "elementwise": True}),
}
COMPILED = {name: probe(function, name, **declared) for name, (function, declared) in DECLARED.items()}
SHAPES = {
    "flat": [(5,), (2, 3), ()],
    "rows": [(1, 3), (7, 3), (2, 3)],
    "columns": [(3, 2), (3, 9)],
    "part": [(9,), (1,)],
}


@pytest.mark.parametrize("name", COMPILED)
def test_padded_calls_get_what_each_gets_alone(name: str) -> None:
    op = COMPILED[name]
    assert op.layout is not None
    assert op.layout.is_padded
    rng = np.random.default_rng(0)
    calls = [[rng.standard_normal(shape).astype(np.float32)[...] for _ in "xy"] for shape in SHAPES[name]]
    shares = [share_of(op.layout, backward_call(op), [x], [dy], [True]) for x, dy in calls]
    for several in (shares, shares[:1], shares[1:]):
        for share, (outputs, gradients) in zip(several, run_together(several), strict=True):
            alone = op.program.vjp(share.inputs, share.output_gradients)
            for got, wanted in zip([*outputs, *gradients], [*alone[0], *alone[1]], strict=True):
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def evaluator_of(ops: list[Op], device: Device) -> Evaluator:
    limits = Limits(max_rows=64, max_response_bytes=2**20)
    return Evaluator(Registry(ops), lambda _, *work: device.submit(*work), limits)


async def test_calls_of_many_sizes_are_compiled_for_a_few() -> None:
    op = probe(clipped, "many", **DECLARED["flat"][1])
    device = Device("cpu:0", time.perf_counter, Bounds(light_seconds=1.0))
    evaluator = evaluator_of([op], device)
    before = op.program.compiled_shapes.count
    for size in range(1, 129):
        result = await call(evaluator, "vjp", "many", {"x": np.full(size, 0.25, np.float32)})
        assert result.input_gradients["x"].array.tolist() == [0.5] * size
    device.close(10.0)
    assert op.program.compiled_shapes.count - before <= 5  # 8, 16, 32, 64 and 128 elements


async def test_call_that_is_too_large_to_be_joined_is_compiled_as_it_is(monkeypatch) -> None:
    op = probe(clipped, "large", **DECLARED["flat"][1])
    device = Device("cpu:0", time.perf_counter)
    shapes = []
    monkeypatch.setattr(op.program.compiled_shapes, "add", lambda _, arrays: shapes.append(arrays[0].shape))
    await call(evaluator_of([op], device), "vjp", "large", {"x": np.ones(20_001, np.float32)})
    await call(evaluator_of([op], device), "vjp", "large", {"x": np.ones(20, np.float32)})
    device.close(10.0)
    assert shapes == [(20_001,), (32,)]


def test_compiled_op_that_counts_its_rows_is_found_out_though_all_its_calls_are_padded() -> None:
    def mean(x):
        return x / tf.cast(tf.shape(x)[0], tf.float32)

    assert probe(mean, "mean", inputs={"x": ROWS}, batch_axis=0, jit_compile=True).layout is None


def test_compiled_op_that_couples_rows_is_refused() -> None:
    with pytest.raises(OpLoadError, match="ROWS_COUPLED"):
        probe(lambda x: tf.nn.softmax(x, axis=0), "coupled", inputs={"x": ROWS}, batch_axis=0, jit_compile=True)
