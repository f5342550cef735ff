"""An op for a device that no machine here has."""

import tensorflow as tf

from gradserve_server import op


@op(inputs={"x": tf.TensorSpec(None, tf.float32)}, device="cpu:9")
def on_ninth(x):
    return tf.square(x)
