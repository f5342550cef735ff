"""Tracing what an author wrote: whatever TensorFlow makes of a mistake becomes an error that says what to do about it."""

import re
from typing import Any

from gradserve_server.autodiff.concrete import concrete_function
from gradserve_server.autodiff.declaration import Declaration
from gradserve_server.autodiff.vjp import ContractError, FlatFunction
from gradserve_server.ops import OpLoadError

_WRONG_COUNT = re.compile(
    r"returned too (?:few|many) gradients. Expected (?P<wanted>\d+) but received (?P<got>\d+)"
    r"|Num gradients (?P<got_inside>\d+) generated for .* do not match num inputs (?P<wanted_inside>\d+)",
    re.DOTALL,
)
"""What TensorFlow says of a rule that returns too few or too many gradients: bare, and inside a ``tf.function``."""

_NO_GRADIENT = ("gradient registry", "No gradient defined", "Gradient explicitly disabled")
"""What TensorFlow says of an operation that it has no gradient for."""

_HINTS = {
    "as a Python `bool`": "use tf.where or tf.cond for a choice that depends on a tensor",
    "Iterating over a symbolic": "under tf.custom_gradient return the output and the gradient function, as a pair",
    "Tensor.graph is undefined": "pass the value of a variable that a branch or loop reads as an argument of the op",
    "Cannot convert a symbolic": "use TensorFlow's functions rather than NumPy's, or tf.numpy_function",
}


class NoRule(Exception):
    """TensorFlow has no gradient rule for an operation of the graph, so the op has a forward pass only."""


def trace_authored(
    declaration: Declaration, function: FlatFunction, specs: list[Any], *, device: str, uncounted: int = 0
) -> Any:
    """Traces a function that calls an op.

    Args:
        declaration: The op.
        function: What to trace.
        specs: A ``tf.TensorSpec`` for each of its arguments.
        device: Device such as "cpu:0".
        uncounted: How many outputs and variables TensorFlow counts in where it speaks of a number of gradients.

    Raises:
        NoRule: It needs a gradient of an operation that has none.
        OpLoadError: Whatever else it raised, in one line.
    """
    try:
        return concrete_function(function, specs, device=device, jit_compile=declaration.definition.jit_compile)
    except (OpLoadError, NoRule):
        raise
    except ContractError as error:
        raise declaration.failure(str(error), error.cause) from error
    except LookupError as error:
        if any(said in str(error) for said in _NO_GRADIENT):
            raise NoRule(f"TensorFlow has no gradient for one of its operations: {error}") from error
        raise declaration.failure(f"{type(error).__name__}: {error}", "TRACE_FAILED") from error
    except BaseException as error:  # the op is the operator's code and may raise anything, even to exit
        wrong_count = _WRONG_COUNT.search(_text(error))
        if wrong_count is not None:
            wanted, got = (int(wrong_count[n] or wrong_count[f"{n}_inside"]) for n in ("wanted", "got"))
            text = declaration.explain_count(wanted, got, uncounted)
            raise declaration.failure(text, "GRADIENT_COUNT_MISMATCH") from error
        raise declaration.failure(
            f"{type(error).__name__}: {_text(error)}{_hint(_text(error))}", "TRACE_FAILED"
        ) from error


def _hint(text: str) -> str:
    """Returns what to do about the commonest mistakes, of which TensorFlow's own text says something else."""
    return next((f"; in an op: {hint}" for said, hint in _HINTS.items() if said in text), "")


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the exception's own __str__ may fail; its class is named beside this
        return "(its text cannot be shown)"
