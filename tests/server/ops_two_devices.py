"""Two logical CPUs, made as the module is imported; TensorFlow writes where it places each node."""

import tensorflow as tf

from gradserve_server import op

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
tf.debugging.set_log_device_placement(True)

ANY = tf.TensorSpec(None, tf.float32)


@op(inputs={"x": ANY})
def on_default(x):
    return tf.square(x, name="node_on_default")


@op(inputs={"x": ANY}, device="cpu:1")
def on_second(x):
    return tf.square(x, name="node_on_second")
