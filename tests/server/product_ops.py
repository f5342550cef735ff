"""Ops of many kinds, each with inputs, for tests of products; and what a tape on the spot makes of them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tests.server.helpers import ANY, INDEX, SCALAR, VECTOR, floats, trace_one

from gradserve_server.autodiff.vjp import is_differentiable
from gradserve_server.ops import Op

MATRIX = tf.TensorSpec([None, None], tf.float32)
GRID = np.linspace(-2.0, 3.0, 6, dtype=np.float32).reshape(2, 3)


def several(x, n, scale, unused):
    """Three outputs, one of them an integer; and an integer input, and one that no output depends on."""
    tf.debugging.assert_rank(unused, 0)
    return {"cubes": x**3 * scale, "n": n + 1, "total": tf.reduce_sum(tf.sin(x) * tf.cast(n, tf.float32))}


def looked_up(table, rows):
    """Its gradient comes as slices."""
    return tf.gather(table, rows) ** 2


def multiplied(a, b):
    return tf.tanh(a @ b)


@tf.custom_gradient
def surrogate(x):
    """Doubles, by a rule that says ten times x."""
    return 2.0 * x, lambda dy: 10.0 * dy * x


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """An op, where to evaluate it, and how it is declared."""

    function: Callable[..., Any]
    specs: dict[str, Any]
    inputs: Sequence[np.ndarray]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES = {
    "several": Case(
        function=several,
        specs={"x": ANY, "n": INDEX, "scale": SCALAR, "unused": SCALAR},
        inputs=[GRID, np.int32(3)[...], np.float32(0.5)[...], np.float32(0)[...]],
    ),
    "number": Case(function=tf.square, specs={"x": ANY}, inputs=[np.float32(3)[...]]),
    "nothing": Case(function=tf.square, specs={"x": ANY}, inputs=[np.ones((2, 0), np.float32)]),
    "row of nothing": Case(
        function=lambda x: tf.reduce_sum(x**2, axis=0), specs={"x": MATRIX}, inputs=[np.ones((0, 3), np.float32)]
    ),
    "slices": Case(
        function=looked_up,
        specs={"table": MATRIX, "rows": tf.TensorSpec([None], tf.int32)},
        inputs=[GRID, np.array([1, 0, 1], np.int32)],
    ),
    "matrices": Case(function=multiplied, specs={"a": MATRIX, "b": MATRIX}, inputs=[GRID, GRID.T.copy()]),
    "surrogate": Case(function=surrogate, specs={"x": ANY}, inputs=[GRID]),
    "compiled": Case(function=tf.sin, specs={"x": ANY}, inputs=[GRID], options={"jit_compile": True}),
    "compiled inside": Case(function=tf.function(tf.sin, jit_compile=True), specs={"x": ANY}, inputs=[GRID]),
    "loop": Case(
        function=lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.sin(a)), [0, x])[1],
        specs={"x": VECTOR},
        inputs=[floats(0.5, -1)],
    ),
    "choice": Case(
        function=lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x**2, lambda: x**3),
        specs={"x": VECTOR},
        inputs=[floats(0.5, 1)],
    ),
    **{
        dtype.name: Case(
            function=tf.square,
            specs={"x": tf.TensorSpec(None, dtype)},
            inputs=[GRID.astype(dtype.as_numpy_dtype) * (1 + 2j if dtype.is_complex else 1)],
        )
        for dtype in (tf.float16, tf.bfloat16, tf.float64, tf.complex64, tf.complex128)
    },
}


@functools.cache
def traced(name: str) -> Op:
    case = CASES[name]
    return trace_one(case.function, inputs=case.specs, **case.options)


def pulled(name: str, *, vectorise: bool) -> Op:
    """Returns an op that is told whether to pull back all rows together."""
    op = traced(name)
    op.program.__dict__["vectorises"] = vectorise
    return op


def record(case: Case, *, persistent: bool = False) -> tuple[Any, list[Any], list[Any]]:
    """Runs an op under a tape; returns the tape, the inputs as tensors, and the differentiable outputs."""
    inputs = [tf.constant(array) for array in case.inputs]
    with tf.GradientTape(persistent=persistent) as tape:
        tape.watch([tensor for tensor in inputs if is_differentiable(tensor)])
        outputs = tf.nest.flatten(case.function(*inputs))
    return tape, inputs, [output for output in outputs if is_differentiable(output)]


def draw_like(arrays: Sequence[Any], *, seed: int = 0, stack: int = 0) -> list[np.ndarray]:
    """Returns normally distributed numbers in the shape and dtype of each array, with a leading axis if asked for."""
    rng = np.random.default_rng(seed)
    shapes = [(stack, *array.shape) if stack else tuple(array.shape) for array in arrays]
    drawn = [
        rng.standard_normal(shape) + 1j * rng.standard_normal(shape) * (np.asarray(array).dtype.kind == "c")
        for array, shape in zip(arrays, shapes, strict=True)
    ]
    return [
        (values if np.asarray(array).dtype.kind == "c" else values.real).astype(np.asarray(array).dtype)
        for values, array in zip(drawn, arrays, strict=True)
    ]


def assert_agrees(got: np.ndarray | None, wanted: Any) -> None:
    """Compares in shape and dtype, and in values up to rounding; None only equals None."""
    if wanted is None or got is None:
        assert (got, wanted) == (None, None)
        return
    wanted = np.asarray(tf.convert_to_tensor(wanted))  # slices become dense
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    tolerance = {2: 2e-2}.get(got.dtype.itemsize, 1e-5)
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance)
