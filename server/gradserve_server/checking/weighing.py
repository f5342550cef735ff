"""Weighing: the elements of an input moved all at once, in balanced patterns of signs, for dtypes of 16 bits.

One element's share of an output often lies at rounding level there. If D directions move all elements up or down by
patterns that are orthogonal (a Hadamard matrix: Hotelling, "Some improvements in weighing", 1944), each element's
slope comes from all D of them, with 1/sqrt(D) of the noise of one, for no more calls than D elements would take.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from gradserve.tensors import Array
from gradserve_server.checking.differences import BEND_MARGIN, Fit, beyond, fit
from gradserve_server.checking.measuring import Slope, steps_of
from gradserve_server.checking.sampling import Direction, Sampler

_SPARE = 8
"""So many directions more than elements, at least: what they leave over measures the noise."""
_LEAST, _MOST = 16, 64
"""Least number of directions, and the number from which more are taken only where there are more elements."""
_DITHER = 0.25
"""Windows differ by up to this part, so that roundings differ too."""
_SUSPICIOUS = 0.75
"""A departure of this part of its tolerance is looked at again."""
_MOST_SUSPECTED = 6
"""So many elements of one input are looked at again."""
_LEAST_COHERENT = 0.25
"""The part of that which is left however much other elements shift the grid."""
_AGAIN = ((0.8125, 2), (0.5, 4))
"""Windows for that, relative to the first, and how many times as many directions."""


_LASTING = 0.5
"""Part of a departure that must be left if its course over the windows is followed to steps of zero: a curve's isn't."""


def weigh(
    sampler: Sampler, directions: Sequence[Direction], window: float, rng: np.random.Generator, count: int
) -> list[Slope]:
    """Measures the slope of each of some elements, and of suspicious ones again, with more directions.

    Args:
        sampler: Samples the op around a point.
        directions: One for each element, all in the same input.
        window: Largest step.
        rng: Draws the patterns.
        count: Wanted number of directions, within bounds.

    Returns:
        The slopes; an empty list where there are too few values around the point.
    """
    rest = np.zeros_like(directions[0].vector)
    count = max(_LEAST, min(_MOST, count))
    times = max(1, count // _count(directions))
    measured = _weigh(sampler, directions, (window, times), rest, rng)
    suspects = sorted((slope for slope in measured if slope.excess > _SUSPICIOUS), key=lambda slope: -slope.excess)
    chosen = [slope.direction for slope in suspects[:_MOST_SUSPECTED]]
    if not chosen:
        return measured
    rest = np.sum([direction.vector for direction in directions if direction not in chosen], axis=0) + rest
    one, other = (_weigh(sampler, chosen, (window * part, more * count // _LEAST), rest, rng) for part, more in _AGAIN)
    judged = {a.direction.lane: _judge(sampler, a, b) for a, b in zip(one, other, strict=False)}
    return [judged.get(slope.direction.lane, slope) for slope in measured]


def _count(directions: Sequence[Direction]) -> int:
    """Returns how many directions tell these elements apart: a power of two, with some to spare."""
    count = _LEAST
    while count < len(directions) + _SPARE:
        count *= 2
    return count


def _judge(sampler: Sampler, slope: Slope, other: Slope) -> Slope:
    """Returns the slope, confirmed if other patterns and steps show the same departure, and that is not a kink's."""
    draw, scheme = slope.worst_draw, sampler.scheme
    seen, again = slope.departure[draw], other.departure[draw]
    slack = 0.2 * (slope.tolerance[draw] + other.tolerance[draw]) + 0.25 * abs(seen)
    (near, _), (nearer, _) = _AGAIN
    at_zero = again - (seen - again) * nearer / (near - nearer)
    stands = (
        slope.excess > 1
        and at_zero * np.sign(seen) > _LASTING * abs(seen)
        and abs(seen - again) <= slack
        and again * np.sign(seen) > scheme.repeat * other.tolerance[draw]
    )
    if stands:
        alone = _measure(sampler, slope.direction.position, slope.direction.vector, slope.fit.window)
        stands = alone is not None and alone.kink[draw] <= abs(seen) / 2
    return dataclasses.replace(slope, confirmed=bool(stands))


def _weigh(
    sampler: Sampler,
    directions: Sequence[Direction],
    effort: tuple[float, int],
    rest: Array,
    rng: np.random.Generator,
) -> list[Slope]:
    """Measures elements in a window, by a multiple of the least number of directions; ``rest`` moves at random."""
    window, times = effort
    count = _count(directions)
    vectors = np.stack([direction.vector for direction in directions])
    signs, fits = [], []
    for _ in range(times):
        for row, relative in zip(_patterns(count, len(directions), rng), _dither(count, rng), strict=True):
            vector = row @ vectors + rest * rng.choice([-1.0, 1.0], len(rest))
            found = _measure(sampler, directions[0].position, vector, window * relative)
            if found is not None:
                signs.append(row)
                fits.append(found)
    if len(fits) < len(directions) + _SPARE // 2:
        return []
    return _solve(sampler, directions, np.stack(signs), fits)


def _measure(sampler: Sampler, position: int, vector: Array, window: float) -> Fit | None:
    (samples,) = sampler.sample([Direction(position=position, vector=vector)], steps_of(sampler.scheme, window))
    return None if samples is None else fit(samples, sampler.scheme, window)


def _solve(sampler: Sampler, directions: Sequence[Direction], signs: Array, fits: list[Fit]) -> list[Slope]:
    """Solves for the elements by least squares."""
    scheme = sampler.scheme
    inverse = np.linalg.pinv(signs)
    measured = np.stack([found.slope for found in fits])
    departures = inverse @ measured
    left = measured - signs @ departures
    scatter = np.sqrt((left**2).sum(axis=0) / max(len(fits) - len(directions), 1))
    within = np.sqrt(np.mean([(found.gain * np.maximum(found.noise, found.floor)) ** 2 for found in fits], axis=0))
    gains = np.sqrt((inverse**2).sum(axis=1))[:, None]
    bends = inverse @ np.stack([found.bend for found in fits])
    noise = gains * np.maximum(scatter, within)
    errors = scheme.margin * noise + BEND_MARGIN * beyond(bends, noise * fits[0].bend_gain / fits[0].gain)
    weights = np.abs(fits[0].samples.weights)
    shares = np.abs(inverse @ np.stack([found.samples.speeds for found in fits]))
    terms = shares @ weights.T
    errors += scheme.coherent * _staircase(fits, shares, weights)
    return [
        Slope(
            direction=direction,
            fit=fits[0],
            departure=departures[i],
            got=sampler.point.gradient(direction.position) @ direction.vector,
            tolerance=errors[i] + scheme.roundings * scheme.unit * terms[i],
        )
        for i, direction in enumerate(directions)
    ]


def _staircase(fits: Sequence[Fit], shares: Array, weights: Array) -> Array:
    """Returns, for each element and output gradient, what the grids of the outputs that it moves may do to its slope.

    An output that only this element moves meets the same stairs in every direction, so that they do not average out;
    the more grid steps other elements move it by, or the windows differ by, the more they do.
    """
    quanta = np.max([found.samples.quanta for found in fits], axis=0)
    within = np.maximum(quanta, np.median(quanta))  # what an output is computed from may be coarser than itself
    roughness = np.median([found.noise / np.maximum(found.floor, 1e-300) for found in fits], axis=0)
    window = fits[0].window
    moves = shares * window / quanta
    others = np.sqrt(np.maximum((moves**2).sum(axis=0) - moves**2, 0.0))
    left = np.maximum(_LEAST_COHERENT, 1 / (1 + np.hypot(others, _DITHER * moves)))
    squares = (left * within) ** 2 @ (weights**2).T / 12
    return np.asarray(np.maximum(1.0, roughness) * np.sqrt(squares) / window)


def _patterns(count: int, elements: int, rng: np.random.Generator) -> Array:
    """Returns signs, shape (count, elements), with orthogonal columns; ``count`` is a power of two."""
    matrix = np.ones((1, 1))
    while len(matrix) < count:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    columns = rng.permutation(count - 1)[:elements] + 1
    return np.asarray(matrix[:, columns] * rng.choice([-1.0, 1.0], elements))


def _dither(count: int, rng: np.random.Generator) -> Array:
    return np.asarray(1 - _DITHER * rng.permutation(count) / count)
