"""An op that takes as long as it is told, and knows how late calls began that nobody could use any more."""

import time

import numpy as np
import tensorflow as tf

from gradserve_server import op

counts = np.zeros(2, np.float64)
"""How many sleeps began, and how many seconds after its use the latest of them."""


def _sleep(seconds, useful_until):
    counts[0] += 1
    if useful_until > 0:
        counts[1] = max(counts[1], time.time() - useful_until)
    time.sleep(float(seconds))
    return np.float64(seconds)


@op(
    inputs={"seconds": tf.TensorSpec([], tf.float64), "useful_until": tf.TensorSpec([], tf.float64)},
    example={"seconds": 0.0, "useful_until": 0.0},
)
def sleep(seconds, useful_until):
    """Sleeps."""
    return tf.ensure_shape(tf.numpy_function(_sleep, [seconds, useful_until], tf.float64), [])


@op(inputs={"unused": tf.TensorSpec([], tf.float32)})
def counted(unused):
    """How many sleeps began, and how many seconds after its use the latest of them."""
    del unused
    return tf.ensure_shape(tf.numpy_function(counts.copy, [], tf.float64), [2])
