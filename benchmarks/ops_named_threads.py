"""The examples' op, and a thread that gives all threads of the server's process their Python names, for Linux to show."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from gradserve_server import op

SECONDS_BETWEEN_LOOKS = 0.5
MOST_CHARACTERS = 15
"""Linux keeps no more of a name."""


@op(inputs={"x": tf.TensorSpec(None, tf.float32)}, elementwise=True, gradient="surrogate")
@tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow ships no types
def square_with_clipped_grad(x: tf.Tensor) -> tuple[Any, Any]:
    """Square whose slope is clipped to [-1, 1]."""
    return tf.square(x), lambda dy: dy * tf.clip_by_value(2.0 * x, -1.0, 1.0)


def _name_threads() -> None:
    while True:
        for thread in threading.enumerate():
            name = "event loop" if thread is threading.main_thread() else thread.name
            with contextlib.suppress(OSError):  # it has just ended
                Path(f"/proc/self/task/{thread.native_id}/comm").write_text(name[:MOST_CHARACTERS])
        time.sleep(SECONDS_BETWEEN_LOOKS)


threading.Thread(target=_name_threads, name="names", daemon=True).start()
