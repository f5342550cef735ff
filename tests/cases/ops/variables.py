"""Ops with variables, for the public cases A10 and those like it."""

import keras
import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
ROWS = tf.TensorSpec([None, 2], tf.float32)

weight = tf.Variable(2.0, name="weight")
first, second = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
frozen = tf.Variable(3.0, trainable=False, name="frozen")
table = tf.Variable(tf.ones([4, 2]), name="table")


@op(inputs={"x": ANY})
@tf.custom_gradient
def scaled(x):
    def grad(dy, variables=None):
        assert [variable is weight for variable in variables] == [True]
        return dy * weight, [tf.reduce_sum(dy * x)]

    return x * weight, grad


@op(inputs={"x": ANY}, gradient="surrogate")
@tf.custom_gradient
def surrogate_weight(x):
    """Its rule for the variable is not the derivative, on purpose."""

    def grad(dy, variables=None):
        del variables
        return dy, [tf.constant(7.0)]

    return x * weight, grad


@op(inputs={"x": tf.TensorSpec([2], tf.float32)})
def two_without_names(x):
    """The second is read, but the output does not depend on it differentiably."""
    return x * frozen + first + tf.stop_gradient(second)


@op(inputs={"x": tf.TensorSpec([2], tf.float32)}, variables={"offset": first, "shift": second})
def two_with_names(x):
    return x + first + 10.0 * second


@op(inputs={"rows": tf.TensorSpec([None], tf.int32)})
def lookup(rows):
    return tf.gather(table, rows)


class Doubled(tf.Module):
    def __init__(self):
        self.gain = tf.Variable([2.0, 4.0], name="gain")

    def apply(self, x):
        return x * self.gain


doubled = op("doubled", inputs={"x": tf.TensorSpec([None, 2], tf.float32)})(Doubled().apply)

layer = keras.layers.Dense(1, kernel_initializer="ones", name="dense")
layer.build((None, 2))
dense = op("dense", inputs={"x": ROWS})(layer)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)], name="model")
two_layers = op("two_layers", inputs={"x": ROWS})(model)


@op("two_layers_by_tape", inputs={"x": ROWS, "dy": tf.TensorSpec([None, 1], tf.float32)})
def two_layers_by_tape(x, dy):
    """What a local tape gives for the kernels and biases of the model, by their paths."""
    with tf.GradientTape() as tape:
        y = model(x)
    values = [variable.value for variable in model.trainable_variables]
    paths = [variable.path for variable in model.trainable_variables]
    return dict(zip(paths, tape.gradient(y, values, output_gradients=dy), strict=True))


switched = tf.Variable(2.0, trainable=False, name="switched")


@tf.custom_gradient
def _times(x, weight):
    return weight * x, lambda dy: (dy * weight, None)


@op(inputs={"x": tf.TensorSpec([], tf.float32), "on": tf.TensorSpec([], tf.bool)})
def in_a_branch(x, on):
    """Passes the value of a variable to an op with a rule, inside a branch."""
    return tf.cond(on, lambda: _times(x, switched.read_value()), lambda: x)


def read(variable):
    """Reads a variable by its handle, which TensorFlow does not report."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


@op(inputs={"x": tf.TensorSpec([2], tf.float32)}, variables={"gain": first})
def given_by_name(x):
    return x * read(first) + second


@op(inputs={"rows": tf.TensorSpec([None], tf.int32)}, variables=[table])
def given_in_a_list(rows):
    return tf.raw_ops.ResourceGather(resource=table.handle, indices=rows, dtype=tf.float32)


words = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["two"], [2.0]), 0.0)


@op(inputs={"x": tf.TensorSpec([2], tf.float32), "word": tf.TensorSpec([], tf.string)})
def with_a_lookup_table(x, word):
    return x * words.lookup(word)
