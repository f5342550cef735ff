"""Measuring: the slope of an op along directions, by forward values, in the window of steps that tells most.

A window too wide is spoiled by curvature or kinks, one too narrow by rounding; both show in what its fit leaves over,
so windows are tried until one is good, and the best counts. A departure counts only if other steps show it as well.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from gradserve.tensors import Array
from gradserve_server.checking.differences import Fit, Samples, Scheme, fit
from gradserve_server.checking.sampling import Direction, Sampler

_FLAT_WINDOW = 2.0**-6
"""Where nothing moves in a window below this though the rule says so, the input may be rounded to a narrow format."""
_OTHER_WINDOWS = (0.8125, 0.40625)
"""Windows in which a departure must show too, relative to that in which it was seen."""
_SAME = 0.35
"""Departures in two windows are one if they differ by less than this part."""
_FAR_WINDOWS = (8.0, 64.0, 1 / 8, 1 / 64)
"""Windows that must not contradict a departure, relative to that in which it was seen."""
_WIDEST = 4.0
"""Of a window above this nothing is asked: no polynomial fits a function that far, so that its slope is arbitrary."""
_LOCAL = (2.0**-8, 2.0**-2)
"""A departure in a window outside of these must show in one nearer to them too: one stair of a coarse input looks
smooth, and so do many from afar."""
_MOST_DOUBTED = 4
"""So many departing directions of one input are looked at in all windows; the others need not be."""
_LOST = 4.0
"""Slack for the rounding of a rule, which is seen once, over what is seen."""
_CLEAR = 0.1
"""A slope is measured if its tolerance is below this, relative to the outputs, or below three times this, relative to
itself."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """A measured slope along one direction; arrays have an element per output gradient drawn."""

    direction: Direction
    """The direction."""
    fit: Fit
    """The window that tells most."""
    departure: Array
    """The true slope less the rule's."""
    got: Array
    """The slope by the rule."""
    error: Array
    """How far forward values may mislead."""
    allowance: Array
    """How far rounding may have moved the rule, which no window makes less."""
    confirmed: bool = False
    """Whether other steps showed the same departure."""

    @property
    def wanted(self) -> Array:
        """The slope by forward values."""
        return np.asarray(self.got + self.departure)

    @property
    def tolerance(self) -> Array:
        """Largest difference that counts as none."""
        return np.asarray(self.error + self.allowance)

    @property
    def clear(self) -> Array:
        """Whether the values are smooth and precise enough to judge by."""
        size = np.maximum(np.abs(self.wanted), np.abs(self.got))
        return (self.tolerance <= 3 * _CLEAR * size) | (self.tolerance <= _CLEAR * self.fit.values)

    @property
    def excess(self) -> float:
        """The departure over its tolerance, where that is largest; above 1 the rule is not the derivative."""
        return float(self._excesses().max())

    @property
    def worst_draw(self) -> int:
        """The output gradient for which that is so."""
        return int(self._excesses().argmax())

    def _excesses(self) -> Array:
        return np.asarray(np.abs(self.departure) / np.maximum(self.tolerance, 1e-300))

    @property
    def roughness(self) -> float:
        """Noise of the forward values, relative to their size."""
        return float(np.median(np.maximum(self.fit.noise, self.fit.floor) / np.maximum(self.fit.values, 1e-300)))

    def is_good(self, scheme: Scheme) -> bool:
        """Whether no other window need be tried."""
        return self.excess <= 1 and bool(np.all(self.error <= scheme.goal * self._terms()))

    def _terms(self) -> Array:
        return np.maximum(self.fit.terms, 1e-3 * self.fit.values)


def measure(sampler: Sampler, directions: Sequence[Direction]) -> list[Slope | None]:
    """Measures the slope along each direction; None where there are no values around the point.

    Args:
        sampler: Samples the op around a point.
        directions: Directions, all in the same input.
    """
    best: list[Slope | None] = [None] * len(directions)
    pending = list(range(len(directions)))
    for number, window in enumerate(sampler.scheme.windows, 1):
        slopes = _measure_window(sampler, [directions[i] for i in pending], window)
        for i, slope in zip(pending, slopes, strict=True):
            best[i] = _better(best[i], slope)
        enough = number >= sampler.scheme.enough
        pending = _still_pending(best, pending, sampler.scheme, enough=enough)
        if not pending:
            break
    return best


def confirm(sampler: Sampler, slope: Slope) -> bool:
    """Whether a departure shows with other steps too: a kink, a jump or an unlucky rounding does not."""
    draw = slope.worst_draw
    seen = slope.departure[draw]
    for relative in _OTHER_WINDOWS:
        other = _again(sampler, slope, relative)
        if other is None or abs(other.departure[draw]) <= other.tolerance[draw] * min(1.0, relative):
            return False
        again = other.departure[draw]
        if abs(again - seen) > _SAME * max(abs(seen), abs(again)):
            return False
    far = [relative for relative in _FAR_WINDOWS if relative < 1 or slope.fit.window * relative <= _WIDEST]
    others = {relative: _again(sampler, slope, relative) for relative in far}
    if not _LOCAL[0] <= slope.fit.window <= _LOCAL[1]:
        local = _again(sampler, slope, 8.0 if slope.fit.window < _LOCAL[0] else _LOCAL[1] / slope.fit.window / 2)
        if local is None or abs(local.departure[draw]) <= local.tolerance[draw]:
            return False
    return not any(other is not None and _contradicts(other, slope, draw) for other in others.values())


def _again(sampler: Sampler, slope: Slope, relative: float) -> Slope | None:
    (other,) = _measure_window(sampler, [slope.direction], slope.fit.window * relative)
    return other


def _contradicts(far: Slope, slope: Slope, draw: int) -> bool:
    """Whether much wider or narrower steps show another slope, as those of a staircase do."""
    slack = far.tolerance[draw] + slope.tolerance[draw] + _SAME * abs(slope.departure[draw])
    return bool(abs(far.departure[draw] - slope.departure[draw]) > slack)


def _still_pending(best: Sequence[Slope | None], pending: Sequence[int], scheme: Scheme, *, enough: bool) -> list[int]:
    """Returns which directions need another window: those without a good one, and few of those that depart."""
    kept, doubted = [], 0
    for i in sorted(pending, key=lambda i: _excess(best[i]), reverse=True):
        slope = best[i]
        departs = slope is not None and slope.excess > 1
        doubted += departs
        done = slope is not None and (slope.is_good(scheme) or (enough and slope.clear.any()))
        if not (done or (departs and doubted > _MOST_DOUBTED)):
            kept.append(i)
    return sorted(kept)


def _excess(slope: Slope | None) -> float:
    return 0.0 if slope is None else slope.excess


def _better(one: Slope | None, other: Slope | None) -> Slope | None:
    if one is None or other is None:
        return one or other
    return one if np.linalg.norm(one.error) <= np.linalg.norm(other.error) else other


def _measure_window(sampler: Sampler, directions: Sequence[Direction], window: float) -> list[Slope | None]:
    scheme = sampler.scheme
    steps = steps_of(scheme, window)
    fits = [
        None if samples is None or _says_nothing(samples, window) else fit(samples, scheme, window)
        for samples in sampler.sample(directions, steps)
    ]
    ratios = [_ratio(found) for found in fits if found is not None]
    pooled = float(np.median(ratios)) if ratios else 1.0
    return [
        None
        if found is None
        else Slope(
            direction=direction,
            fit=found,
            departure=found.slope,
            got=sampler.point.gradient(direction.position) @ direction.vector,
            error=found.error(scheme, pooled),
            allowance=found.allowance(scheme) + _lost(sampler, direction),
        )
        for direction, found in zip(directions, fits, strict=True)
    ]


def _lost(sampler: Sampler, direction: Direction) -> Array:
    """Returns what rounding in the op's own dtype may do to the rule's slope; zeros if that dtype was sampled."""
    return np.asarray(_LOST * np.sqrt(sampler.point.rounding(direction.position) ** 2 @ direction.vector**2))


def steps_of(scheme: Scheme, window: float) -> Array:
    """Returns the steps of a window, t and -t by turns, the largest first."""
    return np.array([[window * fraction, -window * fraction] for fraction in scheme.fractions]).reshape(-1)


def _ratio(found: Fit) -> Array:
    return found.noise / np.maximum(found.floor, 1e-300)


def _says_nothing(samples: Samples, window: float) -> bool:
    distinct = len(np.unique(samples.steps)) == len(samples.steps)
    stands_still = samples.pulls.any() and not samples.rises.any()
    return not distinct or (window < _FLAT_WINDOW and bool(stands_still))
