"""Ops whose Python code raises while they run, and one that does not."""

import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)


class TextlessError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        return self.args[5]


def _run(function, x):
    result = tf.numpy_function(function, [x], tf.float32)
    result.set_shape(x.shape)
    return result


def _raising(name, error):
    def run(_):
        raise error

    return op(name, inputs={"x": ANY})(lambda x: _run(run, x))


raises_value_error = _raising("raises_value_error", ValueError("secret path /x"))
raises_not_implemented = _raising("raises_not_implemented", NotImplementedError("secret path /x"))
raises_memory_error = _raising("raises_memory_error", MemoryError("secret path /x"))
raises_stop_iteration = _raising("raises_stop_iteration", StopIteration("secret path /x"))
raises_system_exit = _raising("raises_system_exit", SystemExit("secret path /x"))
raises_textless = _raising("raises_textless", TextlessError("secret path /x"))


@op(inputs={"x": ANY})
@tf.custom_gradient
def raises_backward(x):
    def run(_):
        raise ValueError("secret path /x")

    return tf.identity(x), lambda dy: _run(run, dy)


@op(inputs={"x": ANY})
def doubled(x):
    return x * 2.0


@op(inputs={"x": ANY, "y": ANY})
def total(x, y):
    return x + y
