"""Derivatives along a line from forward values alone, each with an error that is measured rather than assumed.

    values at x + t v, t on both sides of 0  ->  least-squares fit  ->  slope, tolerance

The fit has odd powers of t (the first is the slope), even ones, and the absolute value of t, which is what a kink at x looks like. What the
fit leaves over measures the noise: rounding, values coarser than their dtype, a kink or a jump nearby, too strong a
curve. Nothing here imports a framework, and arrays are vectors of float64; ``reals`` makes them.
"""

import dataclasses

import numpy as np

from gradserve.tensors import Array

_COARSEST = 2.0**-7
"""Coarsest rounding, relative to a value, that is taken for a format rather than for a step function: bfloat16's."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How lines are measured in one dtype. A direction's length is the size of its input, so that t is relative."""

    fractions: tuple[float, ...]
    """The steps on each side, relative to the window."""
    odd: tuple[int, ...]
    """The odd powers of the fit."""
    even: tuple[int, ...]
    """The even powers of the fit; 1 stands for the absolute value of t."""
    windows: tuple[float, ...]
    """The largest step, in the order in which they are tried."""
    goal: float
    """No other window is tried once the error, relative to the size of the terms of the slope, is below this."""
    margin: float
    """How many standard errors of the fit count as no difference."""
    roundings: float
    """How many roundings of the rule under test count as no difference."""
    unit: float
    """Unit roundoff of the dtype."""
    grid_is_known: bool
    """Whether outputs have the grid of their dtype; else they may have a coarser one, which shows in their last bits."""
    enough: int
    """After so many windows a slope that is clear needs no other."""

    @property
    def narrow(self) -> bool:
        """Whether the dtype has 16 bits."""
        return self.unit > 1e-5


BEND_MARGIN = 3.0
"""What the curve costs, over what the next odd power of the fit shows of it: its worst case is t times its size."""
_FINE = (1.0, 0.75, 0.5, 0.375, 0.25, 0.1875)
_EVEN = (1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25)
_RELATIVE = 1e-10
"""Relative difference that nobody would call an error, though float64 can tell it: constants have fewer digits."""
_ROUNDED_CONSTANTS = 8.0
"""How many roundings of constants count as no difference where nothing else was rounded."""
_OFF_GRID = 0.96875 * 0.9871
"""Keeps steps in wide dtypes from being round numbers, whose exact results would pass for coarsely rounded ones."""


def _powers(*exponents: int, off_grid: float = _OFF_GRID) -> tuple[float, ...]:
    return tuple(off_grid * 2.0**exponent for exponent in exponents)


def _wide(unit: float, roundings: float, goal: float, *exponents: int) -> Scheme:
    return Scheme(
        fractions=_FINE,
        odd=(1, 3, 5),
        even=(1, 2, 4),
        windows=_powers(*exponents),
        goal=goal,
        margin=10.0,
        roundings=roundings,
        unit=unit,
        grid_is_known=False,
        enough=len(exponents),
    )


def _narrow(unit: float, exponents: tuple[int, ...], **more: float) -> Scheme:
    return Scheme(
        fractions=_EVEN,
        odd=(1, 3),
        even=(1, 2),
        windows=_powers(*exponents, off_grid=1.0),
        unit=unit,
        grid_is_known=True,
        enough=3,
        **more,
    )


_SCHEMES = {
    "float64": _wide(2.0**-53, _RELATIVE * 2.0**53, 3 * _RELATIVE, -5, -7, -3, -9, -12, -15, -18, -1, 1),
    "float32": _wide(2.0**-24, 256.0, 8e-5, -4, -2, -6, -8, -11, 0, 2, 4),
    "float16": _narrow(2.0**-11, (-2, -1, -3, 0, -5, 2, 4), goal=0.003, margin=8.0, roundings=32.0),
    "bfloat16": _narrow(2.0**-8, (-1, -2, 0, -3, 2, -5, 4), goal=0.004, margin=8.0, roundings=20.0),
}


def scheme_of(dtype: np.dtype[np.generic]) -> Scheme:
    """Returns how lines are measured where the coarsest dtype, float or complex, is this one."""
    return _SCHEMES[real_dtype(dtype).name]


def widened_scheme_of(dtype: np.dtype[np.generic]) -> Scheme:
    """Returns how lines are measured where an op of this dtype is evaluated in float64.

    The constants in its rule were rounded to its dtype, and stay so.
    """
    wide, unit = _SCHEMES["float64"], roundoff(dtype)
    roundings = _ROUNDED_CONSTANTS * unit / wide.unit
    return dataclasses.replace(wide, roundings=roundings, goal=2 * unit, grid_is_known=True)


def real_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Returns the dtype of the parts of a complex dtype; any other is itself."""
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def roundoff(dtype: np.dtype[np.generic]) -> float:
    """Returns the unit roundoff of a float or complex dtype: the largest relative error of one rounding."""
    return scheme_of(dtype).unit


def reals(array: Array) -> Array:
    """Returns a float or complex array as a vector of float64; a complex number becomes its two parts."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return (flat.view(real_dtype(flat.dtype)) if flat.dtype.kind == "c" else flat).astype(np.float64)


def from_reals(vector: Array, like: Array) -> Array:
    """Inverse of ``reals``, in the dtype and shape of another array, to whose grid it rounds."""
    with np.errstate(over="ignore"):
        parts = vector.astype(real_dtype(like.dtype))
    return (parts.view(like.dtype) if like.dtype.kind == "c" else parts).reshape(like.shape)


def is_symmetric(array: Array) -> bool:
    """Whether it holds symmetric matrices of real numbers, to a few roundings, and not one number alone."""
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.size < 4 or array.dtype.kind == "c":
        return False
    values = array.astype(np.float64)
    slack = 16 * roundoff(array.dtype) * np.abs(values).max()
    differs = (np.abs(values - values.reshape(-1)[0]) > slack).any()
    return bool(differs and (np.abs(values - np.swapaxes(values, -1, -2)) <= slack).all())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Forward values along one direction, less the value at the point itself."""

    steps: Array
    """t of each sample, shape (n,), as the input's dtype could represent them."""
    rises: Array
    """Change of each output, shape (n, outputs)."""
    peaks: Array
    """Largest absolute value of each output, shape (outputs,)."""
    quanta: Array
    """Distance of neighbouring values that each output can take, shape (outputs,)."""
    pulls: Array
    """What the rule under test predicts for each output gradient and step, shape (draws, n)."""
    weights: Array
    """The output gradients, shape (draws, outputs)."""

    @property
    def speeds(self) -> Array:
        """Roughly the slope of each output, shape (outputs,), by the largest steps."""
        return np.asarray((self.rises[0] - self.rises[1]) / (self.steps[0] - self.steps[1]))

    @property
    def remainders(self) -> Array:
        """Change of the weighted outputs less what the rule predicts, shape (draws, n): no linear part if it's right."""
        return np.asarray(self.weights @ self.rises.T - self.pulls)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a window says of one direction; arrays have an element per output gradient drawn."""

    window: float
    """Largest step."""
    slope: Array
    """Slope of the remainders: the derivative less the rule's."""
    noise: Array
    """Noise of one remainder, from what the fit leaves over."""
    floor: Array
    """Noise that the grid of the outputs causes by itself."""
    gain: float
    """Standard error of the slope for a noise of one."""
    bend: Array
    """By how much the slope changes if the fit has the next odd power: what the curve costs."""
    bend_gain: float
    """Standard error of that for a noise of one."""
    kink: Array
    """How far forward and backward slopes lie from their mean beyond noise."""
    terms: Array
    """Size of the terms that make up the slope, before they cancel."""
    values: Array
    """Size of the weighted outputs."""
    samples: Samples
    """What was fitted."""

    def error(self, scheme: Scheme, pooled: float) -> Array:
        """Returns how far the slope may be off.

        Args:
            scheme: How the line was measured.
            pooled: Noise relative to ``floor`` that is typical of the directions measured alike.
        """
        noise = np.maximum(self.noise, self.floor * max(1.0, pooled))
        bend = BEND_MARGIN * beyond(self.bend, self.bend_gain * noise)
        return np.asarray(scheme.margin * self.gain * noise + bend + self.kink)

    def allowance(self, scheme: Scheme) -> Array:
        """Returns the slope that the rounding of the rule under test may have left."""
        return np.asarray(scheme.roundings * scheme.unit * self.terms)


def fit(samples: Samples, scheme: Scheme, window: float) -> Fit:
    """Fits the remainders of one window by least squares."""
    steps = samples.steps / window
    design = np.stack([steps**k for k in scheme.odd] + [np.abs(steps) ** k for k in scheme.even], axis=1)
    inverse = np.linalg.pinv(design)
    longer = np.linalg.pinv(np.column_stack([design, steps ** (scheme.odd[-1] + 2)]))[0] - inverse[0]
    remainders = samples.remainders
    coefficients = remainders @ inverse.T
    left = remainders - coefficients @ design.T
    freedom = max(len(steps) - design.shape[1], 1)
    noise = np.sqrt((left**2).sum(axis=1) / freedom)
    own_arithmetic = 2.0**-52 * np.abs(samples.pulls).max(axis=1)
    floor = np.hypot(np.sqrt(samples.weights**2 @ samples.quanta**2 / 12), own_arithmetic)
    kink, gains = _kink(coefficients, inverse, np.maximum(noise, floor), len(scheme.odd))
    return Fit(
        window=window,
        slope=coefficients[:, 0] / window,
        noise=noise,
        floor=floor,
        gain=float(gains[0]) / window,
        bend=remainders @ longer / window,
        bend_gain=float(np.linalg.norm(longer)) / window,
        kink=kink / window,
        terms=np.abs(samples.weights) @ np.abs(samples.speeds),
        values=np.abs(samples.weights) @ samples.peaks,
        samples=samples,
    )


def _kink(coefficients: Array, inverse: Array, noise: Array, at: int) -> tuple[Array, Array]:
    """Returns the coefficient of the absolute value of t beyond its noise, and the standard errors of all for a noise of one.

    All rises share the rounding of the value at the point itself, which shifts the even part as a whole.
    """
    gains = np.sqrt((inverse**2).sum(axis=1))
    shared = abs(inverse[at].sum())
    return beyond(coefficients[:, at], noise * np.hypot(gains[at], shared)), gains


def beyond(estimate: Array, error: Array) -> Array:
    """Returns how far an estimate lies from zero beyond two standard errors."""
    return np.asarray(np.maximum(0.0, np.abs(estimate) - 2 * error))


def granularity(values: Array, unit: Array, *, is_known: bool) -> Array:
    """Returns the distance of neighbouring values that each output can take.

    Args:
        values: Samples of the outputs, shape (n, outputs).
        unit: Unit roundoff of each output's dtype, shape (outputs,).
        is_known: Whether that is the distance in their dtype; else it may be larger.
    """
    peaks = np.abs(values).max(axis=0)
    own = 2 * unit * 2.0 ** np.floor(np.log2(np.maximum(peaks, 1e-300)))
    if is_known:
        return np.asarray(own)
    mantissas, exponents = np.frexp(np.abs(values))
    integers = (mantissas * 2.0**53).astype(np.int64)
    lowest = np.ldexp((integers & -integers).astype(np.float64), exponents - 53)
    grid = np.where(integers == 0, np.inf, lowest).min(axis=0)
    return np.asarray(np.maximum(np.where(grid <= _COARSEST * peaks, grid, 0.0), own))


def remainder_order(found: Fit) -> float:
    """Returns the order in t of the worst remainder above rounding: 2 or more for a derivative, 1 for anything else.

    Taylor's theorem: f(x + t v) = f(x) + t f'(x) v + O(t^2). NaN if fewer than three steps stand above rounding.
    """
    draw = int(np.argmax(np.abs(found.slope)))
    remainders = found.samples.remainders[draw].reshape(-1, 2)
    sizes = np.sqrt((remainders**2).mean(axis=1))
    steps = np.abs(found.samples.steps).reshape(-1, 2).mean(axis=1)
    clear = sizes > 8 * max(float(found.noise[draw]), float(found.floor[draw]))
    if clear.sum() < 3:
        return float("nan")
    return float(np.polyfit(np.log(steps[clear]), np.log(sizes[clear]), 1)[0])
