"""Layers and functions of Keras models, and no op: a plain class, a registered one, an activation."""

import keras
import tensorflow as tf


@tf.custom_gradient
def reverse_with_strength(x, strength):
    return tf.identity(x), lambda dy: (-strength * dy, None)


class Reversal(keras.layers.Layer):
    """Reverses the gradient; found by its name."""

    def __init__(self, strength=1.0, **options):
        super().__init__(**options)
        self.strength = strength

    def call(self, x):
        return reverse_with_strength(x, tf.constant(self.strength, x.dtype))

    def get_config(self):
        return {**super().get_config(), "strength": self.strength}


@keras.saving.register_keras_serializable("tests")
class Doubling(keras.layers.Layer):
    """Known to Keras by its registration."""

    def call(self, x):
        return 2.0 * x


def triple(x):
    """Serves as an activation."""
    return 3.0 * x


def relu(_):
    """Has the name of an activation of Keras's own, which no model may get it for."""
    raise AssertionError
