"""An op that computes for as long as it is told, in TensorFlow's own kernels, and one that is quick."""

from typing import Any

import tensorflow as tf

from gradserve_server import op


@op(inputs={"rounds": tf.TensorSpec([], tf.int32)})
def busy(rounds: tf.Tensor) -> Any:
    """Multiplies matrices again and again."""
    matrix = tf.linalg.qr(tf.random.stateless_normal([192, 192], seed=[1, 2]))[0]
    turned = tf.while_loop(
        lambda done, _: done < rounds, lambda done, product: (done + 1, tf.linalg.matmul(product, matrix)), [0, matrix]
    )
    return tf.reduce_sum(turned[1])


@op(inputs={"x": tf.TensorSpec(None, tf.float32)}, elementwise=True)
def quick(x: tf.Tensor) -> Any:
    """Squares."""
    return x * x
