"""Custom rules that tests of derivatives share, and places to put an op into: loops, branches, SavedModels."""

import tempfile
from types import SimpleNamespace

import numpy as np
import tensorflow as tf
from tests.server.helpers import ANY


def custom(forward, rule):
    """Returns an op with a gradient rule: ``rule(x, y, dy)``."""

    @tf.custom_gradient
    def op(x):
        y = forward(x)
        return y, lambda dy: rule(x, y, dy)

    return op


def identity_by(rule):
    """Returns the identity with a gradient rule of ``dy`` alone."""
    return tf.custom_gradient(lambda x: (tf.identity(x), rule))


def python(function):
    """Returns a numpy function as an op that TensorFlow cannot differentiate."""
    return lambda x: tf.ensure_shape(tf.numpy_function(function, [x], x.dtype), x.shape)


@tf.custom_gradient
def two_from_python(x):
    """Two outputs of one numpy function, with a smooth rule."""
    y, z = tf.numpy_function(lambda a: (np.square(a), np.sin(a)), [x], [tf.float32, tf.float32])
    y.set_shape(x.shape)
    z.set_shape(x.shape)
    return (y, z), lambda dy, dz: dy * 2.0 * x + dz * tf.cos(x)


def nested(op):
    """Returns an op that calls another two functions deep."""
    inner = tf.function(op, autograph=False)
    return tf.function(inner, autograph=False)


def looped(op):
    """Returns an op applied three times in a loop."""
    return lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, op(a)), [0, x])[1]


def chosen(op):
    """Returns an op applied where the sum is positive; else its input is doubled."""
    return lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: op(x), lambda: x * 2.0)


def saved(op, *, spec=ANY):
    """Returns an op as a SavedModel gives it back."""
    module = tf.Module()
    module.op = tf.function(op, input_signature=[spec], autograph=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, options=options)
        loaded = tf.saved_model.load(folder)

    def call(x):
        return loaded.op(x)

    return call  # and not loaded.op, which would let go of the model


def calling_itself(trace):
    """Returns a stand-in for a trace of ``nested``, with the outer function changed so that it calls itself."""
    graph_def = trace.graph.as_graph_def()
    for function in graph_def.library.function:
        for node in function.node_def:
            if "f" in node.attr:
                node.attr["f"].func.name = function.signature.name
    graph = SimpleNamespace(
        as_graph_def=lambda: graph_def,
        get_operations=trace.graph.get_operations,
        inputs=trace.graph.inputs,
        outputs=trace.graph.outputs,
    )
    return SimpleNamespace(graph=graph, function_def=trace.function_def)
