"""Ops of every kind whose calls can be joined, for the tests of joining and of plans."""

import dataclasses
from typing import Any

import tensorflow as tf
from tests.server.helpers import ANY, SCALAR, trace_one

from gradserve_server.checking.rows import with_layout
from gradserve_server.ops import Op

ROWS = tf.TensorSpec([None, 3], tf.float32)
COLUMNS = tf.TensorSpec([3, None], tf.float32)


@tf.custom_gradient
def clipped(x):
    return tf.square(x), lambda dy: tf.clip_by_value(dy * 2.0 * x, -1.0, 1.0)


def affine(x, weight):
    return {"scaled": x * weight, "total": tf.reduce_sum(x * weight, axis=1)}


def positive(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x, message="x must be positive")]):
        return tf.math.log(x)


def probe(function, name: str, **declared: Any) -> Op:
    return with_layout(dataclasses.replace(trace_one(function, **declared), name=name))


OPS = {
    "flat": probe(clipped, "flat", inputs={"x": ANY}, elementwise=True),
    "product": probe(lambda x, y: x * tf.sin(y), "product", inputs={"x": ANY, "y": ANY}, elementwise=True),
    "rows": probe(lambda x: tf.nn.softmax(x, axis=1), "rows", inputs={"x": ROWS}, batch_axis=0),
    "columns": probe(lambda x: tf.cumsum(x, axis=0), "columns", inputs={"x": COLUMNS}, batch_axis=-1),
    "shared": probe(
        affine, "shared", inputs={"x": ROWS, "weight": SCALAR}, batch_axis={"x": 0, "scaled": 0, "total": 0}
    ),
    "positive": probe(positive, "positive", inputs={"x": ANY}, elementwise=True, example={"x": [1.0, 2.0]}),
}
