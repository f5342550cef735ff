"""Warm-up: examples that the author gave or that are drawn, and one run of both passes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tests.server.derivative_ops import custom, identity_by, python
from tests.server.helpers import SCALAR, VECTOR, trace_one

from gradserve.dtypes import dtype_named
from gradserve.errors import InvalidRequest, OpContractError
from gradserve.signature import TensorSpec
from gradserve_server.ops import OpLoadError
from gradserve_server.testing import RunningServer, running_server
from gradserve_server.warmup import example_inputs, warm_up, with_facts

BAD_EXAMPLE = Path(__file__).with_name("ops_bad_example.py")


def spec(dtype: str, *shape: int | None) -> dict[str, TensorSpec]:
    return {"x": TensorSpec(name="x", dtype=dtype_named(dtype), shape=shape, differentiable=True)}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_example_drawn_for_a_differentiable_input_is_ones_of_least_size(dtype: str) -> None:
    (drawn,) = example_inputs(spec(dtype, None, 3), {})
    np.testing.assert_array_equal(drawn, np.ones((1, 3), dtype_named(dtype).numpy), strict=True)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint8"])
def test_example_drawn_for_an_integer_is_zero_as_an_index_may_be(dtype: str) -> None:
    (drawn,) = example_inputs(spec(dtype, None), {})
    np.testing.assert_array_equal(drawn, np.zeros(1, dtype), strict=True)


@pytest.mark.parametrize(
    ("shape", "size", "wanted"),
    [((None, 3), 1, (1, 3)), ((None, 2), 4, (4, 2)), (None, 1, ()), (None, 4, (4,)), ((), 4, ())],
)
def test_example_drawn_has_the_size_asked_for_where_the_spec_leaves_it_open(shape, size: int, wanted: tuple) -> None:
    specs = {"x": TensorSpec(name="x", dtype=dtype_named("float32"), shape=shape, differentiable=True)}
    assert example_inputs(specs, {}, open_size=size)[0].shape == wanted


def test_example_drawn_for_a_string_is_empty_bytes() -> None:
    assert example_inputs(spec("string", 2), {})[0].tolist() == [b"", b""]


def test_example_of_the_author_is_taken_in_the_dtype_of_the_input() -> None:
    (given,) = example_inputs(spec("float64", None), {"x": [1, 2]})
    np.testing.assert_array_equal(given, np.array([1.0, 2.0]), strict=True)


def test_example_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="example of input 'x'"):
        example_inputs(spec("float32", 3), {"x": [1.0]})


def test_warm_up_runs_forward_and_vjp_once_each() -> None:
    ran = []

    @tf.custom_gradient
    def counted(x):
        y = tf.numpy_function(lambda value: (ran.append(value.shape), value)[1], [x], tf.float32)
        return tf.ensure_shape(y, x.shape), lambda dy: dy

    warm_up(trace_one(counted, inputs={"x": VECTOR}, example={"x": [1.0, 2.0]}))
    assert ran == [(2,), (2,)]


def test_warm_up_of_an_op_without_backward_runs_forward_alone() -> None:
    ran = []
    seen = python(lambda x: (ran.append(x.shape), x)[1])
    warm_up(trace_one(lambda x: tf.cast(seen(x), tf.int32), inputs={"x": VECTOR}, example={"x": [1.0, 2.0]}))
    assert ran == [(2,)]


@pytest.mark.parametrize(
    ("rule", "linear"),
    [
        (lambda dy: 2.0 * dy, True),
        (tf.sign, False),
        (lambda dy: dy * tf.nn.softmax(dy), False),  # which shows for several elements alone
        (lambda dy: tf.where(dy == tf.reduce_max(dy), dy, tf.zeros_like(dy)), False),
    ],
    ids=["linear", "sign", "weighted by softmax", "largest alone"],
)
def test_facts_tell_whether_a_rule_is_linear(rule, linear: bool) -> None:
    assert with_facts(trace_one(identity_by(rule), inputs={"x": VECTOR})).linear is linear


def test_facts_about_an_op_with_an_example_are_found_at_that_alone() -> None:
    sizes = set()
    seen = lambda x: (sizes.add(len(x)), x)[1]
    function = tf.custom_gradient(lambda x: (python(seen)(x), lambda dy: 2.0 * dy))
    assert with_facts(trace_one(function, inputs={"x": VECTOR}, example={"x": [1.0, 2.0]})).linear
    assert sizes == {2}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * tf.random.uniform(tf.shape(x)),
        lambda x: tf.linalg.cholesky(x * tf.ones([2, 2])),  # of a matrix of ones there is none
        tf.sqrt,
    ],
    ids=["random", "fails at the example", "plain"],
)
def test_op_without_a_rule_of_its_own_is_linear_even_where_that_cannot_be_tried(function) -> None:
    op = trace_one(function, inputs={"x": SCALAR})
    assert op.linear
    assert with_facts(op).linear


def test_facts_of_an_op_whose_rule_cannot_be_tried_leave_open_whether_it_is_linear() -> None:
    drawing = custom(tf.identity, lambda _, y, dy: dy * tf.random.uniform(tf.shape(y)))
    raising = identity_by(python(lambda _: 1 / 0))
    for function in (drawing, raising):
        assert with_facts(trace_one(function, inputs={"x": VECTOR})).linear is None


def test_facts_about_an_op_without_backward_are_none() -> None:
    op = trace_one(tf.shape, inputs={"input": VECTOR})
    assert with_facts(op) is op


def test_op_that_fails_on_its_own_example_stops_the_start() -> None:
    said = "op 'beyond': WARM_UP_FAILED: it failed on its own example: .*indices = 9"
    with pytest.raises(OpLoadError, match=said) as raised, running_server(str(BAD_EXAMPLE)):
        pass
    assert (raised.value.name, raised.value.cause) == ("beyond", "WARM_UP_FAILED")


def test_op_that_fails_on_its_own_example_is_skipped_where_bad_ops_are(serve: Callable[..., RunningServer]) -> None:
    with serve(BAD_EXAMPLE, bad_ops="skip").client() as client:
        assert client.op("beyond").failure.startswith("WARM_UP_FAILED")
        with pytest.raises(OpContractError) as raised:
            client.forward("beyond", {"index": np.int32(0)})
        assert raised.value.facts["cause"] == "WARM_UP_FAILED"


def test_op_that_fails_on_drawn_inputs_alone_is_served(serve: Callable[..., RunningServer]) -> None:
    with serve(BAD_EXAMPLE, bad_ops="skip").client() as client:
        assert client.forward("before", {"index": np.int32(2)}).output == 2.0
        assert client.vjp("well", 1.0).gradient == 2.0
