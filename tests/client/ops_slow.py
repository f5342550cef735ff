"""Ops for the tests of the clients: one that takes as long as it is told, and ones with several inputs and outputs."""

import time

import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)


def _sleep(seconds):
    time.sleep(float(seconds))
    return seconds


@op(inputs={"seconds": tf.TensorSpec([], tf.float32)}, example={"seconds": 0.0})
@tf.custom_gradient
def sleep(seconds):
    """Sleeps, and returns how long it was told to."""
    return tf.ensure_shape(tf.numpy_function(_sleep, [seconds], tf.float32), []), lambda dy: dy


@op(inputs={"x": ANY, "unused": ANY, "index": tf.TensorSpec([], tf.int32)}, outputs=["double", "index", "triple"])
def split(x, unused, index):
    """Returns 2x, an integer and 3x; nothing depends on ``unused``."""
    del unused
    return 2.0 * x, index + 1, 3.0 * x


@op(inputs={"state": {"h": ANY, "c": ANY}, "gain": ANY})
def cell(state, gain):
    """Weighs the parts of a nested state."""
    return gain * (state["h"] + 10.0 * state["c"])
