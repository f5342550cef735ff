"""Warm-up: calls each op once in each way before the server is ready, so that no caller pays for a first call."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradserve.signature import TensorSpec
from gradserve.tensors import Array
from gradserve_server.answers import fill_missing
from gradserve_server.ops import Op
from gradserve_server.rule_facts import is_linear

_NOT_COMPILED = "Detected unsupported operations when trying to compile graph"
"""What TensorFlow says where ``jit_compile`` meets an operation that XLA does not know."""


def warm_up(op: Op) -> None:
    """Runs each trace of an op on its example; to be called on the thread of the op's device.

    Raises:
        OpLoadError: It failed on its author's example, or XLA cannot compile it (WARM_UP_FAILED).
        Exception: Whatever else the op raises on drawn inputs, which need not mean that the op is wrong.
    """
    try:
        _run_all(op)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if _NOT_COMPILED in text:
            at = text.index(_NOT_COMPILED)
            raise op.failure(f"XLA cannot compile it: {text[at : at + 300]}", "WARM_UP_FAILED") from error
        if op.example_is_given:
            raise op.failure(f"it failed on its own example: {cause_of(error)}", "WARM_UP_FAILED") from error
        raise


def with_facts(op: Op) -> Op:
    """Returns an op with what can be found out about its rule by trying it; to be called on the thread of the op's device."""
    if op.no_vjp:
        return op
    if op.program.has_python:  # at the first call of a stack, the runs that this takes would show
        _ = op.program.vectorises
    if not (op.has_custom_rule and op.repeatable):
        return op
    points = [op.example]
    if not op.example_is_given:  # of one element alone, a softmax or the largest one looks linear
        points.append(example_inputs(op.signature.inputs, {}, open_size=3))
    return dataclasses.replace(op, linear=is_linear(op.program, points))


def cause_of(error: Exception) -> str:
    """Returns the class of an error and the line of its text that names the cause: the last that is no stack frame."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return f"{type(error).__name__}: {lines[-1][:500] if lines else ''}"


def _run_all(op: Op) -> None:
    op.program.forward(op.example)
    if not op.no_vjp:
        outputs = op.signature.outputs
        differentiable = [spec for spec in outputs.values() if spec.differentiable]
        output_gradients = fill_missing([None] * len(differentiable), outputs)
        op.program.vjp(op.example, output_gradients)
        if op.connected_variables:
            op.program.vjp(op.example, output_gradients, with_variables=True)


def example_inputs(specs: Mapping[str, TensorSpec], given: Mapping[str, Any], *, open_size: int = 1) -> Sequence[Array]:
    """Returns an input for each spec: the author's, or ones (zeros for integers, which may be indices).

    Args:
        specs: The inputs, by name.
        given: The author's example, by name; may be empty.
        open_size: Size of the dimensions that a spec leaves open. Where it leaves all open, the least size makes a number,
            and any other a vector.

    Raises:
        InvalidRequest: The author's example does not fit the specs.
    """
    examples = []
    for name, spec in specs.items():
        if name in given:
            array = np.asarray(given[name], dtype=spec.dtype.numpy)
            spec.check(array, f"example of input {name!r}")
        else:
            least = () if open_size == 1 else (None,)
            shape = tuple(open_size if size is None else size for size in (least if spec.shape is None else spec.shape))
            array = _filled(shape, spec)
        examples.append(array)
    return examples


def _filled(shape: tuple[int, ...], spec: TensorSpec) -> Array:
    if spec.dtype.is_string:
        return np.full(shape, b"", dtype=object)
    return np.full(shape, 1 if spec.dtype.is_differentiable else 0, dtype=spec.dtype.numpy)
