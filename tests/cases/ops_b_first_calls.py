"""Ops that count how often their Python code runs, which is once for each trace."""

import collections

import numpy as np
import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
RUNS: "collections.Counter[str]" = collections.Counter()


@op(inputs={"x": ANY})
@tf.custom_gradient
def tripled(x):
    RUNS["tripled"] += 1

    def grad(dy):
        RUNS["tripled gradient"] += 1
        return 3.0 * dy

    return 3.0 * x, grad


class Lazy:
    """Makes its variable on its first call."""

    weight = None

    def scaled(self, x):
        RUNS["scaled"] += 1
        if self.weight is None:
            RUNS["variables"] += 1
            self.weight = tf.Variable(3.0)
        return self.weight * x


scaled = op(inputs={"x": ANY})(Lazy().scaled)


@op(inputs={"name": tf.TensorSpec([], tf.string)}, example={"name": b"tripled"})
def runs(name):
    """How often that code has run, read when this is called."""
    count = tf.numpy_function(lambda name: np.int64(RUNS[name.decode()]), [name], tf.int64)
    count.set_shape([])
    return count
