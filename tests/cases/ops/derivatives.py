"""Ops whose derivatives are pushed forward, stacked, taken twice, or drawn from a seed."""

import keras
import tensorflow as tf

from gradserve_server import op

ANY = tf.TensorSpec(None, tf.float32)
VECTOR = tf.TensorSpec([None], tf.float32)
SEED = tf.TensorSpec([2], tf.int32)
RATE = 0.4


def dropout(x, seed):
    return tf.nn.experimental.stateless_dropout(x, RATE, seed)


recomputed_dropout = op("recomputed_dropout", inputs={"x": VECTOR, "seed": SEED})(tf.recompute_grad(dropout))
recomputed_sine = op("recomputed_sine", inputs={"x": ANY})(tf.recompute_grad(tf.sin))


@op(inputs={"x": VECTOR}, gradient="unchecked")
def recomputed_dropout_of_its_own_seed(x):
    """Wrong on purpose: a generator of its own draws another mask when the op is computed anew."""
    return tf.recompute_grad(lambda x: tf.nn.dropout(x, RATE))(x)


@op(inputs={"x": ANY})
@tf.custom_gradient
def custom_square(x):
    return tf.square(x), lambda dy: dy * 2.0 * x


custom_square_in_a_graph = op("custom_square_in_a_graph", inputs={"x": ANY})(tf.function(custom_square.function))


@op(inputs={"x": ANY})
@tf.custom_gradient
def custom_square_twice(x):
    """Its second derivative is a rule too."""

    @tf.custom_gradient
    def slope(x):
        return 2.0 * x, lambda ddy: 2.0 * ddy

    return tf.square(x), lambda dy: dy * slope(x)


@op(inputs={"x": VECTOR, "seed": SEED})
def noisy(x, seed):
    return x + tf.random.stateless_normal(tf.shape(x), seed)


@op(inputs={"x": VECTOR})
def noisy_by_itself(x):
    return x + tf.random.normal(tf.shape(x))


@op(inputs={"x": VECTOR}, gradient="surrogate")
@tf.custom_gradient
def slope_ten(x):
    """Doubles, with a slope of ten."""
    return 2.0 * x, lambda dy: 10.0 * dy


@op(inputs={"x": VECTOR, "unused": tf.TensorSpec([1, 1], tf.float32)})
def without_the_second(x, unused):
    del unused
    return 3.0 * x


layer = keras.layers.Dense(1, name="frozen_dense")
layer.build((None, 2))


@op(inputs={"x": tf.TensorSpec([None, 2], tf.float32)}, gradient="surrogate")
def stopped_layer(x):
    """Reads the variables of a Keras layer, on which nothing depends differentiably."""
    return tf.reduce_sum(x) + tf.stop_gradient(layer(x))


@op(inputs={"x": VECTOR})
def neighbours(x):
    """Products of neighbours."""
    return x[:-1] * x[1:]
