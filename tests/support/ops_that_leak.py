"""Ops that keep something of each call for good, which whatever watches a server must see."""

import numpy as np
import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
LEAK_BYTES = 2**18
_kept = []


def _keep_bytes(x):
    _kept.append(np.ones(LEAK_BYTES, np.uint8))
    return x


def _keep_trace(x):
    _kept.append(tf.function(tf.identity, autograph=False).get_concrete_function(tf.TensorSpec(x.shape, tf.float32)))
    return x


@op(inputs={"x": ANY})
@tf.custom_gradient
def keep_bytes(x):
    """x; keeps so many bytes of each call."""
    return tf.numpy_function(_keep_bytes, [x], tf.float32), lambda dy: dy


@op(inputs={"x": ANY})
@tf.custom_gradient
def keep_trace(x):
    """x; keeps a trace of each call."""
    return tf.numpy_function(_keep_trace, [x], tf.float32), lambda dy: dy
