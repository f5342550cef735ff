"""Tracing: what the signatures of an op are, and what its traces compute."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import ANY, INDEX, SCALAR, VECTOR, floats, one, trace_all, trace_one

from gradserve_server.ops import OpLoadError


def double(x):
    return x * 2.0


def test_trace_with_further_dtypes_makes_a_signature_for_each() -> None:
    ops = trace_all(tf.square, inputs={"x": ANY}, dtypes=[tf.float64, "bfloat16"])
    assert {op.signature.key: op.signature.inputs["x"].dtype.name for op in ops} == {
        "serving_default": "float32",
        "float64": "float64",
        "bfloat16": "bfloat16",
    }


def test_trace_with_the_inputs_own_dtype_listed_makes_no_second_signature() -> None:
    ops = trace_all(tf.square, inputs={"x": ANY}, dtypes=[tf.float32])
    assert [op.signature.key for op in ops] == ["serving_default"]


def test_trace_with_further_dtypes_changes_floating_inputs_alone() -> None:
    inputs = {"x": VECTOR, "s": SCALAR, "i": INDEX}
    _, op = trace_all(lambda x, s, i: tf.gather(x, i) * s, inputs=inputs, dtypes=[tf.float64])
    assert {n: s.dtype.name for n, s in op.signature.inputs.items()} == {"x": "float64", "s": "float64", "i": "int32"}


BY_VALUE = {
    "a loop": lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: y + 1.0, [x])[0],
    "a loop in a function": tf.function(lambda x: tf.map_fn(tf.square, x)),
    "a branch": lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: -x),
    "a branch of many": lambda x: tf.switch_case(tf.size(x), [lambda: x, lambda: -x]),
    "Python": lambda x: tf.ensure_shape(tf.numpy_function(np.square, [x], tf.float32), [None]),
}


@pytest.mark.parametrize("kind", BY_VALUE)
def test_op_whose_values_decide_what_runs_is_not_bounded(kind: str) -> None:
    assert not trace_one(BY_VALUE[kind], inputs={"x": VECTOR}).program.is_bounded


def test_op_that_runs_the_same_for_all_values_is_bounded() -> None:
    assert trace_one(lambda x: tf.where(x > 0.0, tf.sin(x), x), inputs={"x": VECTOR}).program.is_bounded


def test_op_whose_rule_alone_has_a_loop_is_not_bounded() -> None:
    @tf.custom_gradient
    def looping_rule(x):
        return x * x, BY_VALUE["a loop"]

    assert not trace_one(looping_rule, inputs={"x": VECTOR}).program.is_bounded


def test_trace_with_a_signature_key_uses_it() -> None:
    assert trace_one(double, inputs={"x": ANY}, signature="small").signature.key == "small"


def test_trace_of_nested_inputs_names_them_with_a_slash_and_hands_them_nested() -> None:
    def step(x, state):
        return x * state["h"] + state["c"][0]

    op = trace_one(step, inputs={"x": SCALAR, "state": {"h": SCALAR, "c": [SCALAR]}})
    assert list(op.signature.inputs) == ["x", "state/h", "state/c/0"]
    _, gradients = op.program.vjp([np.float32(v)[...] for v in (2, 3, 5)], [one()])
    assert [float(g) for g in gradients] == [3.0, 2.0, 1.0]


def test_trace_of_inputs_declared_in_another_order_binds_them_by_name() -> None:
    op = trace_one(lambda x, y: x - 2.0 * y, inputs={"y": SCALAR, "x": SCALAR})
    outputs, gradients = op.program.vjp([floats(1)[0][...], floats(10)[0][...]], [one()])
    assert (list(op.signature.inputs), float(outputs[0])) == (["y", "x"], 8.0)
    assert [float(g) for g in gradients] == [-2.0, 1.0]


@pytest.mark.parametrize(
    ("function", "declared", "names"),
    [
        (double, None, ["output"]),
        (lambda x: (x, x), None, ["output_0", "output_1"]),
        (lambda x: {"up": x, "down": -x}, None, ["up", "down"]),
        (lambda x: (x, {"h": x}), None, ["output_0", "output_1/h"]),
        (lambda x: (x, x), ["left", "right"], ["left", "right"]),
        (double, ["y"], ["y"]),
    ],
)
def test_trace_of_outputs_names_them(function, declared, names) -> None:
    op = trace_one(function, inputs={"x": ANY}, outputs=declared)
    assert list(op.signature.outputs) == names


def test_trace_of_a_dict_of_outputs_returns_each_under_its_own_name() -> None:
    op = trace_one(lambda x: {"z_up": x * 2.0, "a_down": x * 3.0}, inputs={"x": SCALAR})
    outputs, (gradient,) = op.program.vjp([one()], [one(), one() * 10])
    assert dict(zip(op.signature.outputs, map(float, outputs), strict=True)) == {"z_up": 2.0, "a_down": 3.0}
    assert float(gradient) == 2.0 + 30.0


def test_trace_with_the_wrong_number_of_output_names_is_refused() -> None:
    with pytest.raises(OpLoadError, match="outputs names 2 but the op returns 1") as raised:
        trace_one(double, inputs={"x": ANY}, outputs=["a", "b"])
    assert raised.value.cause == "BAD_OUTPUTS"


def test_trace_of_unknown_rank_and_sizes_says_so_in_the_signature() -> None:
    op = trace_one(lambda x, y: (x, tf.transpose(y)), inputs={"x": ANY, "y": tf.TensorSpec([None, 3], tf.float32)})
    assert [spec.shape for spec in op.signature.inputs.values()] == [None, (None, 3)]
    assert [spec.shape for spec in op.signature.outputs.values()] == [None, (3, None)]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 1, 3), (1,) * 31 + (2,)])
def test_program_of_unknown_rank_takes_any_shape(shape: tuple[int, ...]) -> None:
    op = trace_one(tf.square, inputs={"x": ANY})
    x = np.full(shape, 3.0, np.float32)
    outputs, gradients = op.program.vjp([x], [np.full(shape, 2.0, np.float32)])
    np.testing.assert_array_equal(outputs[0], x * x, strict=True)
    np.testing.assert_array_equal(gradients[0], x * 4.0, strict=True)


def test_trace_marks_connected_floating_inputs_alone_as_differentiable() -> None:
    op = trace_one(
        lambda x, unused, i: (tf.gather(x, i), tf.cast(unused, tf.int32)),
        inputs={"x": VECTOR, "unused": SCALAR, "i": INDEX},
    )
    assert {n: spec.differentiable for n, spec in op.signature.inputs.items()} == {
        "x": True,
        "unused": False,
        "i": False,
    }


def test_trace_marks_an_input_whose_rule_returns_none_as_not_differentiable() -> None:
    op = trace_one(
        tf.custom_gradient(lambda x, s: (x * s, lambda dy: (dy * s, None))), inputs={"x": SCALAR, "s": SCALAR}
    )
    assert [spec.differentiable for spec in op.signature.inputs.values()] == [True, False]


def test_trace_marks_integer_outputs_as_taking_no_gradient() -> None:
    op = trace_one(lambda x: (x * x, tf.shape(x)), inputs={"x": VECTOR})
    assert [spec.differentiable for spec in op.signature.outputs.values()] == [True, False]
    (square, shape), (gradient,) = op.program.vjp([floats(1, 2)], [floats(1, 1)])
    assert (shape.tolist(), square.tolist(), gradient.tolist()) == ([2], [1.0, 4.0], [2.0, 4.0])


def test_program_of_a_gather_returns_a_dense_gradient() -> None:
    op = trace_one(tf.gather, inputs={"params": VECTOR, "indices": tf.TensorSpec([None], tf.int32)})
    _, (gradient,) = op.program.vjp([floats(1, 2, 3), np.array([2, 2, 0], np.int32)], [floats(1, 10, 100)])
    np.testing.assert_array_equal(gradient, floats(100, 0, 11), strict=True)


def test_trace_without_a_gradient_rule_keeps_forward() -> None:
    op = trace_one(
        lambda x: tf.raw_ops.AdjustHue(images=x, delta=0.5), inputs={"x": tf.TensorSpec([1, 1, 3], tf.float32)}
    )
    assert "no gradient" in op.no_vjp
    assert op.program.forward([floats(1, 0, 0)[None, None]])[0].tolist() == [[[0.0, 1.0, 1.0]]]


def test_trace_with_integer_outputs_only_has_no_vjp() -> None:
    op = trace_one(tf.shape, inputs={"input": ANY})
    assert "floating-point or complex" in op.no_vjp
    assert op.program.forward([floats(1, 2)])[0].tolist() == [2]


def test_program_compiled_by_xla_gives_the_values_of_the_op() -> None:
    op = trace_one(lambda x: tf.reduce_sum(tf.sin(x) * x), inputs={"x": VECTOR}, jit_compile=True)
    for x in (floats(0.5, 1.5), floats(2.0, 3.0, 4.0)):
        (output,), (gradient,) = op.program.vjp([x], [one()])
        np.testing.assert_allclose(output, np.sum(np.sin(x) * x), rtol=1e-6)
        np.testing.assert_allclose(gradient, np.cos(x) * x + np.sin(x), rtol=1e-6)


def test_trace_with_jit_compile_asks_xla_for_both_passes() -> None:
    program = trace_one(double, inputs={"x": VECTOR}, jit_compile=True).program
    for concrete in (program.forward_trace, program.vjp_trace):
        (call,) = [node for node in concrete.graph.as_graph_def().node if "PartitionedCall" in node.op]
        assert call.attr["_XlaMustCompile"].b


def test_trace_of_a_tf_function_gives_its_values() -> None:
    op = trace_one(tf.function(lambda x: x**3.0), inputs={"x": SCALAR})
    (output,), (gradient,) = op.program.vjp([floats(2)[0][...]], [one()])
    assert (float(output), float(gradient)) == (8.0, 12.0)


def test_trace_of_a_tf_function_around_a_custom_rule_keeps_the_rule() -> None:
    op = trace_one(tf.function(tf.custom_gradient(lambda x: (x * x, lambda dy: dy * 7.0))), inputs={"x": SCALAR})
    assert float(op.program.vjp([one()], [one()])[1][0]) == 7.0


def test_trace_of_a_keras_layer_gives_its_values() -> None:
    layer = tf.keras.layers.Dense(1, kernel_initializer="ones", name="dense_probe")
    layer.build((None, 2))
    op = trace_one(layer, inputs={"inputs": tf.TensorSpec([None, 2], tf.float32)})
    (output,), (gradient,) = op.program.vjp([floats(2, 3)[None]], [floats(10)[None]])
    assert (output.tolist(), gradient.tolist()) == ([[5.0]], [[10.0, 10.0]])


def test_trace_of_a_rule_that_takes_variables_gives_the_gradients_of_the_inputs() -> None:
    weight = tf.Variable(2.0)

    @tf.custom_gradient
    def weighted(x):
        return x * weight, lambda dy, variables=(): (dy * 7.0, [dy * x for _ in variables])

    (output,), (gradient,) = trace_one(weighted, inputs={"x": SCALAR}).program.vjp([one()], [one()])
    assert (float(output), float(gradient)) == (2.0, 7.0)


def test_trace_of_a_function_with_defaults_keeps_them() -> None:
    op = trace_one(lambda x, scale=5.0, y=2.0: x * scale * y, inputs={"x": SCALAR, "y": SCALAR})
    assert float(op.program.forward([one(), one()])[0]) == 5.0


def test_program_with_fifty_shapes_traces_no_more_than_at_the_start() -> None:
    traced = []
    op = trace_one(lambda x: (traced.append(1), x * x)[1], inputs={"x": VECTOR})
    at_start = len(traced)
    for size in range(50):
        op.program.vjp([np.ones(size, np.float32)], [one()])
        op.program.forward([np.ones(size, np.float32)])
    assert len(traced) == at_start == 2


def test_program_vjp_runs_forward_once() -> None:
    ran = []

    @tf.custom_gradient
    def counted(x):
        y = tf.numpy_function(lambda value: (ran.append(1), value * 3)[1], [x], tf.float32)
        return tf.ensure_shape(y, x.shape), lambda dy: dy * 3.0

    op = trace_one(counted, inputs={"x": VECTOR})
    (output,), (gradient,) = op.program.vjp([floats(1, 2)], [one()])
    assert (ran, output.tolist(), gradient.tolist()) == ([1], [3.0, 6.0], [3.0, 3.0])


def test_program_spreads_a_rank_0_output_gradient_over_the_output() -> None:
    op = trace_one(lambda x: tf.tile(x, [2]), inputs={"x": VECTOR})
    assert op.program.vjp([floats(1, 2)], [one() * 5])[1][0].tolist() == [10.0, 10.0]


def test_program_of_strings_keeps_bytes() -> None:
    op = trace_one(lambda s: (s, s[0]), inputs={"s": tf.TensorSpec([None], tf.string)})
    all_of_them, first = op.program.forward([np.array([b"a\0", b"\xff"], object)])
    assert (all_of_them.tolist(), first.shape, first.item()) == ([b"a\0", b"\xff"], (), b"a\0")


def test_trace_on_a_device_places_both_passes_there() -> None:
    program = trace_one(tf.square, inputs={"x": ANY}).program
    for concrete in (program.forward_trace, program.vjp_trace):
        devices = {node.device for node in concrete.graph.get_operations() if node.type in ("Square", "Mul")}
        assert devices == {"/device:CPU:0"}
