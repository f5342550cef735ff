"""An op that takes as long as it is told, and counts the calls that began when nobody could use them any more."""

import time

import numpy as np
import tensorflow as tf

from gradserve_server import op

SLACK_SECONDS = 0.05
"""A deadline reaches the server as what is left of it, so that it is later there by the time of the way."""
counts = np.zeros(2, np.int32)


def _sleep(seconds, useful_until):
    counts[0] += 1
    counts[1] += 0 < useful_until < time.time() - SLACK_SECONDS
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
    """How many sleeps began, and how many of them too late."""
    del unused
    return tf.ensure_shape(tf.numpy_function(counts.copy, [], tf.int32), [2])
