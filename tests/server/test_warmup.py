"""Warm-up: examples that the author gave or that are drawn, and one run of both passes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import VECTOR, trace_one

from gradserve.dtypes import dtype_named
from gradserve.errors import InvalidRequest, OpContractError
from gradserve.signature import TensorSpec
from gradserve_server.ops import OpLoadError
from gradserve_server.testing import RunningServer, running_server
from gradserve_server.warmup import example_inputs, warm_up

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
    warm_up(trace_one(tf.shape, inputs={"input": VECTOR}))


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
