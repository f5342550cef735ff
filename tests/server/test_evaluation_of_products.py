"""Evaluation of JVPs, HVPs, Jacobians and stacks: every check of a request against its op, and every status."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.derivative_ops import custom, identity_by, python
from tests.server.evaluators import call, evaluator_of
from tests.server.helpers import ANY, INDEX, SCALAR, VECTOR, floats, trace_all

from gradserve.errors import InvalidRequest, OpContractError, Unsupported
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.evaluation import Evaluator
from gradserve_server.scheduling.device import Device

X = floats(1, 2, 3)
DENSE, UNCONNECTED = pb.GRADIENT_STATUS_DENSE, pb.GRADIENT_STATUS_UNCONNECTED
INTEGER = pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE
UNRULED = {
    "resized": lambda x: tf.image.resize(x[None, :, None, None] ** 2, [6, 1], "nearest"),
    "fake_quantised": lambda x: tf.quantization.fake_quant_with_min_max_vars(x**2, -3.0, 20.0),
    "python_rule": custom(tf.square, lambda x, _, dy: python(lambda a: 2 * a)(x * dy)),
    "partial_sum": lambda x: x**3 + custom(tf.square, lambda x, _, dy: python(lambda a: 2 * a)(x * dy))(x),
    "recomputed": tf.recompute_grad(lambda x: tf.sin(x) * 2.0),
}
NOT_LINEAR = {
    "signed": identity_by(tf.sign),
    "clipped": identity_by(lambda dy: tf.clip_by_norm(dy, 0.5)),
    "softmaxed": identity_by(lambda dy: dy * tf.nn.softmax(dy)),
    "random_rule": custom(tf.identity, lambda _, y, dy: dy * tf.random.uniform(tf.shape(y))),
}
BAD_RULES = {
    "wrong_shape": identity_by(lambda dy: tf.reshape(dy, [-1])[: tf.size(dy) - 1]),
    "summed": identity_by(lambda dy: tf.reduce_sum(dy, axis=0, keepdims=True)),
}


def several(x, scale, unused, i):
    del unused
    return {"y": x**2 * scale, "n": tf.shape(x) + i, "kept": tf.identity(scale)}


@pytest.fixture(scope="module")
def evaluator(device: Device) -> Evaluator:
    weight, spare = tf.Variable(2.0, name="weight"), tf.Variable([1.0, 2.0], name="spare")
    with_weight = lambda x: x * weight + tf.reduce_sum(tf.stop_gradient(spare))
    rules = {**UNRULED, **NOT_LINEAR, **BAD_RULES}
    ops = [
        *trace_all(several, "several", inputs={"x": VECTOR, "scale": SCALAR, "unused": SCALAR, "i": INDEX}),
        *trace_all(tf.square, "square", inputs={"x": ANY}),
        *trace_all(with_weight, "weighted", inputs={"x": VECTOR}),
        *trace_all(tf.gather, "take", inputs={"params": VECTOR, "indices": INDEX}),
        *trace_all(tf.shape, "shape", inputs={"input": ANY}),
        *trace_all(lambda x: tf.raw_ops.AdjustHue(images=x, delta=0.5), "hue", inputs={"x": ANY}),
        *(op for name, rule in rules.items() for op in trace_all(rule, name, inputs={"x": VECTOR})),
    ]
    return evaluator_of(ops, device)


def several_inputs(**changed: np.ndarray) -> dict[str, np.ndarray]:
    number = np.float32(2)[...]
    return {"x": X, "scale": number, "unused": number, "i": np.int32(0)[...], **changed}


def statuses(gradients) -> dict:
    return {name: gradient.status for name, gradient in gradients.items()}


async def test_jvp_gives_each_output_its_status(evaluator: Evaluator) -> None:
    result = await call(evaluator, "jvp", "several", several_inputs(), vectors={"x": X})
    assert statuses(result.output_tangents) == {"y": DENSE, "n": INTEGER, "kept": UNCONNECTED}
    np.testing.assert_array_equal(result.output_tangents["y"].array, 4 * X * X, strict=True)
    assert list(result.outputs) == ["y", "n", "kept"]


async def test_hvp_gives_each_input_its_status(evaluator: Evaluator) -> None:
    result = await call(evaluator, "hvp", "several", several_inputs(), vectors={"x": X})
    assert statuses(result.products) == {"x": DENSE, "scale": DENSE, "unused": UNCONNECTED, "i": INTEGER}
    np.testing.assert_array_equal(result.products["x"].array, 4 * X, strict=True)
    assert result.products["scale"].array == (2 * X * X).sum()


async def test_jacobian_gives_each_pair_its_status_and_both_shapes(evaluator: Evaluator) -> None:
    jacobians = (await call(evaluator, "jacobian", "several", several_inputs())).jacobians
    assert statuses(jacobians) == {
        ("y", "x"): DENSE,
        ("y", "scale"): DENSE,
        ("y", "unused"): UNCONNECTED,
        ("y", "i"): INTEGER,
        ("kept", "x"): UNCONNECTED,
        ("kept", "scale"): DENSE,
        ("kept", "unused"): UNCONNECTED,
        ("kept", "i"): INTEGER,
    }
    np.testing.assert_array_equal(jacobians["y", "x"].array, np.diag(4 * X), strict=True)
    np.testing.assert_array_equal(jacobians["y", "scale"].array, X * X, strict=True)
    np.testing.assert_array_equal(jacobians["kept", "scale"].array, np.float32(1)[...], strict=True)


async def test_jacobian_of_some_inputs_comes_in_the_order_of_the_signature(evaluator: Evaluator) -> None:
    result = await call(evaluator, "jacobian", "several", several_inputs(), differentiate=["i", "x"])
    assert list(result.jacobians) == [("y", "x"), ("y", "i"), ("kept", "x"), ("kept", "i")]


async def test_stacked_vjp_gives_each_input_its_status_and_a_leading_axis(evaluator: Evaluator) -> None:
    upstream = {"y": np.float32([X, 0 * X])}
    result = await call(evaluator, "vjp", "several", several_inputs(), output_gradients=upstream, stack=2)
    assert statuses(result.input_gradients) == {"x": DENSE, "scale": DENSE, "unused": UNCONNECTED, "i": INTEGER}
    np.testing.assert_array_equal(result.input_gradients["x"].array, [4 * X * X, 0 * X])
    np.testing.assert_array_equal(result.input_gradients["scale"].array, [(X**3).sum(), 0])
    np.testing.assert_array_equal(result.outputs["y"], 2 * X * X)


async def test_stacked_vjp_without_output_gradients_counts_each_row_as_ones(evaluator: Evaluator) -> None:
    result = await call(evaluator, "vjp", "square", {"x": X}, stack=2)
    np.testing.assert_array_equal(result.input_gradients["x"].array, [2 * X, 2 * X])


async def test_stacked_vjp_stacks_the_gradients_of_variables(evaluator: Evaluator) -> None:
    options = {"output_gradients": {"output": np.float32([X, X])}, "stack": 2, "variable_gradients": True}
    gradients = (await call(evaluator, "vjp", "weighted", {"x": X}, **options)).variable_gradients
    assert statuses(gradients) == {"weight": DENSE, "spare": UNCONNECTED}
    np.testing.assert_array_equal(gradients["weight"].array, np.float32([14, 14]), strict=True)


@pytest.mark.parametrize(
    ("method", "field", "name", "shape"),
    [
        ("jvp", "output_tangents", "kept", ()),
        ("hvp", "products", "unused", ()),
        ("jacobian", "jacobians", ("y", "unused"), (3,)),
        ("jacobian", "jacobians", ("kept", "x"), (3,)),
        ("vjp", "input_gradients", "unused", (5,)),
    ],
)
async def test_zeros_stand_for_what_is_unconnected_if_asked_for(evaluator, method, field, name, shape) -> None:
    options = {"vectors": {"x": X}, "stack": 5 if method == "vjp" else 0, "zero_unconnected": True}
    result = getattr(await call(evaluator, method, "several", several_inputs(), **options), field)
    assert set(statuses(result).values()) <= {DENSE, INTEGER}
    np.testing.assert_array_equal(result[name].array, np.zeros(shape, np.float32), strict=True)


async def test_zeros_stand_for_the_stacked_gradient_of_an_unconnected_variable(evaluator: Evaluator) -> None:
    options = {"stack": 3, "variable_gradients": True, "zero_unconnected": True}
    gradients = (await call(evaluator, "vjp", "weighted", {"x": X}, **options)).variable_gradients
    np.testing.assert_array_equal(gradients["spare"].array, np.zeros((3, 2), np.float32), strict=True)


EMPTY = np.ones((2, 0), np.float32)
WRONG_VECTORS = [
    ({"z": X}, "BAD_{}_NAMES"),
    ({"x": X, "\n": X}, "BAD_{}_NAMES"),
    ({}, "NO_VECTORS"),
    ({"i": np.int32(1)[...]}, "NOT_DIFFERENTIABLE"),
    ({"x": X.astype("f8")}, "DTYPE_MISMATCH"),
    ({"x": X.astype("i4")}, "DTYPE_MISMATCH"),
    ({"x": X[:2]}, "SHAPE_MISMATCH"),
    ({"x": X[None]}, "SHAPE_MISMATCH"),
    ({"x": X[0]}, "SHAPE_MISMATCH"),
    ({"x": EMPTY}, "SHAPE_MISMATCH"),
    ({"scale": floats(1)}, "SHAPE_MISMATCH"),
]


@pytest.mark.parametrize(("method", "what"), [("jvp", "TANGENT"), ("hvp", "VECTOR")])
@pytest.mark.parametrize(("vectors", "reason"), WRONG_VECTORS)
async def test_wrong_vectors_are_refused_and_named(evaluator, method, what, vectors, reason) -> None:
    with pytest.raises(InvalidRequest, match=rf"op 'several', {what.lower()}") as raised:
        await call(evaluator, method, "several", several_inputs(), vectors=vectors)
    assert raised.value.reason == reason.format(what)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("gradients", "stack", "reason"),
    [
        ({"y": X}, 2, "SHAPE_MISMATCH"),
        ({"y": np.ones((3, 3), np.float32)}, 2, "SHAPE_MISMATCH"),
        ({"y": np.ones((2, 4), np.float32)}, 2, "SHAPE_MISMATCH"),
        ({"y": np.ones((2, 1), np.float32)}, 2, "SHAPE_MISMATCH"),
        ({"y": np.ones((2, 2, 3), np.float32)}, 2, "SHAPE_MISMATCH"),
        ({"y": np.ones((2, 3), np.float32)}, 0, "SHAPE_MISMATCH"),
        ({"kept": np.float32(1)[...]}, 1, "SHAPE_MISMATCH"),
        ({"y": np.ones((2, 3))}, 2, "DTYPE_MISMATCH"),
        ({"n": np.ones((2, 1), np.int32)}, 2, "NOT_DIFFERENTIABLE"),
        ({"z": np.ones((2, 3), np.float32)}, 2, "BAD_OUTPUT_GRADIENT_NAMES"),
    ],
)
async def test_stacked_output_gradients_that_do_not_fit_are_refused(evaluator, gradients, stack, reason) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await call(evaluator, "vjp", "several", several_inputs(), output_gradients=gradients, stack=stack)
    assert raised.value.reason == reason
    assert f"output gradient {next(iter(gradients))!r}" in str(raised.value) or reason.startswith("BAD")


@pytest.mark.parametrize("gradient", [X[:2], X[None], X[0], np.ones((2, 3), np.float32)], ids=str)
async def test_output_gradients_of_an_hvp_that_do_not_fit_are_refused(evaluator: Evaluator, gradient) -> None:
    options = {"vectors": {"x": X}, "output_gradients": {"output": gradient}}
    with pytest.raises(InvalidRequest, match=r"output gradient 'output'.*wanted \(3,\)") as raised:
        await call(evaluator, "hvp", "square", {"x": X}, **options)
    assert raised.value.reason == "SHAPE_MISMATCH"


@pytest.mark.parametrize("op", NOT_LINEAR)
async def test_jvp_of_a_rule_that_is_not_linear_is_refused(evaluator: Evaluator, op: str) -> None:
    with pytest.raises(OpContractError, match=f"^op '{op}': a JVP needs a gradient function that is linear") as raised:
        await call(evaluator, "jvp", op, {"x": X}, vectors={"x": X})
    assert raised.value.reason == "NOT_LINEAR_IN_DY"


@pytest.mark.parametrize(("op", "method"), [(op, method) for op in UNRULED for method in ("jvp", "hvp")])
async def test_products_that_tensorflow_has_no_rule_for_are_never_zeros(evaluator, op: str, method: str) -> None:
    served = {("resized", "hvp"): 4 * X, ("fake_quantised", "hvp"): floats(2, 4, 6)}
    for zeros in (False, True):
        options = {"vectors": {"x": X}, "zero_unconnected": zeros}
        if (op, method) in served:
            result = await call(evaluator, method, op, {"x": X}, **options)
            np.testing.assert_array_equal(result.products["x"].array, served[op, method])
            continue
        with pytest.raises(Unsupported, match=f"^op '{op}': TensorFlow has no rule") as raised:
            await call(evaluator, method, op, {"x": X}, **options)
        assert raised.value.reason == "NO_SECOND_RULE"


@pytest.mark.parametrize("method", ["vjp", "jvp", "hvp", "jacobian"])
@pytest.mark.parametrize(
    ("op", "inputs", "reason"),
    [
        ("shape", {"input": np.ones((1, 1, 3), np.float32)}, "NOT_DIFFERENTIABLE"),
        ("hue", {"x": np.ones((1, 1, 3), np.float32)}, "NO_GRADIENT_RULE"),
    ],
)
async def test_products_of_an_op_without_backward_are_refused(evaluator, method, op, inputs, reason) -> None:
    options = {"vectors": inputs} if method in ("jvp", "hvp") else {"stack": 2 * (method == "vjp")}
    with pytest.raises(OpContractError) as raised:
        await call(evaluator, method, op, inputs, **options)
    assert raised.value.reason == reason


@pytest.mark.parametrize("method", ["vjp", "jacobian"])
@pytest.mark.parametrize("op", BAD_RULES)
async def test_rows_of_a_rule_that_breaks_its_contract_are_refused(evaluator: Evaluator, op: str, method: str) -> None:
    with pytest.raises(OpContractError, match="the fault is in the op") as raised:
        await call(evaluator, method, op, {"x": X}, stack=2 * (method == "vjp"))
    assert raised.value.reason == "GRADIENT_SHAPE_MISMATCH"


@pytest.mark.parametrize("method", ["vjp", "jvp", "hvp", "jacobian"])
async def test_values_that_the_forward_pass_refuses_are_the_callers_fault(evaluator: Evaluator, method: str) -> None:
    options = {"vectors": {"params": X}} if method in ("jvp", "hvp") else {"stack": 2 * (method == "vjp")}
    with pytest.raises(InvalidRequest) as raised:
        await call(evaluator, method, "take", {"params": X, "indices": np.int32(7)[...]}, **options)
    assert raised.value.reason == "VALUES_REFUSED"
