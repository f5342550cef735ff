"""Comparisons: a rule against forward values at one point, element by element and in random directions."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from gradserve.tensors import Array
from gradserve_server.checking.differences import is_symmetric, reals, roundoff
from gradserve_server.checking.measuring import Slope, confirm, measure
from gradserve_server.checking.sampling import Direction, Point, Sampler

_MOST_CONFIRMED = 3
"""So many of the worst departures are looked at again, until one stands."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What one test measured for one input at one point."""

    slopes: Sequence[Slope]
    """The directions that could be measured."""
    skipped: int
    """How many elements of the input no direction moved by itself."""

    @property
    def worst(self) -> Slope | None:
        """The confirmed departure of largest excess, else the clear slope of largest excess; None if none is clear."""
        departing = [slope for slope in self.slopes if slope.confirmed]
        clear = [slope for slope in self.slopes if slope.clear.any() and slope.excess <= 1]
        return max(departing or clear, key=lambda slope: slope.excess, default=None)


def coarsest(position: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> np.dtype[np.generic]:
    """Returns the float or complex dtype of least precision among an input and the outputs."""
    dtypes = [inputs[position].dtype, *(output.dtype for output in outputs)]
    return max(dtypes, key=roundoff)


def compare_elements(sampler: Sampler, position: int, most: int, rng: np.random.Generator) -> Comparison:
    """Compares element by element, or a random choice of ``most`` elements.

    Args:
        sampler: Samples the op around a point.
        position: Which input.
        most: Largest number of elements to look at.
        rng: Chooses them.
    """
    scales = sizes(reals(sampler.point.inputs[position]), narrow=sampler.scheme.narrow)
    chosen = np.arange(len(scales))
    if len(scales) > most:
        chosen = np.sort(rng.choice(len(scales), most, replace=False))
    directions = [Direction(position=position, vector=_unit(scales, int(i)), lane=int(i)) for i in chosen]
    return _compare(sampler, directions, len(scales) - len(chosen))


def compare_directions(sampler: Sampler, position: int, count: int, rng: np.random.Generator) -> Comparison:
    """Compares in random directions, each element by plus or minus its size; arguments as of ``compare_elements``."""
    scales = sizes(reals(sampler.point.inputs[position]), narrow=sampler.scheme.narrow)
    signs = rng.choice([-1.0, 1.0], (count, len(scales)))
    directions = [Direction(position=position, vector=scales * row) for row in signs]
    return _compare(sampler, directions, 0)


def _compare(sampler: Sampler, directions: Sequence[Direction], skipped: int) -> Comparison:
    found = _measured(sampler, directions)
    if any(slope.confirmed for slope in found) and _is_for_symmetric(sampler.point, directions[0].position):
        shape = sampler.point.inputs[directions[0].position].shape
        found = _measured(sampler, [_mirror(direction, shape) for direction in directions])
    return Comparison(slopes=found, skipped=skipped)


def _is_for_symmetric(point: Point, position: int) -> bool:
    """Whether the rule gives symmetric matrices whatever the output gradient is.

    Such a rule, as that of the Cholesky decomposition, is meant for symmetric inputs, and is the derivative along
    symmetric directions alone.
    """
    rows = [draw[position] for draw in point.gradients]
    moving = [row for row in rows if row is not None and row.any()]
    return len(moving) > 1 and all(is_symmetric(row) for row in moving)


def _mirror(direction: Direction, shape: tuple[int, ...]) -> Direction:
    """Returns the symmetric part of a direction."""
    matrix = direction.vector.reshape(shape)
    return dataclasses.replace(direction, vector=((matrix + np.swapaxes(matrix, -1, -2)) / 2).reshape(-1))


def _measured(sampler: Sampler, directions: Sequence[Direction]) -> list[Slope]:
    measured = [slope for slope in measure(sampler, directions) if slope is not None]
    by_excess = sorted(range(len(measured)), key=lambda i: -measured[i].excess)
    for i in by_excess[:_MOST_CONFIRMED]:
        if measured[i].excess > 1 and confirm(sampler, measured[i]):
            measured[i] = dataclasses.replace(measured[i], confirmed=True)
            break
    return measured


def sizes(values: Array, *, narrow: bool) -> Array:
    """Returns a power of two near the size of each element; those far below the others take from theirs."""
    magnitudes = np.abs(values)
    floor = np.median(magnitudes) * (1.0 if narrow else 0.25) if len(magnitudes) else 0.0
    magnitudes = np.maximum(magnitudes, floor)
    return np.asarray(2.0 ** np.round(np.log2(np.where(magnitudes > 0, magnitudes, 1.0))))


def _unit(scales: Array, i: int) -> Array:
    vector = np.zeros_like(scales)
    vector[i] = scales[i]
    return vector


def is_roughened(sampler: Sampler, slope: Slope) -> bool:
    """Whether float64 forward values are rounded to float32 somewhere, from a line that is rougher than float64.

    They stand still for steps that float64 resolves a thousand times over, and move for steps that float32 resolves.
    """
    samples = slope.fit.samples
    tiny, small = 2.0**-32, 2.0**-18
    moving = np.abs(samples.speeds) * tiny > 64 * 2.0**-53 * np.maximum(samples.peaks, 1e-300)
    steps = np.array([tiny, -tiny, small, -small])
    (near,) = sampler.sample([dataclasses.replace(slope.direction, lane=-1)], steps)
    if near is None or not moving.any() or near.rises.shape != (4, len(moving)):
        return False
    rises = near.rises[:, moving]
    return not rises[:2].any() and bool(rises[2:].any(axis=0).all())
