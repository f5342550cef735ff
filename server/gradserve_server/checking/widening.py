"""Widening: a point of an op of 16-bit floats, evaluated in float64, where rounding hides nothing.

The op's own graphs run, forward and backward, with float64 in the place of narrower floats. What is wrong in a rule is wrong
there too, and what only rounding does is gone; how much that is, the gradients as served say, beside the others.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from gradserve.tensors import Array
from gradserve_server.checking.sampling import Point, evaluate_for
from gradserve_server.ops import Op

if TYPE_CHECKING:
    from gradserve_server.program import Program

_NARROW = ("float16", "bfloat16")
_SAME = 0.125
"""Outputs in float64 and as served are of one function if they lie closer than this part of the largest."""


def is_narrow(op: Op) -> bool:
    """Whether an op has inputs or outputs of 16-bit floats."""
    specs = [*op.signature.inputs.values(), *op.signature.outputs.values()]
    return any(spec.dtype.name in _NARROW for spec in specs)


def widen(op: Op, *, nudged: bool = False) -> Op:
    """Returns an op that computes the same in float64, with inputs and outputs of float64.

    Args:
        op: The op.
        nudged: Whether the constants of its backward pass are moved by what their rounding may have.
    """
    return dataclasses.replace(op, program=cast("Program", _WideProgram(op, nudged=nudged)))


def widen_point(op: Op, point: Point) -> Point | None:
    """Evaluates an op in float64 where it was evaluated as it is served.

    Returns:
        The same point, with what rounding does to it; None if the op has no form for float64, or is another function there,
        as one is that rounds on purpose.
    """
    inputs = [_widen(array) for array in point.inputs]
    output_gradients = [[_widen(array) for array in draw] for draw in point.output_gradients]
    try:
        found, nudged = (evaluate_for(widen(op, nudged=nudged), inputs, output_gradients) for nudged in (False, True))
    except Exception:  # no wide form, or kernels that refuse float64 only once they run
        return None
    if found.outputs.shape != point.outputs.shape or not found.is_finite():
        return None
    apart = np.abs(found.outputs - point.outputs).max(initial=0.0)
    if apart > _SAME * np.abs(found.outputs).max(initial=0.0):
        return None
    return dataclasses.replace(found, alike=[point, nudged])


def _widen(array: Array) -> Array:
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name in _NARROW else array


class _WideProgram:
    """The part of a ``gradserve_server.ops.Program`` that a check calls."""

    def __init__(self, op: Op, *, nudged: bool) -> None:
        self._program = op.program
        self._nudged = nudged

    def forward(self, inputs: Sequence[Array]) -> list[Array]:
        return self._program.wide_forward(inputs)

    def vjp(self, inputs: Sequence[Array], output_gradients: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        return self._program.wide_vjp(inputs, output_gradients, nudged=self._nudged)
