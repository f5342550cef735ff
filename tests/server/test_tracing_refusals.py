"""Tracing: what breaks the contract in a way that a trace shows stops the load, in one line with op and cause."""

import pytest
import tensorflow as tf
from tests.server.helpers import ANY, SCALAR, VECTOR, trace_one

from gradserve_server.ops import OpLoadError


def rule(*gradients):
    """Returns an op of two inputs whose rule returns these gradients, functions of dy."""
    return tf.custom_gradient(lambda x, y: (x * y, lambda dy: tuple(gradient(dy) for gradient in gradients)))


@pytest.mark.parametrize(
    ("gradients", "cause", "said"),
    [
        ([lambda dy: dy], "GRADIENT_COUNT_MISMATCH", "wanted 2, got 1"),
        ([lambda dy: dy] * 3, "GRADIENT_COUNT_MISMATCH", "wanted 2, got 3"),
        ([lambda dy: dy, lambda dy: tf.cast(dy, tf.float64)], "GRADIENT_DTYPE_MISMATCH", "input 'y'.*float32.*float64"),
        ([lambda dy: dy, lambda dy: dy[None]], "GRADIENT_SHAPE_MISMATCH", r"input 'y'.*\(\), got \(1,\)"),
    ],
)
def test_trace_of_a_rule_that_breaks_the_contract_is_refused(gradients, cause: str, said: str) -> None:
    with pytest.raises(OpLoadError, match=said) as raised:
        trace_one(rule(*gradients), inputs={"x": SCALAR, "y": SCALAR})
    assert raised.value.cause == cause
    assert "module 'probe.py', op 'probe'" in str(raised.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.RaggedTensor.from_row_splits(x, [0, 1]),
        lambda x: (tf.sparse.from_dense(x),),
        lambda x: tf.TensorArray(tf.float32, 1).write(0, x),
        lambda x: {"text": str(x)},
        lambda x: setattr(x, "unused", 1),
        lambda x: tf.quantization.quantize(x, -1.0, 1.0, tf.quint8).output,
    ],
)
def test_trace_of_an_output_that_is_not_served_is_an_unsupported_kind(function) -> None:
    with pytest.raises(OpLoadError, match="output") as raised:
        trace_one(function, inputs={"x": VECTOR})
    assert raised.value.cause == "UNSUPPORTED_KIND"


@pytest.mark.parametrize(
    "spec",
    [
        tf.RaggedTensorSpec([None, None], tf.float32),
        tf.SparseTensorSpec([None], tf.float32),
        tf.TensorSpec(None, tf.variant),
        tf.TensorSpec(None, tf.resource),
        tf.float32,
        None,
    ],
)
def test_trace_of_an_input_that_is_not_served_is_an_unsupported_kind(spec) -> None:
    with pytest.raises(OpLoadError, match="input 'x'") as raised:
        trace_one(lambda x: x, inputs={"x": spec})
    assert raised.value.cause == "UNSUPPORTED_KIND"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.op.outputs[7], "IndexError: list index out of range"),
        (lambda x: x.shape.rank / 0, "ZeroDivisionError"),
        (lambda x: x + tf.constant([1, 2]), "TypeError"),
        (lambda x: {"x": x}["missing"], "KeyError: 'missing'"),
    ],
)
def test_trace_of_an_op_that_raises_names_the_error_in_one_line(function, said: str) -> None:
    with pytest.raises(OpLoadError, match=said) as raised:
        trace_one(function, inputs={"x": VECTOR})
    assert raised.value.cause == "TRACE_FAILED"
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("declared", "cause"),
    [
        ({"inputs": {"z": ANY}}, "BAD_INPUTS"),
        ({"inputs": {"x": VECTOR}, "example": {"x": [[1.0]]}}, "BAD_EXAMPLE"),
        ({"inputs": {"x": VECTOR}, "example": {"x": "text"}}, "BAD_EXAMPLE"),
        ({"inputs": {"x": VECTOR}, "example": {"y": [1.0]}}, "BAD_EXAMPLE"),
        ({"inputs": {"x": VECTOR}, "batch_axis": {"y": 0}}, "BAD_BATCH_AXIS"),
        ({"inputs": {"x": VECTOR}, "dtypes": ["no_such_dtype"]}, "BAD_DTYPES"),
        ({"inputs": {"x": VECTOR}, "dtypes": [tf.int32]}, "BAD_DTYPES"),
    ],
)
def test_trace_of_a_declaration_that_does_not_fit_is_refused(declared, cause: str) -> None:
    with pytest.raises(OpLoadError) as raised:
        trace_one(lambda x: x * 2.0, **declared)
    assert raised.value.cause == cause


def test_trace_of_a_rule_that_ignores_the_variables_it_uses_says_so() -> None:
    weight = tf.Variable(2.0)
    with pytest.raises(OpLoadError, match="must accept keyword argument 'variables'"):
        trace_one(tf.custom_gradient(lambda x: (x * weight, lambda dy: dy)), inputs={"x": SCALAR})


def test_trace_of_two_outputs_of_one_name_is_refused() -> None:
    with pytest.raises(OpLoadError, match="'y'") as raised:
        trace_one(lambda x: (x, x), inputs={"x": ANY}, outputs=["y", "y"])
    assert raised.value.cause == "BAD_OUTPUTS"
