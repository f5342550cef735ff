"""The layers of cases A48 and A49, and no op."""

import keras
import tensorflow as tf


class DoubleWithSlopeTen(keras.layers.Layer):
    """y = 2 x, whose slope is 10 by its rule."""

    def call(self, x):
        @tf.custom_gradient
        def double(x):
            return 2.0 * x, lambda dy: 10.0 * dy

        return double(x)


class Reversal(keras.layers.Layer):
    """The identity, whose gradient is reversed and scaled."""

    def __init__(self, strength=1.0, **options):
        super().__init__(**options)
        self.strength = strength

    def call(self, x):
        @tf.custom_gradient
        def reverse(x):
            return tf.identity(x), lambda dy: -self.strength * dy

        return reverse(x)

    def get_config(self):
        return {**super().get_config(), "strength": self.strength}
