"""Ops whose gradient is not the derivative on purpose, and some that they are confused with."""

import numpy as np
import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
SCALAR = tf.TensorSpec([], tf.float32)


@op(inputs={"x": ANY}, gradient="surrogate")
@tf.custom_gradient
def identity_with_grad_of_norm_half(x):
    return tf.identity(x), lambda dy: tf.clip_by_norm(dy, 0.5)


@op(inputs={"x": ANY, "strength": SCALAR}, gradient="surrogate")
@tf.custom_gradient
def reversed_gradient(x, strength):
    return tf.identity(x), lambda dy: (-strength * dy, None)


@op(inputs={"x": ANY}, gradient="surrogate")
@tf.custom_gradient
def binary_sign(x):
    return tf.where(x >= 0, 1.0, -1.0), lambda dy: tf.where(tf.abs(x) <= 1.0, dy, 0.0)


@op(inputs={"x": ANY}, gradient="surrogate")
@tf.custom_gradient
def step(x):
    return tf.cast(x > 0, x.dtype), lambda dy: tf.where(tf.abs(x) <= 1.0, dy, 0.0)


@op(inputs={"v": ANY, "dampening": SCALAR}, gradient="surrogate")
@tf.custom_gradient
def dampened_spike(v, dampening):
    def grad(dz):
        return dz * dampening * tf.maximum(1.0 - tf.abs(v), 0.0), tf.zeros_like(dampening)

    return tf.cast(v > 0, v.dtype), grad


@op(inputs={"current": tf.TensorSpec([None], tf.float32)}, gradient="surrogate")
def spike_count(current):
    """Three steps of a leaky neuron: decay 0.5, threshold 1, reset by subtraction."""

    @tf.custom_gradient
    def spike(v):
        return tf.cast(v > 1.0, v.dtype), lambda dz: dz * tf.maximum(1.0 - tf.abs(v - 1.0), 0.0)

    potential, count = tf.zeros([]), tf.zeros([])
    for step_index in range(3):
        potential = 0.5 * potential + current[step_index]
        fired = spike(potential)
        potential -= fired
        count += fired
    return count


@op(inputs={"x": ANY}, gradient="surrogate", jit_compile=True)
@tf.custom_gradient
def sign_in_a_window(x):
    """Compiled by XLA."""
    return tf.sign(x), lambda dy: dy * tf.cast(tf.abs(x) <= 1.0, x.dtype)


round_passed_through = op("round_passed_through", inputs={"x": ANY}, gradient="surrogate")(
    tf.grad_pass_through(tf.round)
)


@op(inputs={"x": ANY, "low": SCALAR, "high": SCALAR}, gradient="surrogate")
@tf.custom_gradient
def clip_that_keeps_the_gradient(x, low, high):
    return tf.clip_by_value(x, low, high), lambda dy: (dy, None, None)


@op(inputs={"x": ANY})
def plain_clip(x):
    return tf.clip_by_value(x, -1.0, 1.0)


@op(inputs={"x": ANY, "low": SCALAR, "high": SCALAR}, gradient="surrogate")
def fake_quantised(x, low, high):
    return tf.quantization.fake_quant_with_min_max_vars(x, low, high, num_bits=8)


def _soft_dtw_table(cost, gamma):
    """Accumulated cost of Cuturi and Blondel (2017), with a border of infinities."""
    rows, columns = cost.shape
    table = np.full((rows + 2, columns + 2), np.inf)
    table[0, 0] = 0.0
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            steps = -np.array([table[i - 1, j - 1], table[i - 1, j], table[i, j - 1]]) / gamma
            largest = steps.max()
            table[i, j] = cost[i - 1, j - 1] - gamma * (np.log(np.exp(steps - largest).sum()) + largest)
    return table


def _soft_dtw_slopes(cost, gamma):
    """Slope of the last entry of the table with respect to each cost, by their backward recursion."""
    rows, columns = cost.shape
    table = _soft_dtw_table(cost, gamma)
    last = table[rows, columns]
    table[:, columns + 1] = table[rows + 1, :] = -np.inf
    table[rows + 1, columns + 1] = last
    padded = np.pad(cost, 1)
    slopes = np.zeros_like(table)
    slopes[rows + 1, columns + 1] = 1.0
    for i in range(rows, 0, -1):
        for j in range(columns, 0, -1):
            for down, right in ((1, 0), (0, 1), (1, 1)):
                k, m = i + down, j + right
                slopes[i, j] += slopes[k, m] * np.exp((table[k, m] - table[i, j] - padded[k, m]) / gamma)
    return slopes[1:-1, 1:-1]


@op(inputs={"cost": tf.TensorSpec([None, None], tf.float64), "gamma": tf.TensorSpec([], tf.float64)})
@tf.custom_gradient
def soft_dtw(cost, gamma):
    """Soft dynamic time warping of a cost matrix; forward and backward run in NumPy."""

    def grad(dy):
        slopes = tf.numpy_function(_soft_dtw_slopes, [cost, gamma], tf.float64)
        return dy * tf.ensure_shape(slopes, cost.shape), None

    value = tf.numpy_function(lambda c, g: _soft_dtw_table(c, g)[-2, -2], [cost, gamma], tf.float64)
    return tf.ensure_shape(value, []), grad
