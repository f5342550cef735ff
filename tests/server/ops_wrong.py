"""Ops that claim what they do not keep, for tests of the check at a start."""

import tensorflow as tf

from gradserve_server import op

X = {"x": tf.TensorSpec([None], tf.float32)}


@op(inputs=X)
@tf.custom_gradient
def forgetful(x):
    return tf.square(x), lambda _: 2.0 * x


@op(inputs=X)
def right(x):
    return x**3


@op(inputs=X, gradient="surrogate")
@tf.custom_gradient
def rounded(x):
    return tf.round(x), lambda dy: dy


@op(inputs=X)
def noisy(x):
    return x * tf.random.uniform(tf.shape(x))


@op(inputs={"rows": tf.TensorSpec([None], tf.int32)})
def whole(rows):
    return tf.cast(rows, tf.int64)


@op(inputs={"x": tf.TensorSpec([None], tf.bfloat16)}, example={"x": [1.0, 2.0]})
@tf.custom_gradient
def forgetful_and_narrow(x):
    return tf.square(x), lambda _: 2.0 * x
