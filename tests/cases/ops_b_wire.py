"""Ops that give back what they get: they show what the wire does to it."""

import tensorflow as tf

from gradserve_server import op


def _echo(name, spec):
    return op(name, inputs={"x": spec})(lambda x: tf.identity(x))  # noqa: PLW0108  # an op needs the parameter name x


echo = _echo("echo", tf.TensorSpec(None, tf.float32))
echo_scalar = _echo("echo_scalar", tf.TensorSpec([], tf.float32))
echo_vector = _echo("echo_vector", tf.TensorSpec([None], tf.float32))
echo_bfloat16 = _echo("echo_bfloat16", tf.TensorSpec(None, tf.bfloat16))
echo_strings = _echo("echo_strings", tf.TensorSpec(None, tf.string))


@op(inputs={"images": tf.TensorSpec(None, tf.float32), "phase": tf.TensorSpec([], tf.float32)})
def modulate(images, phase):
    return images * phase


@op(inputs={"x": tf.TensorSpec(None, tf.float32), "y": tf.TensorSpec(None, tf.float32)})
def product(x, y):
    return x * y
