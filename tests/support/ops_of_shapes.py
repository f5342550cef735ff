"""Twenty ops that take many shapes: of any rank or of open sizes, elementwise, with a batch axis, and with neither.

The last op tells how many functions TensorFlow holds in the server's process: each trace is one, or several.
"""

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # nothing public counts functions

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
VECTOR = tf.TensorSpec([None], tf.float32)
MATRIX = tf.TensorSpec([None, None], tf.float32)
CUBE = tf.TensorSpec([None, None, None], tf.float32)
ROWS = tf.TensorSpec([None], tf.int32)
OFFSET = tf.Variable(0.5, name="offset")


@op(inputs={"x": ANY}, elementwise=True)
def sine(x):
    """sin(x)."""
    return tf.sin(x)


@op(inputs={"x": ANY}, elementwise=True, dtypes=[tf.float32, tf.float64])
def softplus(x):
    """log(1 + exp(x)), in two dtypes."""
    return tf.math.softplus(x)


@op(inputs={"x": ANY}, elementwise=True, gradient="surrogate")
@tf.custom_gradient
def round_straight_through(x):
    """Round to the nearest integer; the gradient passes straight through."""
    return tf.round(x), lambda dy: dy


@op(inputs={"x": ANY, "y": ANY}, elementwise=True)
def gate(x, y):
    """x sigmoid(y)."""
    return x * tf.sigmoid(y)


@op(inputs={"x": ANY, "y": ANY}, elementwise=True, gradient="surrogate")
@tf.custom_gradient
def clipped_product(x, y):
    """x y, with gradients that are clipped."""
    return x * y, lambda dy: (tf.clip_by_value(dy * y, -1.0, 1.0), tf.clip_by_value(dy * x, -1.0, 1.0))


@op(inputs={"x": MATRIX}, batch_axis=0)
def softmax(x):
    """Softmax of each row."""
    return tf.nn.softmax(x)


@op(inputs={"x": MATRIX}, batch_axis=0)
def normalise(x):
    """Rows by their lengths."""
    return x / tf.sqrt(1.0 + tf.reduce_sum(tf.square(x), axis=1, keepdims=True))


@op(inputs={"x": MATRIX}, batch_axis=1)
def running_sum(x):
    """Sums along each column."""
    return tf.cumsum(x, axis=0)


@op(
    inputs={"x": tf.TensorSpec([None, 16], tf.float32), "weight": tf.TensorSpec([16, 8], tf.float32)},
    batch_axis={"x": 0, "output": 0},
)
def layer(x, weight):
    """A dense layer; all rows share the weight."""
    return tf.tanh(x @ weight)


@op(inputs={"x": CUBE, "y": CUBE}, batch_axis=0)
def products(x, y):
    """A product of matrices for each row."""
    return x @ y


@op(inputs={"x": tf.TensorSpec([None, None, None, 3], tf.float32)}, batch_axis=0)
def blur(x):
    """Averages over three by three pixels."""
    return tf.nn.avg_pool2d(x, 3, 1, "SAME")


@op(inputs={"x": ANY})
def total(x):
    """The sum of squares."""
    return tf.reduce_sum(tf.square(x))


@op(inputs={"x": ANY})
def clip_by_norm(x):
    """x, at most 1 long."""
    return tf.clip_by_norm(x, 1.0)


@op(inputs={"x": ANY})
def transpose(x):
    """The axes of x in the opposite order."""
    return tf.transpose(x)


@op(inputs={"x": MATRIX, "y": MATRIX})
def matmul(x, y):
    """The product of two matrices."""
    return x @ y


@op(inputs={"x": MATRIX, "y": VECTOR})
def add_to_rows(x, y):
    """y added to each row of x."""
    return x + y


@op(inputs={"x": VECTOR})
def sort(x):
    """x in ascending order."""
    return tf.sort(x)


@op(inputs={"x": MATRIX, "rows": ROWS}, example={"x": np.eye(3, dtype=np.float32), "rows": [2, 0]})
def choose(x, rows):
    """Some rows of x."""
    return tf.gather(x, rows)


@op(inputs={"x": MATRIX, "y": MATRIX}, example={"x": np.eye(3, dtype=np.float32), "y": np.eye(3, dtype=np.float32)})
def join(x, y):
    """The rows of x, and then those of y."""
    return tf.concat([x, y], axis=0)


@op(inputs={"x": VECTOR})
def shift(x):
    """x plus a variable."""
    return x + OFFSET


@op(inputs={"unused": tf.TensorSpec([], tf.float32)}, stateful=True)
def functions(unused):
    """How many functions TensorFlow holds."""
    del unused
    names = context.context().list_function_names
    return tf.ensure_shape(tf.numpy_function(lambda: np.int64(len(names())), [], tf.int64), [])
