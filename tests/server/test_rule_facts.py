"""Facts about rules: which are linear in dy, and whether gradients pulled back together are those of each alone."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.derivative_ops import identity_by
from tests.server.helpers import ANY, INDEX, SCALAR, VECTOR, floats, trace_one

from gradserve_server.rule_facts import is_linear, normal_like, rows_agree

X = floats(0.5, 1, 2)
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
EVERY_DTYPE = pytest.mark.parametrize("dtype", [*FLOATS, tf.complex64, tf.complex128], ids=lambda dtype: dtype.name)
EVERY_FLOAT = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)

LINEAR_RULES = {
    "dy": lambda dy: dy,
    "reversed": lambda dy: -0.25 * dy,
    "summed": lambda dy: tf.reduce_sum(dy) + tf.zeros_like(dy),
    "turned around": lambda dy: tf.reverse(dy, [0]),
    "zeros": tf.zeros_like,
    "half": lambda dy: tf.cast(tf.cast(dy, tf.float64) / 2.0, dy.dtype),
}
NON_LINEAR_RULES = {
    "sign": tf.sign,
    "clipped": lambda dy: tf.clip_by_value(dy, -0.1, 0.1),
    "clipped far out": lambda dy: tf.clip_by_value(dy, -500.0, 500.0),
    "clipped norm": lambda dy: tf.clip_by_norm(dy, 0.5),
    "of unit norm": lambda dy: dy / tf.norm(dy),
    "threshold": lambda dy: tf.where(tf.abs(dy) > 0.01, dy, tf.zeros_like(dy)),
    "positive": tf.nn.relu,
    "affine": lambda dy: dy + tf.ones_like(dy),
    "without dy": tf.ones_like,
    "absolute": tf.abs,
    "square": tf.square,
    "weighted by softmax": lambda dy: dy * tf.nn.softmax(dy),
    "largest alone": lambda dy: tf.where(dy == tf.reduce_max(dy), dy, tf.zeros_like(dy)),
    "sorted": tf.sort,
}


def program_of(function, dtype=tf.float32):
    return trace_one(function, inputs={"x": tf.TensorSpec([None], dtype)}).program


@EVERY_FLOAT
@pytest.mark.parametrize("rule", LINEAR_RULES.values(), ids=LINEAR_RULES)
def test_is_linear_of_a_linear_rule_is_true(rule, dtype) -> None:
    assert is_linear(program_of(identity_by(rule), dtype), [[X.astype(dtype.as_numpy_dtype)]]) is True


@EVERY_FLOAT
@pytest.mark.parametrize("rule", NON_LINEAR_RULES.values(), ids=NON_LINEAR_RULES)
def test_is_linear_of_any_other_rule_is_false(rule, dtype) -> None:
    assert is_linear(program_of(identity_by(rule), dtype), [[X.astype(dtype.as_numpy_dtype)]]) is False


@EVERY_DTYPE
@pytest.mark.parametrize("function", [tf.square, tf.sin, tf.exp, tf.math.log, tf.math.sigmoid, tf.math.rsqrt])
def test_is_linear_of_every_true_derivative_is_true(function, dtype) -> None:
    turn = 1 + 1j if dtype.is_complex else 1
    assert is_linear(program_of(function, dtype), [[(X * turn).astype(dtype.as_numpy_dtype)]]) is True


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_is_linear_of_a_long_sum_allows_for_rounding(size: int) -> None:
    program = program_of(lambda x: tf.reduce_sum(tf.cumsum(x) ** 2))
    assert is_linear(program, [[np.linspace(-1, 1, size, dtype=np.float32)]]) is True


def test_is_linear_of_several_inputs_and_outputs_needs_all_of_them() -> None:
    signs = tf.custom_gradient(lambda x, y: ((x * 1.0, y * 1.0), lambda a, b: (a, tf.sign(b))))
    sums = tf.custom_gradient(lambda x, y: ((x * 1.0, y * 1.0), lambda a, b: (a + b, b)))
    for function, wanted in ((signs, False), (sums, True)):
        assert is_linear(trace_one(function, inputs={"x": VECTOR, "y": VECTOR}).program, [[X, X]]) is wanted


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: tf.sqrt(x - 5.0), [X]),
        (lambda x: x * np.float32(np.inf), [0 * X]),
        (tf.square, [X[:0]]),
        (lambda x: tf.ensure_shape(tf.numpy_function(lambda _: 1 / 0, [x], tf.float32), x.shape) + x, [X]),
    ],
    ids=["not a number", "infinite", "empty", "raises"],
)
def test_is_linear_with_nothing_to_compare_is_none(function, inputs) -> None:
    assert is_linear(program_of(function), [inputs]) is None


def test_is_linear_passes_over_points_where_the_op_raises() -> None:
    program = trace_one(tf.gather, inputs={"params": VECTOR, "indices": INDEX}).program
    good, bad = [X, np.int32(1)[...]], [X, np.int32(9)[...]]
    assert is_linear(program, [bad, good]) is True
    assert is_linear(program, [bad]) is None
    assert is_linear(program, []) is None


def test_is_linear_finds_what_shows_at_one_of_the_points_alone() -> None:
    program = program_of(identity_by(lambda dy: dy * tf.nn.softmax(dy)))
    assert is_linear(program, [[X[:1]]]) is True
    assert is_linear(program, [[X[:1]], [X]]) is False


def test_is_linear_of_elements_that_are_not_finite_looks_at_the_others() -> None:
    assert is_linear(program_of(tf.sqrt), [[floats(-1, 4)]]) is True
    program = program_of(tf.custom_gradient(lambda x: (tf.sqrt(x), lambda dy: tf.sign(dy) / tf.sqrt(x))))
    assert is_linear(program, [[floats(-1, 4)]]) is False


def together_by(program, change):
    """Returns a way to pull back rows together that is right but for a change."""

    def pull_back(inputs, stacks, stack):
        rows = [program.vjp(inputs, [each[row] for each in stacks])[1] for row in range(stack)]
        return change([np.stack(gradients) for gradients in zip(*rows, strict=True)])

    return pull_back


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda stacks: stacks, True),
        (lambda stacks: [stacks[0], None, stacks[1]], True),
        (lambda stacks: [stacks[0], stacks[1] * np.float32(1 + 1e-6)], True),
        (lambda stacks: [stacks[0], stacks[1][::-1]], False),
        (lambda stacks: [stacks[0], stacks[1] * 2], False),
        (lambda stacks: stacks[:1], False),
        (lambda stacks: [stacks[0], stacks[1][:2]], False),
        (lambda _: 1 / 0, False),
    ],
    ids=["right", "none beside", "rounded", "turned around", "doubled", "one short", "a row short", "raises"],
)
def test_rows_agree_only_if_each_row_is_what_it_is_alone(change, wanted: bool) -> None:
    program = trace_one(lambda x, s: tf.sin(x) * s, inputs={"x": VECTOR, "s": SCALAR}).program
    assert rows_agree(together_by(program, change), program, [X, np.float32(2)[...]]) is wanted


def test_rows_agree_where_the_op_raises_is_false() -> None:
    program = trace_one(tf.gather, inputs={"params": VECTOR, "indices": INDEX}).program
    assert rows_agree(together_by(program, lambda stacks: stacks), program, [X, np.int32(9)[...]]) is False


@EVERY_DTYPE
def test_normal_like_keeps_shape_and_dtype(dtype) -> None:
    drawn = normal_like(np.zeros((200, 50), dtype.as_numpy_dtype), np.random.default_rng(0))
    assert (drawn.shape, drawn.dtype) == ((200, 50), dtype.as_numpy_dtype)
    wide = drawn.astype(np.complex128 if dtype.is_complex else np.float64)
    assert abs(wide.mean()) < 0.05
    assert abs(wide.real.std() - 1) < 0.05
    assert bool(wide.imag.any()) is dtype.is_complex


def test_program_of_any_rank_is_tried_at_a_number_too() -> None:
    program = trace_one(identity_by(tf.sign), inputs={"x": ANY}).program
    assert is_linear(program, [[np.float32(1)[...]]]) is False


def test_is_linear_of_a_rule_without_any_gradient_is_true() -> None:
    assert is_linear(program_of(lambda x: 2.0 * tf.stop_gradient(x)), [[X]]) is True


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float64], ids=lambda dtype: dtype.name)
def test_is_linear_of_a_number_whose_output_gradients_nearly_cancel_is_true(dtype) -> None:
    cube = tf.custom_gradient(lambda x: (x**3, lambda dy: dy * 3 * x**2))
    op = trace_one(cube, inputs={"x": tf.TensorSpec([], dtype)})
    assert (
        is_linear(op.program, [[np.asarray(value, op.signature.inputs["x"].dtype.numpy)] for value in (1, 3)]) is True
    )
