"""Public cases of derivatives beyond the first, of stacks, and of seeds."""

import numpy as np
import pytest
import tensorflow as tf
from tests.cases.arrays import assert_close, assert_same_bits, f32

from gradserve import Client
from gradserve.errors import Code, OpContractError, Unsupported

ONES = np.ones(1000, np.float32)
SQUARES = ["custom_square", "custom_square_in_a_graph", "custom_square_twice"]
AT = f32(1, 2, 3)
NEIGHBOURS = f32([2, 1, 0], [0, 3, 2])


@pytest.mark.parametrize("seed", [0, 7])
def test_A15_recomputed_dropout_has_one_mask_in_both_passes(derivatives: Client, seed: int) -> None:
    result = derivatives.vjp("recomputed_dropout", {"x": ONES}, {"output": ONES}, seed=seed)
    assert_same_bits(result.gradient, result.output)
    assert 0 < (result.output == 0).sum() < 1000


def test_A15_seed_is_an_input_that_the_signature_shows(derivatives: Client) -> None:
    spec = derivatives.op("recomputed_dropout").signatures["serving_default"].inputs["seed"]
    assert (spec.dtype.name, spec.shape, spec.differentiable) == ("int32", (2,), False)
    explicit = derivatives.vjp("recomputed_dropout", {"x": ONES, "seed": np.array([7, 0], np.int32)})
    assert_same_bits(derivatives.vjp("recomputed_dropout", {"x": ONES}, seed=7).output, explicit.output)


def test_A15_dropout_of_its_own_generator_has_two_masks_and_is_listed_as_not_repeatable(derivatives: Client) -> None:
    result = derivatives.vjp("recomputed_dropout_of_its_own_seed", ONES, ONES)
    assert not np.array_equal(result.gradient, result.output)
    assert not derivatives.op("recomputed_dropout_of_its_own_seed").repeatable
    assert derivatives.op("recomputed_dropout").repeatable


@pytest.mark.parametrize("product", ["jvp", "hvp"])
def test_A16_products_through_recomputation_are_not_implemented(derivatives: Client, product: str) -> None:
    with pytest.raises(Unsupported, match="op 'recomputed_sine': TensorFlow has no rule") as raised:
        getattr(derivatives, product)("recomputed_sine", f32(1), f32(1))
    assert (raised.value.code, raised.value.reason) == (Code.UNIMPLEMENTED, "NO_SECOND_RULE")
    assert_close(derivatives.vjp("recomputed_sine", f32(1)).gradient, np.cos(f32(1)))


@pytest.mark.parametrize("op", SQUARES)
def test_A17_custom_square_has_a_value_a_slope_and_a_second_derivative(derivatives: Client, op: str) -> None:
    first, second = derivatives.vjp(op, 3.0), derivatives.hvp(op, 3.0, 1.0)
    assert (first.output, first.gradient, second.output, second.product) == (9, 6, 9, 2)


@pytest.mark.parametrize("op", SQUARES)
def test_A17_second_derivative_scales_with_vector_and_output_gradient(derivatives: Client, op: str) -> None:
    assert_same_bits(derivatives.hvp(op, f32(3, -1), f32(5, 7), f32(1, 10)).product, f32(10, 140))


def test_A61_same_request_with_the_same_seed_has_the_same_answer(derivatives: Client) -> None:
    first, again, other = (derivatives.forward("noisy", {"x": ONES}, seed=seed).output for seed in (5, 5, 6))
    assert_same_bits(first, again)
    assert not np.array_equal(first, other)
    assert_same_bits(derivatives.vjp("noisy", {"x": ONES}, seed=5).output, first)


def test_A61_generator_of_its_own_answers_differently_and_is_listed_so(derivatives: Client) -> None:
    first, again = (derivatives.forward("noisy_by_itself", ONES).output for _ in range(2))
    assert not np.array_equal(first, again)
    assert not derivatives.op("noisy_by_itself").repeatable
    assert derivatives.op("noisy").repeatable


def test_A63_jvp_follows_the_rule_and_not_the_forward_pass(derivatives: Client) -> None:
    result = derivatives.jvp("slope_ten", f32(1, 1), f32(1, 3))
    assert_same_bits(result.tangent, f32(10, 30))
    assert_same_bits(result.output, f32(2, 2))


def test_A64_unconnected_input_has_no_gradient_or_zeros_by_request(derivatives: Client) -> None:
    inputs = {"x": f32(1, 2), "unused": f32([4])}
    none = derivatives.vjp("without_the_second", inputs)
    assert (none.input_gradients["unused"], none.status["unused"]) == (None, "unconnected")
    zeros = derivatives.vjp("without_the_second", inputs, unconnected="zero")
    assert_same_bits(zeros.input_gradients["unused"], f32([0]))
    assert zeros.status["unused"] == "dense"


def test_A64_unconnected_input_of_a_product_likewise(derivatives: Client) -> None:
    inputs, vector = {"x": f32(1, 2), "unused": f32([4])}, {"unused": f32([1])}
    for unconnected, wanted in (("none", None), ("zero", [0, 0])):
        found = derivatives.jvp("without_the_second", inputs, vector, unconnected=unconnected).tangent
        assert (found if found is None else found.tolist()) == wanted
        products = derivatives.hvp("without_the_second", inputs, vector, unconnected=unconnected).products
        assert (products["x"] if wanted is None else products["x"].tolist()) == wanted
        rows = derivatives.jacobian("without_the_second", inputs, unconnected=unconnected).jacobians["output"]["unused"]
        assert (rows is None) if wanted is None else (rows.shape == (2, 1, 1) and not rows.any())


def test_A64_unconnected_keras_variables_have_none_or_zeros_by_request(derivatives: Client) -> None:
    rows = f32([1, 2])
    none = derivatives.vjp("stopped_layer", rows, variable_gradients=True).variable_gradients
    assert none == {"frozen_dense/kernel": None, "frozen_dense/bias": None}
    zeros = derivatives.vjp("stopped_layer", rows, variable_gradients=True, unconnected="zero").variable_gradients
    assert_same_bits(zeros["frozen_dense/kernel"], f32([0], [0]))
    assert_same_bits(zeros["frozen_dense/bias"], f32(0))


def test_A69_jacobian_by_stacked_unit_gradients(derivatives: Client) -> None:
    result = derivatives.vjp("neighbours", AT, np.eye(2, dtype=np.float32), stacked=True)
    assert_same_bits(result.gradient, NEIGHBOURS)
    assert_same_bits(result.output, f32(2, 6))


def test_A69_jacobian_by_the_call_of_that_name_and_by_a_local_tape(derivatives: Client) -> None:
    x = tf.constant(AT)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x[:-1] * x[1:]
    assert_same_bits(derivatives.jacobian("neighbours", AT).jacobian, NEIGHBOURS)
    assert_same_bits(tape.jacobian(y, x).numpy(), NEIGHBOURS)


def test_A69_jacobian_one_unit_gradient_at_a_time(derivatives: Client) -> None:
    rows = [derivatives.vjp("neighbours", AT, unit).gradient for unit in np.eye(2, dtype=np.float32)]
    assert_same_bits(np.stack(rows), NEIGHBOURS)


def test_A02_stack_clips_the_norm_of_each_row_alone(surrogates: Client) -> None:
    result = surrogates.vjp("identity_with_grad_of_norm_half", f32(1, 1), f32([3, 4], [0.25, 0]), stacked=True)
    assert_close(result.gradient, f32([0.3, 0.4], [0.25, 0]))


def test_A02_rule_that_is_not_linear_has_no_jvp(surrogates: Client) -> None:
    assert surrogates.op("identity_with_grad_of_norm_half").linear is False
    with pytest.raises(OpContractError) as raised:
        surrogates.jvp("identity_with_grad_of_norm_half", f32(1, 1), f32(3, 4))
    assert raised.value.reason == "NOT_LINEAR_IN_DY"
