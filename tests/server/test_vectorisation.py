"""Vectorisation: rows pulled back together only where that is right, forward run once, and traces bounded."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor  # where TensorFlow keeps what it vectorises by
from tests.server.derivative_ops import identity_by, python
from tests.server.helpers import ANY, INDEX, VECTOR, floats, one, trace_one

from gradserve.errors import InvalidRequest, Unsupported
from gradserve_server.warmup import warm_up, with_facts

X = floats(1, -2, 3)
ROWS = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)


class Counter:
    """Counts how often a square, computed by Python code in a graph, is evaluated."""

    def __init__(self, python_function) -> None:
        self.forward = 0
        self._python_function = python_function

    def square(self, x):
        y = tf.ensure_shape(self._python_function(self._square, [x], tf.float32), x.shape)
        return tf.custom_gradient(lambda x: (y, lambda dy: 2.0 * x * dy))(x)

    def _square(self, x):
        self.forward += 1
        return x * x


def distinct(dy):
    """Returns dy by way of a tensor whose length depends on its values."""
    return tf.gather(*tf.unique(dy))


@pytest.mark.parametrize("python_function", [tf.numpy_function, tf.py_function])
def test_stack_of_64_runs_forward_exactly_once_from_the_first_call_on(python_function) -> None:
    counter = Counter(python_function)
    op = with_facts(trace_one(counter.square, inputs={"x": VECTOR}))
    for call in range(3):
        before = counter.forward
        (gradient,) = op.program.stacked_vjp([X], [ROWS], 64)[1]
        assert counter.forward == before + 1, call
        np.testing.assert_allclose(gradient, 2 * X * ROWS, rtol=1e-6)
    assert op.program.vectorises


@pytest.mark.parametrize("python_function", [tf.numpy_function, tf.py_function])
def test_jacobian_of_64_rows_runs_forward_exactly_once_from_the_first_call_on(python_function) -> None:
    counter = Counter(python_function)
    op = with_facts(trace_one(counter.square, inputs={"x": VECTOR}))
    x = np.arange(64, dtype=np.float32)
    before = counter.forward
    ((jacobian,),) = op.program.jacobian([x], 64)[1]
    assert counter.forward == before + 1
    np.testing.assert_array_equal(jacobian, np.diag(2 * x))


def test_rule_of_python_code_is_called_for_each_row() -> None:
    program = trace_one(identity_by(python(np.cumsum)), inputs={"x": VECTOR}).program
    (gradient,) = program.stacked_vjp([X], [ROWS], 64)[1]
    np.testing.assert_array_equal(gradient, np.cumsum(ROWS, axis=1))


def test_stateful_op_is_run_once_for_each_call_and_never_tried() -> None:
    runs = tf.Variable(0)

    def count(x):
        runs.assign_add(1)
        return x * tf.cast(runs, tf.float32)

    program = trace_one(count, inputs={"x": VECTOR}, stateful=True).program
    assert program.stacked_vjp([X], [ROWS], 64)[0][0].tolist() == X.tolist()
    assert program.jacobian([X], 64)[0][0].tolist() == (2 * X).tolist()
    assert not program.vectorises


def test_op_that_draws_random_numbers_is_pulled_back_row_by_row() -> None:
    program = trace_one(lambda x: x * tf.random.uniform(tf.shape(x)), inputs={"x": VECTOR}).program
    outputs, (gradient,) = program.stacked_vjp([X], [ROWS], 64)
    assert not program.vectorises
    np.testing.assert_allclose(gradient, ROWS * outputs[0] / X, rtol=1e-5)


def test_operation_that_tensorflow_vectorises_wrongly_is_pulled_back_row_by_row(monkeypatch) -> None:
    wrong = lambda rows: pfor.wrap(rows.stacked_input(0) * 3.0, is_stacked=True)
    monkeypatch.setitem(pfor._pfor_converter_registry, "Rint", wrong)
    program = trace_one(identity_by(tf.math.rint), inputs={"x": VECTOR}).program
    (gradient,) = program.stacked_vjp([X], [ROWS], 64)[1]
    assert not program.vectorises
    np.testing.assert_array_equal(gradient, np.rint(ROWS))


def _raise_unless_three(dy):
    if len(dy) != 3:
        raise ValueError("three elements are what everybody asks for")
    return 2 * dy


@pytest.mark.parametrize(
    "rule",
    [
        lambda dy: 2.0 * tf.gather(dy, [0, 1, 2]),
        python(_raise_unless_three),
    ],
    ids=["of an index out of range", "of Python code that raises"],
)
def test_rule_that_fails_at_the_example_is_pulled_back_row_by_row(rule) -> None:
    program = trace_one(identity_by(rule), inputs={"x": VECTOR}).program
    (gradient,) = program.stacked_vjp([X], [ROWS], 64)[1]
    assert not program.vectorises
    np.testing.assert_array_equal(gradient, 2 * ROWS)


def test_stack_that_cannot_be_pulled_back_together_is_pulled_back_row_by_row() -> None:
    program = trace_one(identity_by(distinct), inputs={"x": VECTOR}).program
    dy = np.float32([[1, 2, 3], [4, 4, 4], [5, 5, 6]])
    (gradient,) = program.stacked_vjp([X], [dy], 3)[1]
    assert program.vectorises
    np.testing.assert_array_equal(gradient, dy)


def test_stack_that_can_be_pulled_back_in_no_way_raises_what_the_rows_raise() -> None:
    program = trace_one(tf.gather, inputs={"params": VECTOR, "indices": INDEX}).program
    with pytest.raises(InvalidRequest, match="op 'probe': a kernel refused the values: ") as raised:
        program.stacked_vjp([X, np.int32(7)[...]], [np.ones(64, np.float32)], 64)
    assert raised.value.reason == "VALUES_REFUSED"


def test_op_that_is_differentiated_by_python_code_takes_no_stack() -> None:
    op = trace_one(lambda x: tf.ensure_shape(tf.py_function(tf.square, [x], tf.float32), x.shape), inputs={"x": ANY})
    for call in (lambda: op.program.stacked_vjp([X], [ROWS], 64), lambda: op.program.jacobian([X], 64)):
        with pytest.raises(Unsupported, match=r"'probe'.*tf.py_function.*one at a time") as raised:
            call()
        assert raised.value.reason == "ONE_GRADIENT_ONLY"
    np.testing.assert_array_equal(op.program.vjp([X], [one()])[1][0], 2 * X)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_trace_count_is_bounded_whatever_is_asked_for(jit_compile: bool) -> None:
    op = trace_one(lambda x, s: (x**2 * s, x), inputs={"x": ANY, "s": ANY}, jit_compile=jit_compile)
    warm_up(op)
    program, counts = with_facts(op).program, set()
    for shape in [(), (1,), (2,), (3,), (2, 3), (0,)] * 2:
        x, upstream = np.ones(shape, np.float32), [one(), one()]
        for stack in (1, 2, 5):
            program.stacked_vjp([x, x], [np.ones((stack, *shape), np.float32), one()], stack)
        program.jacobian([x, x], 4)
        for vectors in ([x, None], [None, x], [x, x]):
            program.jvp([x, x], vectors)
            program.hvp([x, x], upstream, vectors)
        program.own_vjp([x, x], [x, x])
        counts.add(program.trace_count)
    assert counts == {7}  # forward, VJP, stacked VJP, Jacobian, JVP, HVP, own derivative


def test_trace_count_grows_by_one_for_each_stacked_product_that_goes_row_by_row() -> None:
    program = trace_one(identity_by(distinct), inputs={"x": VECTOR}).program
    for _ in range(3):
        program.stacked_vjp([X], [np.float32([[1, 2, 3], [4, 4, 4]])], 2)
    assert program.trace_count == 4  # forward, VJP, stacked VJP in both ways


def test_trace_count_includes_those_with_variables() -> None:
    weight = tf.Variable(2.0)
    program = trace_one(lambda x: x * weight, inputs={"x": VECTOR}).program
    for _ in range(2):
        program.stacked_vjp([X], [ROWS], 64)
        program.stacked_vjp([X], [ROWS], 64, with_variables=True)
    assert program.trace_count == 5
