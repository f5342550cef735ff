"""Public cases whose gradient is not the derivative, on purpose."""

import numpy as np
import pytest
import tensorflow as tf
from tests.cases.arrays import assert_close, assert_same_bits, f32, f64

from gradserve import Client

SEVEN = f32(1, 2, 3, 4, 5, 6, 7)


def test_A02_output_gradient_is_clipped_to_a_norm(surrogates: Client) -> None:
    result = surrogates.vjp("identity_with_grad_of_norm_half", f32(1, 2), f32(3, 4))
    assert_same_bits(result.output, f32(1, 2))
    assert_close(result.gradient, f32(0.3, 0.4))


def test_A02_rule_that_is_not_linear_in_dy_sees_dy_as_it_was_sent(surrogates: Client) -> None:
    twice = surrogates.vjp("identity_with_grad_of_norm_half", f32(1, 2), f32(6, 8))
    assert_close(twice.gradient, f32(0.3, 0.4))
    short = surrogates.vjp("identity_with_grad_of_norm_half", f32(1, 2), f32(0.03, 0.04))
    assert_close(short.gradient, f32(0.03, 0.04))


def test_A03_reversed_gradient_has_none_for_its_strength(surrogates: Client) -> None:
    result = surrogates.vjp("reversed_gradient", {"x": f32(1, 2), "strength": 0.5}, f32(3, -5))
    assert_same_bits(result.output, f32(1, 2))
    assert_same_bits(result.input_gradients["x"], f32(-1.5, 2.5))
    assert result.input_gradients["strength"] is None
    assert result.status == {"x": "dense", "strength": "unconnected"}


def test_A03_strength_has_zeros_only_if_asked_for(surrogates: Client) -> None:
    inputs = {"x": f32(1, 2), "strength": 0.5}
    result = surrogates.vjp("reversed_gradient", inputs, f32(3, -5), unconnected="zero")
    assert_same_bits(result.input_gradients["x"], f32(-1.5, 2.5))
    assert_same_bits(result.input_gradients["strength"], np.array(0, np.float32))


def test_A52_sign_is_plus_one_at_zero_and_its_window_is_closed(surrogates: Client) -> None:
    result = surrogates.vjp("binary_sign", f32(-2, -1, -0.5, 0, 0.5, 1, 2), SEVEN)
    assert_same_bits(result.output, f32(-1, -1, -1, 1, 1, 1, 1))
    assert_same_bits(result.gradient, f32(0, 2, 3, 4, 5, 6, 0))
    assert_same_bits(surrogates.forward("binary_sign", f32(-0.0)).output, f32(1))


def test_A53_step_is_zero_at_zero(surrogates: Client) -> None:
    result = surrogates.vjp("step", f32(-1.5, -1, 0, 0.2, 1.5), np.ones(5, np.float32))
    assert_same_bits(result.output, f32(0, 0, 0, 1, 1))
    assert_same_bits(result.gradient, f32(0, 1, 1, 1, 0))


def test_A55_spike_has_a_triangular_slope(surrogates: Client) -> None:
    inputs = {"v": f32(-1.5, -0.5, 0, 0.5, 1.5), "dampening": 0.3}
    result = surrogates.vjp("dampened_spike", inputs, np.ones(5, np.float32))
    assert_same_bits(result.output, f32(0, 0, 0, 1, 1))
    assert_close(result.input_gradients["v"], f32(0, 0.15, 0.3, 0.15, 0))


def test_A55_zeros_that_an_op_gives_stay_zeros(surrogates: Client) -> None:
    result = surrogates.vjp("dampened_spike", {"v": f32(0.5), "dampening": 0.3})
    assert_same_bits(result.input_gradients["dampening"], np.array(0, np.float32))
    assert result.status["dampening"] == "dense"


def test_A56_slopes_of_spikes_add_up_through_the_reset(surrogates: Client) -> None:
    result = surrogates.vjp("spike_count", f32(0.8, 0.8, 0.3), np.float32(1))
    assert_same_bits(result.output, np.array(1, np.float32))
    assert_close(result.gradient, f32(0.884, 0.84, 0.4))


def soft_dtw_by_autodiff(cost: np.ndarray, dy: float) -> tuple[np.ndarray, np.ndarray]:
    """Soft-DTW with gamma 1, differentiated by TensorFlow: value, and slopes times ``dy``."""
    costs = tf.constant(cost)
    with tf.GradientTape() as tape:
        tape.watch(costs)
        table = {(0, 0): tf.constant(0.0, tf.float64)}
        border = tf.constant(1e9, tf.float64)
        for i, j in np.ndindex(*cost.shape):
            before = [table.get(place, border) for place in ((i, j), (i, j + 1), (i + 1, j))]
            table[i + 1, j + 1] = costs[i, j] - tf.reduce_logsumexp(-tf.stack(before))
        value = table[cost.shape]
    return value.numpy(), tape.gradient(value, costs).numpy() * dy


def test_A58_soft_dtw_of_three_by_three(surrogates: Client) -> None:
    cost = f64([0, 1, 4], [1, 0, 1], [4, 1, 0])
    result = surrogates.vjp("soft_dtw", {"cost": cost, "gamma": 1.0}, np.float64(2))
    assert_close(result.output, np.array(-1.190428), 1e-6)
    gradient = result.input_gradients["cost"]
    assert gradient is not None
    assert_close(gradient[0], f64(2.0, 0.472171, 0.001508), 1e-6)
    assert result.status["gamma"] == "unconnected"


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (1, 4)])
def test_A58_soft_dtw_agrees_with_autodiff(surrogates: Client, shape: tuple[int, int]) -> None:
    cost = np.random.default_rng(58).uniform(0, 4, shape) if shape != (3, 3) else f64([0, 1, 4], [1, 0, 1], [4, 1, 0])
    value, slopes = soft_dtw_by_autodiff(cost, dy=2)
    result = surrogates.vjp("soft_dtw", {"cost": cost, "gamma": 1.0}, np.float64(2))
    assert_close(result.output, value, 1e-9)
    assert_close(result.input_gradients["cost"], slopes, 1e-9)


def test_A59_round_passes_the_gradient_through(surrogates: Client) -> None:
    result = surrogates.vjp("round_passed_through", f32(1.4, 2.6, 2.5), f32(1, 2, 3))
    assert_same_bits(result.output, f32(1, 3, 2))
    assert_same_bits(result.gradient, f32(1, 2, 3))


def test_A66_clip_that_keeps_the_gradient(surrogates: Client) -> None:
    inputs = {"x": f32(-2, 0, 2), "low": -1.0, "high": 1.0}
    result = surrogates.vjp("clip_that_keeps_the_gradient", inputs, f32(1, 2, 3))
    assert_same_bits(result.output, f32(-1, 0, 1))
    assert_same_bits(result.input_gradients["x"], f32(1, 2, 3))
    assert result.status == {"x": "dense", "low": "unconnected", "high": "unconnected"}


def test_A66_plain_clip_has_slope_zero_outside(surrogates: Client) -> None:
    assert_same_bits(surrogates.vjp("plain_clip", f32(-2, 0, 2), f32(1, 2, 3)).gradient, f32(0, 2, 0))


def test_A67_fake_quantisation_has_slopes_for_its_range(surrogates: Client) -> None:
    inputs = {"x": f32(-2, -0.5, 0.5, 3), "low": -1.0, "high": 1.0}
    result = surrogates.vjp("fake_quantised", inputs, f32(1, 2, 3, 4))
    assert_same_bits(result.input_gradients["x"], f32(0, 2, 3, 0))
    assert (result.input_gradients["low"], result.input_gradients["high"]) == (1, 4)


def test_A46_op_compiled_by_xla_has_the_values_and_the_rule_of_the_op(surrogates: Client) -> None:
    result = surrogates.vjp("sign_in_a_window", f32(-2, 0.5, 1), f32(1, 2, 3))
    assert_same_bits(result.output, f32(-1, 1, 1))
    assert_same_bits(result.gradient, f32(0, 2, 3))
