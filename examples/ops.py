"""Ops to copy: those of TensorFlow's guides on custom gradients, and others that people ask for.

Serve them with ``gradserve-server examples/ops.py``. Each takes tensors of any shape; ``dy`` is the upstream gradient.
"""

import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
SCALAR = tf.TensorSpec([], tf.float32)


@op(inputs={"x": ANY}, dtypes=[tf.float64], elementwise=True)
@tf.custom_gradient
def square_with_grad(x):
    """Square, with its derivative written out.

    y = x^2, dx = dy * 2x. The first example of every guide: dy is multiplied in, because the op is one link of a chain.
    """
    return tf.square(x), lambda dy: dy * 2.0 * x


@op(inputs={"x": ANY, "y": ANY}, dtypes=[tf.float64])
@tf.custom_gradient
def multiply_with_grad(x, y):
    """Product of two tensors that may broadcast, with one gradient for each.

    z = x y, dx = dz * y and dy = dz * x, each summed over the axes along which its input was broadcast.
    """

    def grad(dz):
        x_axes, y_axes = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(x), s1=tf.shape(y))
        dx = tf.reshape(tf.reduce_sum(dz * y, x_axes), tf.shape(x))
        dy = tf.reshape(tf.reduce_sum(dz * x, y_axes), tf.shape(y))
        return dx, dy

    return x * y, grad


@op(inputs={"x": ANY}, elementwise=True, gradient="surrogate")
@tf.custom_gradient
def clipped_identity(x):
    """Clip to [-1, 1], straight-through.

    y = min(max(x, -1), 1), dx = dy. Keeps learning where a plain clip has slope 0; used in quantised networks.
    """
    return tf.clip_by_value(x, -1.0, 1.0), lambda dy: dy


@op(inputs={"x": ANY}, elementwise=True, gradient="surrogate")
@tf.custom_gradient
def square_with_clipped_grad(x):
    """Square whose slope is clipped to [-1, 1].

    y = x^2, dx = dy * min(max(2x, -1), 1). Bounds the steps that large inputs cause.
    """
    return tf.square(x), lambda dy: dy * tf.clip_by_value(2.0 * x, -1.0, 1.0)


@op(inputs={"x": ANY}, elementwise=True, gradient="surrogate")
@tf.custom_gradient
def round_with_identity_grad(x):
    """Round to the nearest integer (halves to even), straight-through.

    y = round(x), dx = dy. The heart of quantisation-aware training: the true derivative is 0 almost everywhere.
    """
    return tf.round(x), lambda dy: dy


@op(inputs={"x": ANY}, dtypes=[tf.float64], elementwise=True)
@tf.custom_gradient
def log1p_exp(x):
    """Softplus that neither overflows nor loses its gradient.

    y = log(1 + e^x), computed as max(x, 0) + log1p(e^-|x|); dx = dy * sigmoid(x). Plain log(1 + exp(x)) has the
    gradient inf/inf = NaN for large x.
    """
    return tf.maximum(x, 0.0) + tf.math.log1p(tf.exp(-tf.abs(x))), lambda dy: dy * tf.sigmoid(x)


@op(inputs={"x": ANY, "strength": SCALAR}, gradient="surrogate")
@tf.custom_gradient
def reverse_gradient(x, strength):
    """Identity whose gradient is turned around and scaled.

    y = x, dx = -strength * dy; strength has no gradient. Used in domain-adversarial training (Ganin and Lempitsky,
    2015), between the features and the classifier that must not tell the domains apart.
    """
    return tf.identity(x), lambda dy: (-strength * dy, None)


@op(inputs={"x": ANY}, dtypes=[tf.float64], elementwise=True, gradient="surrogate")
@tf.custom_gradient
def safe_sqrt(x):
    """Square root with slope 0 at 0.

    y = sqrt(x), dx = dy / (2 sqrt(x)) for x > 0, else 0. The true slope at 0 is infinite, and turns into NaN as soon as
    it is multiplied by 0; distances and norms run into that.
    """
    y = tf.sqrt(x)

    def grad(dy):
        positive = x > 0
        return tf.where(positive, dy * 0.5 / tf.where(positive, y, tf.ones_like(y)), tf.zeros_like(dy))

    return y, grad


@op(inputs={"x": ANY}, elementwise=True, gradient="surrogate")
@tf.custom_gradient
def sign_straight_through(x):
    """Sign, straight-through inside a window.

    y = +1 for x >= 0, else -1; dx = dy where |x| <= 1, else 0. Binarised networks (Hubara et al., 2016) train weights
    and activations with it.
    """
    return tf.where(x >= 0, tf.ones_like(x), -tf.ones_like(x)), lambda dy: tf.where(
        tf.abs(x) <= 1.0, dy, tf.zeros_like(dy)
    )


@op(inputs={"v": ANY, "dampening": SCALAR}, gradient="surrogate")
@tf.custom_gradient
def spike(v, dampening):
    """Spike of a neuron, with a triangular surrogate slope.

    z = 1 for v > 0, else 0; dv = dz * dampening * max(1 - |v|, 0), and zeros for dampening. Spiking networks train with
    it (Bellec et al., 2018); v is the membrane potential less its threshold.
    """

    def grad(dz):
        return dz * dampening * tf.maximum(1.0 - tf.abs(v), 0.0), tf.zeros_like(dampening)

    return tf.cast(v > 0, v.dtype), grad


@op(inputs={"x": ANY, "seed": tf.TensorSpec([2], tf.int32)})
@tf.custom_gradient
def dropout(x, seed):
    """Dropout of half of the elements.

    y = 2x where a number drawn from the seed is at least 1/2, else 0; dx = dy * 2 there, else 0. The mask is drawn again
    for the gradient rather than kept: from the same seed it is the same one. A call gives it by ``seed=7``.
    """

    def mask():
        return 2.0 * tf.cast(tf.random.stateless_uniform(tf.shape(x), seed) >= 0.5, x.dtype)

    return x * mask(), lambda dy: (dy * mask(), None)
