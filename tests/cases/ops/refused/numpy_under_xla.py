"""An op that XLA is to compile and that runs NumPy, which XLA cannot."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec([None], tf.float32)}, jit_compile=True)
def numpy_under_xla(x):
    return tf.ensure_shape(tf.numpy_function(lambda a: a * 2, [x], tf.float32), x.shape)


@op(inputs={"x": tf.TensorSpec(None, tf.float32)})
def healthy(x):
    return 3.0 * x
