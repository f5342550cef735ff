"""The op's rule beside TensorFlow's own derivative of the undecorated forward pass."""

from collections.abc import Sequence

import numpy as np

from gradserve.errors import GradserveError, quote
from gradserve.gradient_check import Finding, Verdict
from gradserve.tensors import Array
from gradserve_server.checking.differences import reals, roundoff
from gradserve_server.checking.findings import VERDICT_OF_DEPARTURE, Measured, place_of
from gradserve_server.checking.sampling import Point, Vjp

_ROUNDINGS = 256.0
_NARROW_ROUNDINGS = 12.0
"""How many roundings two rules for the same derivative may lie apart, of their own size and a little of the largest."""


def of_own_derivative(measured: Measured, own_vjp: Vjp, forward: Sequence[Finding]) -> Finding:
    """Compares two rules at all points; which of them is right, forward values say.

    Args:
        measured: The input, and the points.
        own_vjp: TensorFlow's own derivative.
        forward: What the forward values said of the op's rule for this input.
    """
    try:
        worst = max((_compare(measured, own_vjp, point) for point in measured.points), key=lambda row: row[0])
    except Exception as error:  # TensorFlow may have no derivative of this forward pass
        why = str(error) if isinstance(error, GradserveError) else type(error).__name__
        text = f"input {quote(measured.name)}: TensorFlow's own derivative fails: {why}"
        return Finding(test="own_derivative", input=measured.name, verdict="unchecked", text=text)
    excess, index, own, got, tolerance = worst
    verdict, text = _judge(measured, forward, excess, (index, own, got))
    return Finding(
        test="own_derivative",
        input=measured.name,
        verdict=verdict,
        index=index,
        wanted=own,
        got=got,
        tolerance=tolerance,
        text=text,
    )


def _compare(measured: Measured, own_vjp: Vjp, point: Point) -> tuple[float, tuple[int, ...], float, float, float]:
    """Returns excess over the tolerance, place, both numbers and the tolerance, where the two rules differ most."""
    array = point.inputs[measured.position]
    got = point.gradient(measured.position)
    own = np.stack([_row(own_vjp(point.inputs, draw)[measured.position], array) for draw in point.output_gradients])
    unit = max([roundoff(array.dtype), *point.units])
    sizes = np.maximum(np.abs(got), np.nan_to_num(np.abs(own), posinf=0.0))
    tolerance = (_NARROW_ROUNDINGS if unit > 1e-5 else _ROUNDINGS) * unit * (
        sizes + sizes.max(initial=0.0) / 4
    ) + 1e-300
    excess = np.where(np.isfinite(own), np.abs(got - own) / tolerance, np.inf)
    if not excess.size:
        return 0.0, (), 0.0, 0.0, 0.0
    at = np.unravel_index(np.argmax(excess), excess.shape)
    place = place_of(int(at[1]), array)
    return float(excess[at]), place, float(own[at]), float(got[at]), float(tolerance[at])


def _row(gradient: Array | None, like: Array) -> Array:
    return np.zeros(reals(like).size) if gradient is None else reals(gradient)


def _judge(
    measured: Measured, forward: Sequence[Finding], excess: float, worst: tuple[tuple[int, ...], float, float]
) -> tuple[Verdict, str]:
    index, own, got = worst
    if excess <= 1:
        return "pass", f"input {quote(measured.name)}: the rule agrees with TensorFlow's own derivative"
    text = f"input {quote(measured.name)}, element {index}: TensorFlow's own derivative gives {own:.6g}, the rule {got:.6g}"
    if measured.op.gradient != "exact":
        return VERDICT_OF_DEPARTURE[measured.op.gradient], text
    verdicts = {finding.verdict for finding in forward}
    if "fail" in verdicts:
        return "fail", text
    if "pass" in verdicts:
        return "pass", f"{text}; forward values agree with the rule"
    return "unchecked", f"{text}; forward values cannot tell which is right"
