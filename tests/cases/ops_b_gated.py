"""A module whose import waits for a file, and an op that does: tests decide when a server is ready, and a call done."""

import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from gradserve_server import op

FOLDER = Path(os.environ["GATES"])


def pass_gate(name):
    """Says that it waits at a gate, and returns what the file of that name holds once it is there."""
    (FOLDER / f"{name}.waiting").touch()
    while not (FOLDER / name).exists():
        time.sleep(0.01)
    return (FOLDER / name).read_text()


if pass_gate("import") == "fail":
    raise RuntimeError("the model file is damaged")


@op(inputs={"x": tf.TensorSpec([], tf.float32)}, example={"x": 0.0})
def doubled_after_gate(x):
    def wait(value):
        if value:  # the warm-up passes without a gate
            pass_gate("call")
        return np.float32(2) * value

    y = tf.numpy_function(wait, [x], tf.float32)
    y.set_shape([])
    return y
