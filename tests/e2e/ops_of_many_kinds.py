"""An op with inputs of many kinds: floating, integer, bool, string and nested ones."""

import tensorflow as tf

from gradserve_server import op


@op(
    inputs={
        "x": tf.TensorSpec([None, 2], tf.float32),
        "rows": tf.TensorSpec([None], tf.int32),
        "keep": tf.TensorSpec([], tf.bool),
        "mode": tf.TensorSpec([], tf.string),
        "state": {"h": tf.TensorSpec([2], tf.float64), "steps": [tf.TensorSpec([], tf.int64)]},
    }
)
def pick(x, rows, keep, mode, state):
    """Rows of x, negated in the mode "minus", or zeros; and the state moved on by its steps."""
    picked = tf.gather(x, rows) * tf.where(mode == "minus", -1.0, 1.0)
    moved = state["h"] + tf.cast(state["steps"][0], tf.float64)
    return {"picked": tf.where(keep, picked, tf.zeros_like(picked)), "mode": mode, "state": {"h": moved}}
