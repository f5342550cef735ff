"""JVPs and HVPs of ops of many kinds, beside Jacobians and nested tapes on the spot."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.derivative_ops import custom, python
from tests.server.helpers import ANY, SCALAR, VECTOR, floats, one, trace_one
from tests.server.product_ops import CASES, Case, assert_agrees, draw_like, record, traced

from gradserve.errors import Unsupported
from gradserve_server.autodiff.vjp import is_differentiable

EVERY_CASE = pytest.mark.parametrize("name", CASES)


def jvp_by_tape(case: Case, tangents) -> list:
    """Returns J v for each differentiable output; rows of TensorFlow's complex Jacobians are conjugate."""
    tape, inputs, targets = record(case, persistent=True)
    sources = [tensor for tensor in inputs if is_differentiable(tensor)]
    sums = []
    for target in targets:
        jacobians = [tape.jacobian(target, source) for source in sources]
        there = [(j, v) for j, v in zip(jacobians, tangents, strict=True) if j is not None]
        terms = [tf.tensordot(tf.math.conj(j), tf.constant(v), v.ndim) for j, v in there]
        sums.append(tf.add_n(terms) if terms else None)
    return sums


def hvp_by_tapes(case: Case, output_gradients, vectors) -> list:
    inputs = [tf.constant(array) for array in case.inputs]
    sources = [tensor for tensor in inputs if is_differentiable(tensor)]
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as inner:
            inner.watch(sources)
            outputs = [y for y in tf.nest.flatten(case.function(*inputs)) if is_differentiable(y)]
        gradients = inner.gradient(outputs, sources, output_gradients=[tf.constant(dy) for dy in output_gradients])
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    pairs = [(g, tf.constant(v)) for g, v in zip(dense, vectors, strict=True) if g is not None]
    found = outer.gradient([g for g, _ in pairs], sources, output_gradients=[v for _, v in pairs])
    remaining = iter(found)
    return [next(remaining) if is_differentiable(tensor) else None for tensor in inputs]


def sources_of(case: Case) -> list[np.ndarray]:
    return [array for array in case.inputs if array.dtype != np.int32]


@EVERY_CASE
def test_jvp_is_the_jacobian_of_the_rule_times_the_tangents(name: str) -> None:
    case = CASES[name]
    tangents = draw_like(sources_of(case))
    outputs, found = traced(name).program.jvp(case.inputs, tangents)
    wanted = jvp_by_tape(case, tangents)
    assert len(found) == len(wanted)
    for got, tangent in zip(found, wanted, strict=True):
        assert_agrees(got, tangent)
    np.testing.assert_array_equal(outputs[0], traced(name).program.forward(case.inputs)[0])


@EVERY_CASE
def test_hvp_is_that_of_nested_tapes(name: str) -> None:
    case = CASES[name]
    _, _, targets = record(case)
    vectors, output_gradients = draw_like(sources_of(case)), draw_like(targets, seed=1)
    outputs, found = traced(name).program.hvp(case.inputs, output_gradients, vectors)
    wanted = hvp_by_tapes(case, output_gradients, vectors)
    assert len(found) == len(wanted)
    for got, product in zip(found, wanted, strict=True):
        assert_agrees(got, product)
    np.testing.assert_array_equal(outputs[0], traced(name).program.forward(case.inputs)[0])


def test_jvp_of_a_tangent_left_out_is_that_of_zeros() -> None:
    case, program = CASES["several"], traced("several").program
    x, scale, unused = draw_like(sources_of(case))
    for given in ([x, None, None], [None, scale, None], [x, None, unused]):
        zeros = [np.zeros_like(v) if g is None else g for v, g in zip((x, scale, unused), given, strict=True)]
        for got, wanted in zip(program.jvp(case.inputs, given)[1], program.jvp(case.inputs, zeros)[1], strict=True):
            np.testing.assert_array_equal(0 if got is None else got, wanted)


@pytest.mark.parametrize(
    ("given", "exists"), [(0, [True, True]), (1, [True, False]), (2, [False, False])], ids=["x", "scale", "unused"]
)
def test_jvp_of_an_output_that_no_input_with_a_tangent_reaches_is_none(given: int, exists: list[bool]) -> None:
    case = CASES["several"]
    tangents = [v if index == given else None for index, v in enumerate(draw_like(sources_of(case)))]
    _, found = traced("several").program.jvp(case.inputs, tangents)
    assert [tangent is not None for tangent in found] == exists


@pytest.mark.parametrize(
    ("given", "exists"), [(0, [True, False, True, False]), (1, [True, False, False, False])], ids=["x", "scale"]
)
def test_hvp_of_an_input_that_gradients_with_a_vector_do_not_depend_on_is_none(given: int, exists: list[bool]) -> None:
    case = CASES["several"]
    vectors = [v if index == given else None for index, v in enumerate(draw_like(sources_of(case)))]
    _, found = traced("several").program.hvp(case.inputs, [one(), one()], vectors)
    assert [product is not None for product in found] == exists


def test_hvp_spreads_a_number_over_its_output() -> None:
    x, v = floats(1, -2), floats(3, 5)
    (product,) = trace_one(lambda x: x**3, inputs={"x": ANY}).program.hvp([x], [one() * 2], [v])[1]
    np.testing.assert_allclose(product, 12 * x * v)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0), (1,) * 12])
def test_jvp_and_hvp_of_an_input_of_any_rank_take_each_rank(shape: tuple[int, ...]) -> None:
    program, x = traced("number").program, np.full(shape, 3, np.float32)
    v = np.full(shape, 7, np.float32)
    np.testing.assert_array_equal(program.jvp([x], [v])[1][0], 6 * v, strict=True)
    np.testing.assert_array_equal(program.hvp([x], [one()], [v])[1][0], 2 * v, strict=True)


UNRULED = {
    "PyFunc": custom(tf.square, lambda x, _, dy: python(lambda a: 2 * a)(x) * dy),
    "EagerPyFunc": lambda x: tf.ensure_shape(tf.py_function(tf.square, [x], tf.float32), x.shape),
    "ResizeNearestNeighborGrad": lambda x: tf.image.resize(x[None, :, None, None] ** 2, [4, 1], "nearest"),
    "FakeQuantWithMinMaxVarsGradient": lambda x: tf.quantization.fake_quant_with_min_max_vars(x**2, -3.0, 9.0),
}


@pytest.mark.parametrize(
    ("operation", "product"),
    [
        ("EagerPyFunc", "jvp"),
        ("ResizeNearestNeighborGrad", "jvp"),
        ("FakeQuantWithMinMaxVarsGradient", "jvp"),
        ("PyFunc", "hvp"),
        ("EagerPyFunc", "hvp"),
    ],
)
def test_products_through_an_operation_without_a_rule_are_refused_and_name_it(operation: str, product: str) -> None:
    program, x = trace_one(UNRULED[operation], inputs={"x": VECTOR}).program, floats(1, 2)
    calls = {"jvp": lambda: program.jvp([x], [x]), "hvp": lambda: program.hvp([x], [one()], [x])}
    with pytest.raises(Unsupported, match=operation) as raised:
        calls[product]()
    assert raised.value.reason == "NO_SECOND_RULE"


@pytest.mark.parametrize(
    ("operation", "product", "wanted"),
    [
        ("PyFunc", "jvp", [2, 8]),  # 2x dy, of which dy alone is differentiated
        ("ResizeNearestNeighborGrad", "hvp", [4, 8]),  # each element of x^2 stands twice in the output
        ("FakeQuantWithMinMaxVarsGradient", "hvp", [2, 4]),
    ],
)
def test_products_that_need_no_missing_rule_are_served(operation: str, product: str, wanted: list[float]) -> None:
    program, x = trace_one(UNRULED[operation], inputs={"x": VECTOR}).program, floats(1, 2)
    calls = {"jvp": lambda: program.jvp([x], [x]), "hvp": lambda: program.hvp([x], [one()], [x])}
    np.testing.assert_array_equal(calls[product]()[1][0], np.float32(wanted), strict=True)


@pytest.mark.parametrize("product", ["jvp", "hvp"])
def test_products_of_a_recomputed_op_are_refused_as_tensorflow_refuses_them(product: str) -> None:
    program = trace_one(tf.recompute_grad(tf.sin), inputs={"x": SCALAR}).program
    x = np.float32(1)[...]
    with pytest.raises(Unsupported) as raised:
        _ = program.jvp([x], [x]) if product == "jvp" else program.hvp([x], [x], [x])
    assert raised.value.reason == "NO_SECOND_RULE"


def test_products_refused_once_are_refused_again_with_facts_of_their_own() -> None:
    program = trace_one(tf.recompute_grad(tf.sin), inputs={"x": SCALAR}).program
    raised = []
    for _ in range(2):
        with pytest.raises(Unsupported) as caught:
            program.jvp([one()], [one()])
        raised.append(caught.value)
    assert str(raised[0]) == str(raised[1])
    assert raised[0] is not raised[1]


def test_vector_that_is_not_given_adds_nothing_where_a_slope_is_infinite() -> None:
    program = trace_one(lambda x, y: tf.sqrt(x) * y, inputs={"x": VECTOR, "y": VECTOR}).program
    inputs = [floats(0, 4), floats(1, 1)]
    _, (tangent,) = program.jvp(inputs, [None, floats(1, 1)])
    assert tangent.tolist() == [0.0, 2.0]
    _, (product, _) = program.hvp(inputs, [one()], [None, floats(1, 1)])
    assert product.tolist() == [np.inf, 0.25]


def test_jvp_of_a_rule_that_gives_no_gradient_is_unconnected() -> None:
    program = trace_one(tf.custom_gradient(lambda x: (2 * x, lambda _: None)), inputs={"x": VECTOR}).program
    assert program.jvp([floats(1, 2)], [floats(1, 1)])[1] == [None]
