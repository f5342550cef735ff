"""Tiny ops named for what they do to the server: sleep, record, raise, refuse."""

import time

import numpy as np
import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
SECONDS = tf.TensorSpec([], tf.float32)
NUMBER = tf.TensorSpec([], tf.int32)
RECORD: list[int] = []


def _sleep(seconds, number):
    RECORD.append(int(number))
    time.sleep(float(seconds))
    return np.float32(seconds)


def _raise(_):
    raise RuntimeError("the cause is for the log alone")


@op(inputs={"x": ANY}, dtypes=[tf.float64], elementwise=True)
@tf.custom_gradient
def square(x):
    """Square."""
    return tf.square(x), lambda dy: dy * 2.0 * x


@op(inputs={"seconds": SECONDS, "number": NUMBER}, example={"seconds": 0.0, "number": 0})
def sleep(seconds, number):
    """Puts its number into the record, and sleeps."""
    return tf.ensure_shape(tf.numpy_function(_sleep, [seconds, number], tf.float32), [])


@op(inputs={"since": NUMBER})
def record(since):
    """The numbers of the sleeps that began, from a position on."""
    return tf.ensure_shape(tf.numpy_function(lambda n: np.array(RECORD[n:], np.int32), [since], tf.int32), [None])


@op(inputs={"x": ANY})
def boom(x):
    """Raises in Python, inside the graph."""
    return tf.ensure_shape(tf.numpy_function(_raise, [x], tf.float32), x.shape)


@op(inputs={"table": tf.TensorSpec([None], tf.float32), "index": NUMBER})
def take(table, index):
    """One element."""
    return tf.gather(table, index)
