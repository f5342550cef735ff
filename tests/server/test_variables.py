"""Variables: those that an op reads are found and named, however it reads them, and those that it hides are refused."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from tests.server.helpers import VECTOR, floats, one, trace_one

from gradserve_server.ops import Op, OpLoadError


def weight(value: Any = (2.0, 3.0), **options: Any) -> tf.Variable:
    return tf.Variable(value, name="weight", **options)


def by_handle(variable: tf.Variable) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def gradients(op: Op, *inputs: Any) -> dict[str, list[float]]:
    """Returns the gradients of an op's connected variables, for ones as output gradient."""
    _, found = op.program.vjp(list(inputs), [one()], with_variables=True)
    names = [name for name in op.variables if name in op.connected_variables]
    return {name: gradient.tolist() for name, gradient in zip(names, found[-len(names) :], strict=True)}


READERS: dict[str, Callable[[tf.Variable], Callable[[Any], Any]]] = {
    "operator": lambda v: lambda x: x * v,
    "function": lambda v: lambda x: tf.function(lambda: x * v)(),
    "branch": lambda v: lambda x: tf.cond(x[0] > 0.0, lambda: x * v, lambda: x),
    "loop": lambda v: lambda x: tf.while_loop(lambda i, _: i < 1, lambda i, y: (i + 1, y * v), [0, x])[1],
    "map": lambda v: lambda x: tf.map_fn(lambda row: row * v, x[None])[0],
    "gather": lambda v: lambda x: x * tf.gather(v, [0, 1]),
    "recomputation": lambda v: tf.recompute_grad(lambda x: x * v),
    "slice": lambda v: lambda x: x * v[:],
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_variable_that_is_read_in_any_way_is_reported(read) -> None:
    op = trace_one(read(weight()), inputs={"x": VECTOR})
    assert list(op.variables) == ["weight"]
    assert gradients(op, floats(5, 7)) == {"weight": [5.0, 7.0]}


HIDERS: dict[str, Callable[[tf.Variable], Callable[[Any], Any]]] = {
    "read": lambda v: lambda x: x * by_handle(v),
    "function": lambda v: lambda x: x * tf.function(lambda: by_handle(v))(),
    "branch": lambda v: lambda x: tf.cond(x[0] > 0.0, lambda: x * by_handle(v), lambda: x),
    "loop": lambda v: lambda x: tf.while_loop(lambda i, _: i < 1, lambda i, y: (i + 1, y * by_handle(v)), [0, x])[1],
}


@pytest.mark.parametrize("hide", HIDERS.values(), ids=HIDERS)
def test_variable_that_is_read_by_its_handle_is_refused_unless_it_is_given(hide) -> None:
    variable = weight()
    with pytest.raises(OpLoadError, match=r"\(float32 \(2,\)\).* give them: op\(variables=\[variable\]\)") as raised:
        trace_one(hide(variable), inputs={"x": VECTOR})
    assert raised.value.cause == "UNREPORTED_VARIABLE"
    op = trace_one(hide(variable), inputs={"x": VECTOR}, variables=[variable])
    assert gradients(op, floats(5, 7)) == {"weight": [5.0, 7.0]}


def test_keras_variable_that_is_read_by_its_handle_may_be_given() -> None:
    variable = keras.Variable([2.0, 3.0], name="scale")
    op = trace_one(lambda x: x * by_handle(variable.value), inputs={"x": VECTOR}, variables={"gain": variable})
    assert gradients(op, floats(5, 7)) == {"gain": [5.0, 7.0]}


def test_given_variable_that_is_not_trained_or_not_read_has_no_gradient() -> None:
    frozen, unread = weight(trainable=False), weight()
    op = trace_one(lambda x: x * by_handle(frozen), inputs={"x": VECTOR}, variables=[frozen, unread])
    assert {name: spec.differentiable for name, spec in op.variables.items()} == {"weight": False}
    assert op.connected_variables == set()


@pytest.mark.parametrize("given", [["weight"], {"weight": 2.0}, [tf.constant(1.0)]])
def test_given_variables_that_are_none_are_refused(given) -> None:
    with pytest.raises(OpLoadError, match="a mapping from names to variables, or a sequence of them") as raised:
        trace_one(lambda x: x, inputs={"x": VECTOR}, variables=given)
    assert raised.value.cause == "BAD_VARIABLES"


def test_state_of_a_random_generator_is_no_unreported_variable() -> None:
    generator = tf.random.Generator.from_seed(1)
    op = trace_one(lambda x: x * generator.uniform([2]), inputs={"x": VECTOR}, stateful=True)
    assert op.stateful


def test_frozen_layer_has_variables_without_gradients() -> None:
    layer = keras.layers.Dense(1, name="dense", trainable=False)
    layer.build((None, 2))
    op = trace_one(layer, inputs={"x": tf.TensorSpec([None, 2], tf.float32)})
    assert {name: spec.differentiable for name, spec in op.variables.items()} == {
        "dense/kernel": False,
        "dense/bias": False,
    }
