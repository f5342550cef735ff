"""The same name, version and signature key twice."""

import tensorflow as tf

from gradserve_server import op

X = {"x": tf.TensorSpec(None, tf.float32)}
first = op("twice", inputs=X)(lambda x: x * x)
second = op("twice", inputs=X)(lambda x: x + x)
