"""Ops for the tests of what clients derive: several inputs and outputs, a nested state, a seed, and rules of many kinds."""

import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
VECTOR = tf.TensorSpec([None], tf.float32)


@op(inputs={"x": ANY}, dtypes=[tf.float64])
def cube(x):
    """Cube."""
    return x**3


@op(inputs={"x": VECTOR, "scale": tf.TensorSpec([], tf.float32), "unused": VECTOR, "n": tf.TensorSpec([], tf.int32)})
def scaled(x, scale, unused, n):
    """Two floating outputs and an integer; nothing depends on ``unused``."""
    del unused
    return {"y": x**2 * scale, "n": n + 1, "total": tf.reduce_sum(x)}


@op(inputs={"state": {"h": VECTOR, "c": VECTOR}, "gain": VECTOR})
def gated(state, gain):
    """Multiplies the parts of a nested state."""
    return gain * state["h"] * state["c"]


@op(
    inputs={"x": VECTOR, "seed": tf.TensorSpec([2], tf.int32), "rate": tf.TensorSpec([], tf.float32)},
    gradient="surrogate",
)
def dropped(x, seed, rate):
    """Dropout whose mask depends on the seed alone; the seed stands between the other inputs."""
    keep = tf.cast(tf.random.stateless_uniform(tf.shape(x), seed) >= rate, x.dtype)
    return x * keep / (1.0 - tf.stop_gradient(rate))


@op(inputs={"x": ANY}, gradient="surrogate")
@tf.custom_gradient
def signed(x):
    """A rule that is not linear in dy."""
    return tf.identity(x), tf.sign


@op(inputs={"x": ANY})
@tf.custom_gradient
def squared_by_python(x):
    """A rule that cannot be differentiated."""
    slope = tf.ensure_shape(tf.numpy_function(lambda a: 2 * a, [x], tf.float32), x.shape)
    return x**2, lambda dy: dy * slope


weight = tf.Variable([1.0, 2.0], name="weight")


@op(inputs={"x": tf.TensorSpec([2], tf.float32)})
def weighted(x):
    """Multiplies by a variable."""
    return x * weight
