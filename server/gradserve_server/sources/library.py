"""Compiled ops: loads a library of them, which models and modules that use them need; it holds no ``OpDefinition``."""

from pathlib import Path

import tensorflow as tf

from gradserve_server.ops import OpLoadError


def load(path: str) -> None:
    """Loads a library of compiled ops into TensorFlow.

    Args:
        path: The library, as built against the TensorFlow that is installed.

    Raises:
        OpLoadError: It cannot be loaded (LIBRARY_FAILED).
    """
    source = f"library {path!r}"
    if not Path(path).is_file():
        raise OpLoadError("no such file", source=source, cause="LIBRARY_FAILED")
    try:
        tf.load_op_library(str(Path(path).resolve()))  # a bare name would be looked for where the system keeps its own
    except Exception as error:
        raise OpLoadError(
            f"TensorFlow {tf.__version__} cannot load it: {error}; build it against that version",
            source=source,
            cause="LIBRARY_FAILED",
        ) from error
