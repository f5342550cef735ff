"""Ops with all that TensorFlow numbers as it traces: control flow, rules, Python functions, variables, layers."""

import tensorflow as tf

from gradserve_server import op

X = {"x": tf.TensorSpec([None], tf.float32)}
WEIGHT = tf.Variable(2.0)


@op(inputs=X, dtypes=[tf.float64])
@tf.custom_gradient
def with_rule(x):
    return tf.square(x), lambda dy: dy * 2.0 * x


@op(inputs=X)
def with_branches(x):
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x * 2.0, lambda: -x)


@op(inputs=X)
def with_loop(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * x), [0, tf.ones_like(x)], maximum_iterations=3)[1]


@op(inputs=X)
def with_python(x):
    return tf.ensure_shape(tf.numpy_function(lambda value: value, [x], tf.float32), [None])


@op(inputs=X)
def with_variable(x):
    return x * WEIGHT


@op(inputs=X)
@tf.function
def with_inner_function(x):
    return tf.map_fn(lambda row: row * 2.0, x)


@op(inputs=X, jit_compile=True)
def with_xla(x):
    return tf.sin(x)
