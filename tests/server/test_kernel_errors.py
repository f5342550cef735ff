"""What TensorFlow raises while an op runs: as an error of the service, or hidden if Python code in the graph raised."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import INDEX, VECTOR, floats, has_path_or_traceback, one, trace_one

from gradserve.errors import InvalidRequest, Unsupported
from gradserve_server.autodiff.kernel_errors import kernel_text, translate


def positive(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x, message="x must be positive")]):
        return tf.math.log(x)


REFUSALS = [
    (tf.gather, {"params": VECTOR, "indices": INDEX}, [floats(1), np.int32(7)[...]], "7 is "),
    (lambda x, y: x + y, {"x": VECTOR, "y": VECTOR}, [floats(1, 2), floats(1, 2, 3)], "[2] vs. [3]"),
    (lambda x: tf.reshape(x, [3, 3]), {"x": VECTOR}, [floats(1, 2)], "2"),
    (positive, {"x": VECTOR}, [floats(-1)], "x must be positive"),
]


@pytest.mark.parametrize(("function", "inputs", "arrays", "said"), REFUSALS)
def test_kernel_that_refuses_values_is_an_invalid_request_in_one_line(function, inputs, arrays, said: str) -> None:
    op = trace_one(function, inputs=inputs)
    for call in (lambda: op.program.forward(arrays), lambda: op.program.vjp(arrays, [one()])):
        with pytest.raises(InvalidRequest) as raised:
            call()
        assert (raised.value.reason, raised.value.facts) == ("VALUES_REFUSED", {"op": "probe"})
        assert str(raised.value).startswith("op 'probe': a kernel refused the values: ")
        assert said in str(raised.value)
        assert not has_path_or_traceback(str(raised.value))


@pytest.mark.parametrize("compiled", [False, True])
def test_kernel_that_refuses_values_under_xla_is_the_caller_s_error_too(compiled: bool) -> None:
    op = trace_one(lambda x, y: x + y, inputs={"x": VECTOR, "y": VECTOR}, jit_compile=compiled)
    with pytest.raises(InvalidRequest) as raised:
        op.program.forward([floats(1, 2), floats(1, 2, 3)])
    assert not has_path_or_traceback(str(raised.value))


@pytest.mark.parametrize("error", [ValueError, TypeError, IndexError, RuntimeError, StopIteration, NotImplementedError])
@pytest.mark.parametrize("wrap", [tf.numpy_function, tf.py_function])
def test_error_of_python_code_in_the_graph_is_not_for_callers(error: type[Exception], wrap) -> None:
    def fail(_):
        raise error("secret of /home/author/ops.py")

    op = trace_one(lambda x: wrap(fail, [x], tf.float32), inputs={"x": VECTOR})
    with pytest.raises(tf.errors.OpError) as raised:
        op.program.forward([floats(1)])
    assert translate(raised.value, "probe", has_python=True) is None


def test_kernel_text_that_repeats_a_marker_is_read_in_one_pass() -> None:
    assert len(kernel_text("{{function_node " * 100_000)) <= 400


@pytest.mark.parametrize("sent", [b"\xff", b"Traceback (most recent call last)", b"PyFunc", b"pyfunc_1"])
def test_kernel_that_repeats_what_a_caller_sent_is_still_the_caller_s_error(sent: bytes) -> None:
    op = trace_one(tf.strings.to_number, inputs={"input": tf.TensorSpec(None, tf.string)})
    with pytest.raises(InvalidRequest):
        op.program.forward([np.array([sent], object)])


def test_translate_of_a_missing_kernel_is_unsupported() -> None:
    error = translate(tf.errors.UnimplementedError(None, None, "no kernel for /a/b.cc"), "probe", has_python=False)
    assert isinstance(error, Unsupported)
    assert (error.reason, str(error)) == (
        "NO_KERNEL",
        "op 'probe': TensorFlow has no kernel for this: no kernel for (path)",
    )


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (tf.errors.OutOfRangeError, "INVALID_ARGUMENT", "VALUES_REFUSED"),
        (tf.errors.FailedPreconditionError, "FAILED_PRECONDITION", "OP_NOT_READY"),
        (tf.errors.ResourceExhaustedError, "RESOURCE_EXHAUSTED", "OUT_OF_MEMORY"),
    ],
)
def test_translate_of_a_kernel_error_has_the_code_of_its_kind(error, code: str, reason: str) -> None:
    public = translate(error(None, None, "why"), "probe", has_python=False)
    assert (public.code.name, public.reason) == (code, reason)


@pytest.mark.parametrize("error", [tf.errors.InternalError, tf.errors.UnknownError, tf.errors.AbortedError])
def test_translate_of_any_other_error_is_left_to_the_log(error) -> None:
    assert translate(error(None, None, "why"), "probe", has_python=False) is None


def test_kernel_text_keeps_what_the_kernel_said_alone() -> None:
    message = (
        "Graph execution error:\n\nDetected at node Foo defined at (most recent call last):\n"
        '  File "/home/author/ops.py", line 3, in f\n\n'
        "{{function_node __inference_f_12}} bad\n value in /usr/lib/x.so\n\t [[{{node Foo}}]] [Op:__inference_f_12]"
    )
    assert kernel_text(message) == "bad value in (path)"


def test_kernel_text_of_any_length_is_short() -> None:
    assert len(kernel_text("word " * 1000)) <= 400
