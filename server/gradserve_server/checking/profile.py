"""Profiles: an op and its derivatives along a line in the space of one input, as a picture shows them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from gradserve.dtypes import dtype_of
from gradserve.errors import GradserveError, InvalidRequest, quote
from gradserve.gradient_check import Line, Profile
from gradserve.signature import TensorSpec
from gradserve.tensors import Array
from gradserve_server.ops import Op

OwnVjp = Callable[[Sequence[Array], Sequence[Array]], list[Array | None]]
"""Takes inputs and output gradients; returns a gradient for each input by TensorFlow's own derivative."""


class _Values(NamedTuple):
    """The sum of the outputs, its gradients by both rules, and its central difference, at one or many positions."""

    output: Any
    rule: Any
    own: Any
    difference: Any


def profile(op: Op, line: Line, own_vjp: OwnVjp) -> Profile:
    """Evaluates an op at evenly spaced values of one input.

    An elementwise op of one differentiable input gets all values as one vector. Otherwise the first element of the input
    varies, and all else is as in the op's example.

    Args:
        op: The op.
        line: The line.
        own_vjp: TensorFlow's own derivative of the forward pass.

    Returns:
        Arrays of float64, but for the positions, which are of the input's dtype; where a derivative does not exist, NaN.

    Raises:
        InvalidRequest: The input is not real, or has no element (BAD_OPTION).
    """
    index, spec = _input_of(op, line)
    positions = np.linspace(line.low, line.high, line.points).astype(spec.dtype.numpy)
    differentiable = [spec for spec in op.signature.inputs.values() if spec.dtype.is_differentiable]
    if op.elementwise and len(differentiable) == 1 and spec.accepts_shape(positions.shape):
        values = _evaluate(op, index, lambda x: x, positions, own_vjp)
    else:
        rows = [_evaluate_if_possible(op, index, x, own_vjp) for x in positions]
        values = _Values(*(np.array(column, np.float64) for column in zip(*rows, strict=True)))
    has_own = not np.isnan(values.own).all()
    return Profile(
        input=spec.name,
        positions=positions,
        outputs=values.output,
        rule=values.rule,
        own_derivative=values.own if has_own else None,
        differences=values.difference,
    )


def _input_of(op: Op, line: Line) -> tuple[int, TensorSpec]:
    specs = list(op.signature.inputs.values())
    name = line.input or next((spec.name for spec in specs if spec.differentiable), specs[0].name)
    index = [spec.name for spec in specs].index(name)
    if not specs[index].dtype.is_floating or not op.example[index].size:
        raise InvalidRequest(
            f"op {quote(op.name)}, line: wanted an input of real numbers, of which the example has one, got {quote(name)}",
            reason="BAD_OPTION",
        )
    return index, specs[index]


def _placed_in(example: Array) -> Callable[[Any], Array]:
    def place(x: Any) -> Array:
        moved: Array = example.copy()
        moved.reshape(-1)[0] = x
        return moved

    return place


def _evaluate_if_possible(op: Op, index: int, x: Any, own_vjp: OwnVjp) -> _Values:
    try:
        return _evaluate(op, index, _placed_in(op.example[index]), x, own_vjp)
    except GradserveError:  # outside of the op's domain
        return _Values(*[np.nan] * 4)


def _evaluate(op: Op, index: int, place: Callable[[Any], Array], x: Any, own_vjp: OwnVjp) -> _Values:
    """Evaluates an op at one position, or at a vector of them for an elementwise op; ``place`` makes the input of it."""

    def inputs(value: Any) -> list[Array]:
        return [*op.example[:index], place(value), *op.example[index + 1 :]]

    shape = np.shape(x)
    outputs = op.program.forward(inputs(x))
    ones = [np.ones_like(output) for output in outputs if dtype_of(output.dtype).is_differentiable]
    connected = [i for i, spec in enumerate(op.signature.inputs.values()) if spec.differentiable]
    gradients = dict(zip(connected, op.program.vjp(inputs(x), ones)[1], strict=True))
    step = np.asarray(float(ml_dtypes.finfo(x.dtype).eps) ** (1 / 3) * np.maximum(1.0, np.abs(x)), x.dtype)  # type: ignore[no-untyped-call]  # it has no types
    above, below = x + step, x - step
    rise = _total(op.program.forward(inputs(above)), shape) - _total(op.program.forward(inputs(below)), shape)
    return _Values(
        output=_total(outputs, shape),
        rule=_first(gradients.get(index), shape),
        own=_first(_own(own_vjp, inputs(x), ones, index), shape),
        difference=rise / (above.astype(np.float64) - below.astype(np.float64)),
    )


def _own(own_vjp: OwnVjp, inputs: Sequence[Array], ones: Sequence[Array], index: int) -> Array | None:
    try:
        return own_vjp(inputs, ones)[index]
    except GradserveError:  # there is none, which the picture then shows
        return None


def _total(outputs: Sequence[Array], shape: tuple[int, ...]) -> Any:
    """Returns the sum of the real parts of all outputs, at each position."""
    numbers = [output for output in outputs if dtype_of(output.dtype).is_differentiable]
    wide = [output.real.astype(np.float64) for output in numbers]
    return sum(array if shape else array.sum() for array in wide)


def _first(gradient: Array | None, shape: tuple[int, ...]) -> Any:
    """Returns the gradient at each position: of a vector of them, or of the first element."""
    if gradient is None:
        return np.full(shape, np.nan)
    wide = gradient.astype(np.float64)
    return wide if shape else wide.reshape(-1)[0]
