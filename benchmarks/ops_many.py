"""As many ops as the variable ``BENCHMARK_OPS`` says, all alike, each with a trace of its own."""

import os
from typing import Any

import tensorflow as tf

from gradserve_server import op
from gradserve_server.ops import OpDefinition

MANY = int(os.environ["BENCHMARK_OPS"])


def square(number: int) -> OpDefinition:
    """Returns an op that squares."""

    @op(f"square_{number}", inputs={"x": tf.TensorSpec(None, tf.float32)}, elementwise=True)
    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def square_with_grad(x: tf.Tensor) -> tuple[Any, Any]:
        """Y = x^2, dx = dy * 2x."""
        return tf.square(x), lambda dy: dy * 2.0 * x

    return square_with_grad


globals().update({f"square_{number}": square(number) for number in range(MANY)})
