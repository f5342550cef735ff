"""What TensorFlow raised while an op ran or was traced, as an error of the service, without paths or tracebacks."""

import re

import tensorflow as tf

from gradserve.errors import (
    GradserveError,
    InvalidRequest,
    OpContractError,
    ResourceExhausted,
    Unsupported,
    quote,
)
from gradserve_server.status import hide_paths

_TABLE: dict[type[Exception], tuple[type[GradserveError], str, str]] = {
    tf.errors.InvalidArgumentError: (InvalidRequest, "VALUES_REFUSED", "a kernel refused the values"),
    tf.errors.OutOfRangeError: (InvalidRequest, "VALUES_REFUSED", "a kernel refused the values"),
    tf.errors.FailedPreconditionError: (OpContractError, "OP_NOT_READY", "a kernel's precondition failed"),
    tf.errors.UnimplementedError: (Unsupported, "NO_KERNEL", "TensorFlow has no kernel for this"),
    tf.errors.ResourceExhaustedError: (ResourceExhausted, "OUT_OF_MEMORY", "the device ran out of memory"),
}
_FROM_PYTHON = re.compile(r"Traceback \(most recent call last\)|PyFunc|pyfunc_\d")
_MOST_OF_A_TEXT = 65536  # a caller's strings may make it as long as a message
_NOISE = re.compile(
    r"\{\{function_node [^{}]*\}\}|<stack traces unavailable>|Graph execution error:"
    r"|\[Op:\w+\] name:|^Detected at node .*|^ *File \".*\", line \d+, in .*",  # where the op's author wrote the node, line by line
    re.MULTILINE,
)


def translate(error: Exception, op_name: str, *, has_python: bool) -> GradserveError | None:
    """Returns what a caller should see of an error that TensorFlow raised in an op; None if only the log should.

    Errors that Python code inside the graph raised (``tf.numpy_function``) are the op's own failure, whatever class
    TensorFlow gives them, so their text is not for callers.

    Args:
        error: What TensorFlow raised.
        op_name: Name of the op.
        has_python: Whether its graph holds Python code. The text alone does not tell: a caller's strings may stand in it.
    """
    message = str(getattr(error, "message", ""))
    row = _TABLE.get(type(error))
    if row is None or (has_python and _FROM_PYTHON.search(message)):
        return None
    error_class, reason, rule = row
    return error_class(f"op {quote(op_name)}: {rule}: {kernel_text(message)}", reason=reason, facts={"op": op_name})


def kernel_text(message: str) -> str:
    """Returns what a kernel said, without TensorFlow's node names, paths and stack traces, in one line."""
    said = message.split("\n\t [[", maxsplit=1)[0].split("Stack trace of op", maxsplit=1)[0][-_MOST_OF_A_TEXT:]
    return " ".join(hide_paths(_NOISE.sub("", said)).split())[:400]
