"""Findings: from what was measured of each input, over all points, to verdicts and lines of text."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradserve.errors import quote
from gradserve.gradient_check import Finding, Verdict
from gradserve.tensors import Array
from gradserve_server.checking.comparison import Comparison
from gradserve_server.checking.diagnosis import Evidence
from gradserve_server.checking.differences import reals, remainder_order
from gradserve_server.checking.measuring import Slope
from gradserve_server.checking.sampling import Point
from gradserve_server.ops import Op

VERDICT_OF_DEPARTURE: dict[str, Verdict] = {"exact": "fail", "surrogate": "departs", "unchecked": "departs"}
"""By what an op's gradient claims to be."""
_CLAIM = {"exact": "", "surrogate": " (a surrogate)", "unchecked": " (the op claims nothing of it)"}
_FIRST_ORDER = 1.5
"""A remainder whose order lies below this has a part of first order."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured of one input."""

    op: Op
    """The op."""
    position: int
    """Which input."""
    points: Sequence[Point]
    """Where."""
    elements: Sequence[Comparison]
    """Element by element: an entry for each point."""
    directions: Sequence[Comparison]
    """In random directions: an entry for each point."""

    @property
    def name(self) -> str:
        """Name of the input."""
        return list(self.op.signature.inputs)[self.position]

    @property
    def connected(self) -> bool:
        """Whether the rule has a gradient for it."""
        return list(self.op.signature.inputs.values())[self.position].differentiable

    def evidence(self) -> Evidence | None:
        """Returns what the elements say, for a diagnosis; None if none was measured."""
        rows = [
            (slope, point, draw)
            for comparison, point in zip(self.elements, self.points, strict=False)
            for draw in range(len(point.weights))
            for slope in comparison.slopes
            if slope.clear[draw] and _lane(slope) >= 0
        ]
        if not rows:
            return None
        size = np.array([abs(slope.direction.vector[_lane(slope)]) for slope, _, _ in rows])
        values = [reals(point.inputs[self.position])[_lane(slope)] for slope, point, _ in rows]
        return Evidence(
            name=self.name,
            wanted=np.array([slope.wanted[draw] for slope, _, draw in rows]) / size,
            got=np.array([slope.got[draw] for slope, _, draw in rows]) / size,
            tolerance=np.array([slope.tolerance[draw] for slope, _, draw in rows]) / size,
            values=np.array(values),
            places=np.array([_lane(slope) for slope, _, _ in rows]),
            ignores_output_gradient=all(_ignores(point, self.position) for point in self.points),
            is_double=all(array.dtype.itemsize >= 8 for array in self.points[0].inputs if array.dtype.kind in "fcV"),
        )


def _lane(slope: Slope) -> int:
    return slope.direction.lane


def _ignores(point: Point, position: int) -> bool:
    rows = point.gradient(position)
    return len(rows) > 1 and bool(rows.any()) and all(np.array_equal(row, rows[0]) for row in rows[1:])


def of_finite(measured: Measured, *, tried: int) -> Finding:
    """Says at how many points everything was finite."""
    text = f"input {quote(measured.name)}: outputs and gradients are finite at all {tried} points"
    return Finding(test="finite", input=measured.name, verdict="pass", text=text)


def of_elements(measured: Measured, cause: str) -> Finding:
    """Compares the rule with forward values, element by element; ``cause`` is the diagnosis of a departure."""
    worst, point = _worst(measured.elements, measured.points)
    name = quote(measured.name)
    if worst is None or point is None:
        return _unchecked("elements", measured, "no element's forward values are smooth and precise enough to compare")
    lane, size = _lane(worst), abs(float(worst.direction.vector[_lane(worst)]))
    index = place_of(lane, point.inputs[measured.position])
    found = numbers_of(worst, size)
    if not worst.confirmed:
        left = measured.elements[0].skipped
        text = f"input {name}: all elements agree with differences of forward values" + (
            f" ({left} not looked at)" if left else ""
        )
        return Finding(test="elements", input=measured.name, index=index, verdict="pass", text=text, **found)
    return Finding(
        test="elements",
        input=measured.name,
        index=index,
        verdict=VERDICT_OF_DEPARTURE[measured.op.gradient],
        text=f"input {name}, element {index}: {_both(measured, found)}{_because(cause)}",
        **found,
    )


def of_directions(measured: Measured, cause: str) -> Finding:
    """The adjoint test: <dy, J v> by forward values beside <vjp(dy), v>."""
    worst, _ = _worst(measured.directions, measured.points)
    name = quote(measured.name)
    if worst is None:
        return _unchecked("adjoint", measured, "forward values are not smooth and precise enough along any direction")
    found = numbers_of(worst, 1.0)
    if not worst.confirmed:
        text = f"input {name}: <dy, J v> by forward values agrees with <vjp(dy), v>"
        if not measured.connected:
            text = f"input {name}: the rule gives no gradient, and the outputs do not depend on it"
        return Finding(test="adjoint", input=measured.name, verdict="pass", text=text, **found)
    text = f"input {name}: <dy, J v> along random v: {_both(measured, found)}{_because(cause)}"
    if not measured.connected:
        text = (
            f"input {name}: the rule gives no gradient, but the outputs depend on it, with a slope of "
            f"{found['wanted']:.6g} in a random direction: there is nothing to compare that with"
        )
        found["got"] = float("nan")
    verdict = VERDICT_OF_DEPARTURE[measured.op.gradient] if measured.connected else "unchecked"
    return Finding(test="adjoint", input=measured.name, verdict=verdict, text=text, **found)


def of_taylor(measured: Measured) -> Finding:
    """The order in t of f(x + t v) - f(x) - t <vjp, v>: about 2 for a derivative, about 1 for anything else."""
    slopes = [slope for comparison in measured.directions for slope in comparison.slopes if slope.clear.any()]
    name = quote(measured.name)
    if not slopes:
        return _unchecked("taylor", measured, "forward values are not smooth and precise enough along any direction")
    orders = {remainder_order(slope.fit): slope for slope in slopes}
    low = [order for order, slope in orders.items() if order < _FIRST_ORDER and slope.confirmed]
    if low:
        text = f"input {name}: the remainder of first order shrinks with order {min(low):.2f}, wanted 2"
        verdict = VERDICT_OF_DEPARTURE[measured.op.gradient]
        return Finding(test="taylor", input=measured.name, verdict=verdict, wanted=2.0, got=min(low), text=text)
    seen = [order for order in orders if order >= _FIRST_ORDER]
    how = f"shrinks with order {min(seen):.2f}, wanted at least 2" if seen else "is at rounding level"
    text = f"input {name}: the remainder of first order {how}"
    got = min(seen, default=float("nan"))
    return Finding(test="taylor", input=measured.name, verdict="pass", wanted=2.0, got=got, text=text)


def _worst(comparisons: Sequence[Comparison], points: Sequence[Point]) -> tuple[Slope | None, Point | None]:
    found = [
        (comparison.worst, point)
        for comparison, point in zip(comparisons, points, strict=False)
        if comparison.worst is not None
    ]
    return max(found, key=lambda pair: (pair[0].confirmed, pair[0].excess), default=(None, None))


def numbers_of(slope: Slope, size: float) -> dict[str, Any]:
    """Returns wanted, got and tolerance for the output gradient that shows most, in units of the input."""
    draw = slope.worst_draw
    numbers = {"wanted": slope.wanted, "got": slope.got, "tolerance": slope.tolerance}
    found = {name: float(array[draw]) / size for name, array in numbers.items()}
    if abs(found["wanted"]) < 1e-3 * found["tolerance"]:
        found["wanted"] = 0.0
    return found


def place_of(lane: int, array: Array) -> tuple[int, ...]:
    """Returns the index in an array of one of its reals."""
    number = lane // 2 if array.dtype.kind == "c" else lane
    return tuple(int(at) for at in np.unravel_index(number, array.shape))


def _both(measured: Measured, found: dict[str, Any]) -> str:
    digits = 12 if found["tolerance"] < 1e-7 * abs(found["wanted"]) else 6
    return (
        f"forward values give {found['wanted']:.{digits}g}, the rule gives {found['got']:.{digits}g} "
        f"(tolerance {found['tolerance']:.1e}){_CLAIM[measured.op.gradient]}"
    )


def _because(cause: str) -> str:
    return f"; {cause}" if cause else ""


def _unchecked(test: str, measured: Measured, why: str) -> Finding:
    text = f"input {quote(measured.name)}: {why}; give an example where they are"
    return Finding(test=test, input=measured.name, verdict="unchecked", text=text)
