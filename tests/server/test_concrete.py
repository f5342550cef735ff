"""Calls of concrete functions: the values of the functions' own calls, for each dtype, variable and way of tracing."""

import numpy as np
import pytest
import tensorflow as tf

from gradserve.dtypes import DTYPES
from gradserve_server.autodiff.concrete import Executable, concrete_function

WEIGHT = tf.Variable([2.0, 3.0])
TABLE = tf.constant([10.0, 20.0])


def executable(function, *specs, **options) -> Executable:
    return Executable(concrete_function(function, specs, device="cpu:0", **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1)], ids=str)
def test_arrays_of_every_dtype_come_back_as_they_went(dtype, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype.numpy)
    if dtype.is_string:
        array = np.vectorize(lambda number: b"a\0%d\0" % number, otypes=[object])(array)
    same = executable(lambda x: [x], tf.TensorSpec(None, tf.string if dtype.is_string else dtype.numpy))
    (result,) = same([array])
    assert result.dtype == (tf.string if dtype.is_string else dtype.numpy)
    assert np.array(result.numpy(), array.dtype).tolist() == array.tolist()


def test_what_a_trace_captured_is_there_for_every_call() -> None:
    call = executable(lambda x: [x * WEIGHT + TABLE], tf.TensorSpec([None], tf.float32))
    np.testing.assert_array_equal(call([np.float32([1, 1])])[0], [12, 23])
    before = WEIGHT.numpy()
    WEIGHT.assign([4.0, 5.0])
    try:
        np.testing.assert_array_equal(call([np.float32([1, 1])])[0], [14, 25])
    finally:
        WEIGHT.assign(before)


def test_whole_numbers_that_tensorflow_refuses_of_a_bare_call_come_back() -> None:
    call = executable(lambda x: [tf.shape(x), tf.size(x)], tf.TensorSpec(None, tf.float32))
    shape, size = call([np.ones((2, 3), np.float32)])
    assert (shape.numpy().tolist(), int(size)) == ([2, 3], 6)


def test_loops_branches_and_python_code_run() -> None:
    def function(x):
        doubled = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2.0), [0, x])[1]
        chosen = tf.cond(tf.reduce_sum(x) > 0, lambda: doubled, lambda: -doubled)
        return [chosen, tf.numpy_function(np.negative, [chosen], tf.float32)]

    results = executable(function, tf.TensorSpec([None], tf.float32))([np.float32([-1, -2])])
    assert [result.numpy().tolist() for result in results] == [[8, 16], [-8, -16]]


def test_compiled_function_is_compiled() -> None:
    def unknown_to_xla(x):
        return [tf.strings.to_number(tf.strings.as_string(x))]

    call = executable(unknown_to_xla, tf.TensorSpec([], tf.float32), jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations"):
        call([np.float32(1)[...]])
