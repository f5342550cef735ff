"""Ops for hostile requests: one with inputs of many kinds, one with a seed, and one whose shapes multiply."""

import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)


@op(
    inputs={
        "x": tf.TensorSpec([None, 2], tf.float32),
        "rows": tf.TensorSpec([None], tf.int32),
        "keep": tf.TensorSpec([], tf.bool),
        "mode": tf.TensorSpec([], tf.string),
        "state": {"h": tf.TensorSpec([2], tf.float64), "steps": [tf.TensorSpec([], tf.int64)]},
    }
)
def pick(x, rows, keep, mode, state):
    """Rows of x, negated in the mode "minus", or zeros; and the state moved on by its steps."""
    picked = tf.gather(x, rows) * tf.where(mode == "minus", -1.0, 1.0)
    moved = state["h"] + tf.cast(state["steps"][0], tf.float64)
    return {"picked": tf.where(keep, picked, tf.zeros_like(picked)), "mode": mode, "state": {"h": moved}}


@op(inputs={"x": ANY, "seed": tf.TensorSpec([2], tf.int32)})
def drawn(x, seed):
    """Noise from a seed."""
    return x * tf.random.stateless_normal(tf.shape(x), seed)


@op(inputs={"x": ANY, "b": ANY, "c": ANY}, gradient="surrogate")
def largest(x, b, c):
    """The largest of each row of products: small inputs may make it very many, and its gradient looks at each of them."""
    products = x * tf.stop_gradient(b) * tf.stop_gradient(c)
    return tf.reduce_max(products, axis=tf.range(1, tf.rank(products)))


@op(inputs={"x": tf.TensorSpec([None], tf.float32), "y": tf.TensorSpec([None], tf.float32)}, gradient="surrogate")
def distances(x, y):
    """Distances to all others, of which there are far more than inputs and outputs."""
    return tf.reduce_sum(tf.abs(x[:, None] - y), axis=1)
