"""Models on disk, as those who train them save them: SavedModels and Keras files."""

import warnings
from pathlib import Path

import keras
import tensorflow as tf

ROWS = tf.TensorSpec([None, 2], tf.float32, name="x")


@tf.custom_gradient
def double_with_slope_ten(x):
    """The op of case A44."""
    return 2.0 * x, lambda dy: 10.0 * dy


class Slope(tf.Module):
    """y = 2 x, whose slope is 10 by its rule."""

    @tf.function(input_signature=[ROWS])
    def __call__(self, x):
        return {"y": double_with_slope_ten(x)}


def save_slope(folder: Path, custom_gradients: bool | None = None) -> Path:
    """Saves the model of case A44 with its custom gradients, without, or as TensorFlow does by default."""
    given = {} if custom_gradients is None else {"experimental_custom_gradients": custom_gradients}
    model = Slope()
    signatures = {"serving_default": model.__call__}
    tf.saved_model.save(model, str(folder), signatures, options=tf.saved_model.SaveOptions(**given))
    return folder


def save_module(folder: Path, module: tf.Module, *signatures: str) -> Path:
    """Saves a module with those of its methods as signatures."""
    tf.saved_model.save(module, str(folder), {name: getattr(module, name) for name in signatures})
    return folder


def save_keras(file: Path, model: keras.Model) -> Path:
    """Saves a Keras model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's own, about NumPy 2 and about models that are not built
        model.save(file)
    return file


def export_keras(folder: Path, model: keras.Model, options: tf.saved_model.SaveOptions | None = None) -> Path:
    """Exports a Keras model as a SavedModel, as ``model.export`` does, which takes no options."""
    archive = keras.export.ExportArchive()
    archive.track(model)
    spec = tf.TensorSpec(model.inputs[0].shape, model.inputs[0].dtype, name=model.inputs[0].name)
    archive.add_endpoint("serving_default", lambda x: model(x, training=False), input_signature=[spec])
    archive.write_out(str(folder), options=options, verbose=False)
    return folder
