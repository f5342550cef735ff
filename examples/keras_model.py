"""A Keras model with custom gradients: builds it, trains it for two epochs, and saves it to be served.

    python examples/keras_model.py OUT
    gradserve-server --keras-model guide=OUT/guide.keras --custom-objects examples/keras_model.py
    gradserve-server --saved-model guide=OUT/guide

Its layers are those of TensorFlow's guides on custom gradients.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf


@tf.custom_gradient
def square(x):
    """x^2, with its derivative written out."""
    return tf.square(x), lambda dy: dy * 2.0 * x


@tf.custom_gradient
def quantize(x, step):
    """The nearest multiple of a step; the gradient passes straight through."""
    return tf.round(x / step) * step, lambda dy: (dy, None)


@keras.saving.register_keras_serializable("guide")
class CustomSquareLayer(keras.layers.Layer):
    """Squares its inputs."""

    def call(self, inputs):
        """Returns the squares."""
        return square(inputs)


@keras.saving.register_keras_serializable("guide")
class QuantizeLayer(keras.layers.Layer):
    """Rounds its inputs to multiples of a step.

    Args:
        step: Distance between two values.
        options: Those of every layer.
    """

    def __init__(self, step=0.25, **options):
        super().__init__(**options)
        self.step = step

    def call(self, inputs):
        """Returns the nearest multiples."""
        return quantize(inputs, tf.constant(self.step, inputs.dtype))

    def get_config(self):
        """Returns the parameters, without which a saved layer would come back with the default step."""
        return {**super().get_config(), "step": self.step}


def build() -> keras.Model:
    """Returns the model, untrained."""
    features = keras.Input((3,), name="features")
    hidden = QuantizeLayer(step=0.125, name="quantize")(CustomSquareLayer(name="square")(features))
    return keras.Model(features, keras.layers.Dense(2, name="dense")(hidden), name="guide")


def train(model: keras.Model) -> None:
    """Fits the model to squares of random numbers."""
    generator = np.random.default_rng(1)
    features = generator.normal(size=(64, 3)).astype(np.float32)
    targets = np.square(features) @ np.array([[1, -1], [2, 0], [0, 3]], np.float32)
    model.compile(optimizer=keras.optimizers.SGD(0.02), loss="mse")
    model.fit(features, targets, epochs=2, batch_size=16, verbose=0)


def save(model: keras.Model, folder: Path) -> None:
    """Saves the model as ``guide.keras`` and as the SavedModel ``guide``."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "guide.keras")
    model.export(folder / "guide", verbose=False)


if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    guide = build()
    train(guide)
    save(guide, Path(sys.argv[1]))
