"""Stacks, JVPs, HVPs, Jacobians and seeds by the blocking client, against a real server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradserve import Client, errors
from gradserve_server.testing import RunningServer

OPS = Path(__file__).with_name("ops_products.py")
X, V = np.array([1.0, -2.0, 3.0], np.float32), np.array([5.0, 7.0, -1.0], np.float32)
HUNDRED = np.ones(100, np.float32)


@pytest.fixture
def products(serve: Callable[..., RunningServer]) -> Iterator[Client]:
    with serve(OPS).client() as client:
        yield client


def scaled_inputs() -> dict[str, object]:
    return {"x": X, "scale": np.float32(2), "unused": X, "n": np.int32(4)}


@pytest.mark.parametrize("inputs", [X, [X], {"x": X}, {"x": X.tolist()}], ids=["bare", "list", "mapping", "numbers"])
@pytest.mark.parametrize("vectors", [V, [V], {"x": V}, {"x": V.tolist()}], ids=["bare", "list", "mapping", "numbers"])
def test_jvp_and_hvp_of_every_form_give_the_same(products: Client, inputs: object, vectors: object) -> None:
    pushed, product = products.jvp("cube", inputs, vectors), products.hvp("cube", inputs, vectors)
    np.testing.assert_allclose(pushed.tangent, 3 * X * X * V, rtol=1e-6)
    np.testing.assert_allclose(product.product, 6 * X * V, rtol=1e-6)
    for result in (pushed, product):
        np.testing.assert_allclose(result.output, X**3, rtol=1e-6)
        assert list(result.timing) == ["decode", "queue", "compute", "encode"]


@pytest.mark.parametrize("signature", ["", "float64"])
def test_products_take_the_signature_that_fits_or_is_named(products: Client, signature: str) -> None:
    x, v = X.astype("f8"), V.astype("f8")
    options = {"signature": signature, "version": 1, "request_id": "mine"}
    results = [products.jvp("cube", x, v, **options), products.hvp("cube", x, v, **options)]
    assert [results[0].tangent.dtype, results[1].product.dtype] == [np.float64, np.float64]
    assert products.jacobian("cube", 2.0, signature="float64").jacobian == np.float64(12)
    assert {result.request_id for result in results} == {"mine"}


def test_hvp_takes_output_gradients_in_every_form(products: Client) -> None:
    for upstream in (V, [V], {"output": V}, {"output": V.tolist()}):
        np.testing.assert_allclose(products.hvp("cube", X, X, upstream).product, 6 * X * X * V, rtol=1e-6)


def test_jacobian_has_the_shape_of_output_and_input(products: Client) -> None:
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    jacobian = products.jacobian("cube", x).jacobian
    assert jacobian.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(jacobian.reshape(6, 6), np.diag(3 * x.reshape(-1) ** 2), rtol=1e-6)


def test_jacobian_of_several_outputs_and_inputs_says_why_there_is_none(products: Client) -> None:
    result = products.jacobian("scaled", scaled_inputs())
    assert list(result.jacobians) == ["y", "total"]
    assert result.status["y"] == {"x": "dense", "scale": "dense", "unused": "unconnected", "n": "not_differentiable"}
    assert result.status["total"]["scale"] == "unconnected"
    np.testing.assert_array_equal(result.jacobians["y"]["x"], np.diag(4 * X))
    np.testing.assert_array_equal(result.jacobians["total"]["x"], np.ones(3, np.float32))
    assert result.jacobians["y"]["unused"] is None


def test_jacobian_by_some_inputs_with_zeros_has_those_alone(products: Client) -> None:
    result = products.jacobian("scaled", scaled_inputs(), differentiate=["unused", "n"], unconnected="zero")
    np.testing.assert_array_equal(result.jacobians["y"]["unused"], np.zeros((3, 3), np.float32), strict=True)
    assert result.status["total"] == {"unused": "dense", "n": "not_differentiable"}


def test_jvp_says_why_an_output_has_no_tangent(products: Client) -> None:
    result = products.jvp("scaled", scaled_inputs(), {"scale": 10.0})
    assert result.status == {"y": "dense", "n": "not_differentiable", "total": "unconnected"}
    np.testing.assert_array_equal(result.output_tangents["y"], 10 * X * X)
    zeros = products.jvp("scaled", scaled_inputs(), [None, np.float32(10), None, None], unconnected="zero")
    assert zeros.output_tangents["total"] == np.float32(0)


def test_hvp_says_why_an_input_has_no_product(products: Client) -> None:
    result = products.hvp("scaled", scaled_inputs(), {"x": V}, {"y": X})
    assert result.status == {"x": "dense", "scale": "dense", "unused": "unconnected", "n": "not_differentiable"}
    np.testing.assert_array_equal(result.products["x"], 4 * X * V)
    zeros = products.hvp("scaled", scaled_inputs(), {"x": V}, {"y": X}, unconnected="zero").products
    np.testing.assert_array_equal(zeros["unused"], np.zeros(3, np.float32), strict=True)


def test_vectors_of_nested_inputs_go_by_either_form_of_name(products: Client) -> None:
    inputs = {"state": {"h": X, "c": X}, "gain": V}
    for tangents in ({"state": {"h": V}}, {"state/h": V}, [{"h": V, "c": None}, None]):
        np.testing.assert_array_equal(products.jvp("gated", inputs, tangents).tangent, V * V * X)
    assert list(products.hvp("gated", inputs, {"state/h": V}).products) == ["state/h", "state/c", "gain"]


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("form", [lambda dy: dy, lambda dy: [dy], lambda dy: {"output": dy}])
def test_vjp_stacked_gives_a_gradient_for_each_row(products: Client, k: int, form: Callable) -> None:
    dy = np.arange(3 * k, dtype=np.float32).reshape(k, 3)
    result = products.vjp("cube", X, form(dy), stacked=True)
    np.testing.assert_allclose(result.gradient, 3 * X * X * dy, rtol=1e-6)
    np.testing.assert_allclose(result.output, X**3, rtol=1e-6)


def test_vjp_stacked_gives_variables_and_zeros_a_leading_axis_too(products: Client) -> None:
    dy = np.float32([[1, 0], [1, 1]])
    result = products.vjp("weighted", X[:2], dy, stacked=True, variable_gradients=True)
    np.testing.assert_array_equal(result.variable_gradients["weight"], dy * X[:2])
    zeros = products.vjp("scaled", scaled_inputs(), {"total": X[:2]}, stacked=True, unconnected="zero")
    assert zeros.input_gradients["unused"].shape == (2, 3)


def test_jacobian_is_that_of_stacked_unit_gradients(products: Client) -> None:
    stacked = products.vjp("cube", X, np.eye(3, dtype=np.float32), stacked=True).gradient
    np.testing.assert_array_equal(products.jacobian("cube", X).jacobian, stacked)


@pytest.mark.parametrize(
    "inputs", [[HUNDRED, 0.5], {"x": HUNDRED, "rate": 0.5}, {"x": HUNDRED, "rate": np.float32(0.5)}]
)
def test_seed_fills_its_input_which_is_then_left_out_of_those_by_position(products: Client, inputs: object) -> None:
    result = products.forward("dropped", [HUNDRED, np.float32(0.5)] if isinstance(inputs, list) else inputs, seed=7)
    explicit = products.forward("dropped", {"x": HUNDRED, "seed": np.int32([7, 0]), "rate": 0.5})
    np.testing.assert_array_equal(result.output, explicit.output)
    assert 20 < (result.output > 0).sum() < 80


def test_seed_gives_every_call_the_same_mask(products: Client) -> None:
    inputs = {"x": HUNDRED, "rate": np.float32(0.5)}
    mask = products.forward("dropped", inputs, seed=7).output
    pulled = products.vjp("dropped", inputs, {"output": HUNDRED}, seed=7)
    np.testing.assert_array_equal(pulled.output, mask)
    np.testing.assert_array_equal(pulled.input_gradients["x"], mask)
    np.testing.assert_array_equal(products.jvp("dropped", inputs, {"x": HUNDRED}, seed=7).tangent, mask)
    np.testing.assert_array_equal(np.diag(products.jacobian("dropped", inputs, seed=7).jacobians["output"]["x"]), mask)
    assert not np.array_equal(products.forward("dropped", inputs, seed=8).output, mask)


def test_result_gradient_passes_over_the_seed(products: Client) -> None:
    result = products.vjp("dropped", {"x": HUNDRED, "rate": np.float32(0.5)}, seed=7, differentiate=["x", "seed"])
    assert result.status == {"x": "dense", "seed": "not_differentiable"}
    np.testing.assert_array_equal(result.gradient, result.output)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_seed_of_any_size_gives_the_same_answer_twice(products: Client, seed: int) -> None:
    inputs = {"x": HUNDRED, "rate": np.float32(0.5)}
    first, second = (products.forward("dropped", inputs, seed=seed).output for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("send", "error_class", "reason"),
    [
        (lambda c, **o: c.jvp("signed", X, V, **o), errors.OpContractError, "NOT_LINEAR_IN_DY"),
        (lambda c, **o: c.hvp("squared_by_python", X, V, **o), errors.Unsupported, "NO_SECOND_RULE"),
        (lambda c, **o: c.jvp("cube", X, {}, **o), errors.InvalidRequest, "NO_VECTORS"),
        (lambda c, **o: c.jvp("cube", X, None, **o), errors.InvalidRequest, "NO_VECTORS"),
        (lambda c, **o: c.jvp("cube", X, {"y": V}, **o), errors.InvalidRequest, "BAD_TANGENT_NAMES"),
        (lambda c, **o: c.hvp("cube", X, {"y": V}, **o), errors.InvalidRequest, "BAD_VECTOR_NAMES"),
        (lambda c, **o: c.hvp("cube", X, V[:2], **o), errors.InvalidRequest, "SHAPE_MISMATCH"),
        (lambda c, **o: c.hvp("cube", X, V, V[:2], **o), errors.InvalidRequest, "SHAPE_MISMATCH"),
        (lambda c, **o: c.jvp("cube", X, V.astype("f8"), **o), errors.InvalidRequest, "DTYPE_MISMATCH"),
        (lambda c, **o: c.vjp("cube", X, V[None, :2], stacked=True, **o), errors.InvalidRequest, "SHAPE_MISMATCH"),
        (lambda c, **o: c.jacobian("cube", HUNDRED.repeat(42), **o), errors.ResourceExhausted, "TOO_MANY_ROWS"),
        (lambda c, **o: c.jacobian("cube", X, differentiate=["y"], **o), errors.InvalidRequest, "BAD_DIFFERENTIATE_NAMES"),
        (lambda c, **o: c.jacobian("nope", X, **o), errors.NotFound, "NO_SUCH_OP"),
        (lambda c, **o: c.jvp("cube", X, V, version=7, **o), errors.NotFound, "NO_SUCH_VERSION"),
        (lambda c, **o: c.jacobian("cube", X, seed=5, **o), errors.InvalidRequest, "NO_SEED_INPUT"),
        (lambda c, **o: c.forward("dropped", {"x": X, "rate": X[0]}, **o), errors.InvalidRequest, "BAD_INPUT_NAMES"),
    ],
)  # fmt: skip
def test_call_refused_by_the_server_raises_with_reason_and_request_id(products, send, error_class, reason) -> None:
    with pytest.raises(error_class) as caught:
        send(products, request_id="test-17")
    assert (caught.value.reason, caught.value.request_id) == (reason, "test-17")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "send",
    [
        lambda c, **o: c.jvp("cube", {"x": X}, {"x": V}, **o),
        lambda c, **o: c.hvp("cube", {"x": X}, {"x": V}, **o),
        lambda c, **o: c.jacobian("cube", {"x": X}, **o),
    ],
    ids=["jvp", "hvp", "jacobian"],
)
def test_bad_option_is_refused_before_a_call_is_sent(products: Client, send: Callable) -> None:
    for options, text in (({"timeout": 0}, "timeout: "), ({"unconnected": "nan"}, "unconnected: ")):
        with pytest.raises(errors.InvalidRequest, match=text) as caught:
            send(products, **options)
        assert caught.value.request_id is None


@pytest.mark.parametrize(
    ("op", "linear", "repeatable"), [("cube", True, True), ("signed", False, True), ("dropped", True, True)]
)
def test_op_info_tells_whether_a_rule_is_linear_and_answers_repeat(products, op, linear, repeatable) -> None:
    info = products.op(op)
    assert (info.linear, info.repeatable) == (linear, repeatable)
