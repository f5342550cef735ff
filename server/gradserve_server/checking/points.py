"""Points: inputs at which an op can be evaluated forward and backward, drawn or varied from its author's example."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gradserve.seeds import SEED
from gradserve.signature import Shape, TensorSpec
from gradserve.tensors import Array
from gradserve_server.checking.differences import from_reals, is_symmetric, reals
from gradserve_server.checking.sampling import evaluate
from gradserve_server.ops import Op

"""What an input called "seed" gets: a check needs the same random numbers in every call."""
_TRIES = 4
"""So many points are tried for each that is wanted, beside one for each way of drawing them."""
_VARIATIONS = (0.1, 0.3, 0.03)
"""How far the author's example is varied, relative to its elements, point by point; then from the start."""

Fill = Callable[[np.random.Generator, tuple[int, ...]], Array]
"""Draws float64 values of a shape."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One way of drawing."""

    fill: Fill
    """Draws the values."""
    shape: tuple[int, ...]
    """Shape of inputs whose rank is open."""
    size: int
    """Size of open dimensions; the same for all, since several inputs may have to agree."""


def draw_points(
    op: Op, count: int, rng: np.random.Generator, spent: Callable[[], bool] = lambda: False
) -> Iterator[list[Array]]:
    """Yields inputs where the op runs and outputs and gradients are finite; fewer than ``count`` if too few are found.

    If the author gave an example, the points are that and variations of it: it marks the domain. Else they are drawn
    from several domains: all numbers, positive ones, (0, 1), (-1, 1), above 1, and symmetric positive definite matrices.

    Args:
        op: The op.
        count: How many points are wanted.
        rng: Draws them.
        spent: Whether to give up.

    Yields:
        Inputs, in the signature's order.
    """
    plans = [] if op.example_is_given else _plans(op)
    found, at = 0, 0
    for number in range(_TRIES * count + len(plans)):
        if found == count or spent():
            return
        inputs = _draw(op, plans[at % len(plans)], rng) if plans else _vary(op, number, rng)
        if _is_usable(op, inputs, rng):
            found += 1
            yield inputs
        else:
            at += 1


def _is_usable(op: Op, inputs: Sequence[Array], rng: np.random.Generator) -> bool:
    try:
        return evaluate(op, inputs, 1, rng).is_finite()
    except Exception:  # an op may raise anything outside of its domain
        return False


def _vary(op: Op, number: int, rng: np.random.Generator) -> list[Array]:
    """Returns the author's example, or one near it in which no float changes its sign."""
    if not number:
        return list(op.example)
    spread = _VARIATIONS[number % len(_VARIATIONS)]
    specs = op.signature.inputs.values()
    return [
        _vary_one(array, spread, rng) if spec.dtype.is_differentiable else array
        for array, spec in zip(op.example, specs, strict=True)
    ]


def _vary_one(array: Array, spread: float, rng: np.random.Generator) -> Array:
    values = reals(array)
    noise = rng.standard_normal(values.size)
    if is_symmetric(array):
        square = noise.reshape(array.shape)
        noise = ((square + np.swapaxes(square, -1, -2)) / 2).reshape(-1)
    return from_reals(values * np.exp(spread * noise), array)


def _plans(op: Op) -> list[_Plan]:
    """Returns the ways of drawing, the likeliest to work first."""
    open_rank = any(spec.shape is None for spec in op.signature.inputs.values())
    shapes = [(12,)] if op.elementwise else [(3,), (2, 2), (), (1, 3, 3, 2)]
    sizes = [12] if op.elementwise else [3, 2]
    layouts = [(shape, sizes[0]) for shape in shapes] if open_rank else [((), size) for size in sizes]
    return [_Plan(fill=fill, shape=shape, size=size) for fill in _FILLS for shape, size in layouts]


def _draw(op: Op, plan: _Plan, rng: np.random.Generator) -> list[Array]:
    specs = op.signature.inputs.items()
    return [_draw_one(name, spec, given, plan, rng) for (name, spec), given in zip(specs, op.example, strict=True)]


def _draw_one(name: str, spec: TensorSpec, given: Array, plan: _Plan, rng: np.random.Generator) -> Array:
    shape, dtype = _shape(spec.shape, plan), spec.dtype
    if dtype.is_string:
        return np.full(shape, given.reshape(-1)[0] if given.size else b"", dtype=object)
    if dtype.is_differentiable:
        blank = np.empty(shape, dtype.numpy)
        parts = (*shape, 2) if dtype.numpy.kind == "c" else shape
        return from_reals(plan.fill(rng, parts).reshape(-1), blank)
    if name == SEED:
        return given
    return rng.integers(0, 2, shape).astype(dtype.numpy)


def _shape(shape: Shape, plan: _Plan) -> tuple[int, ...]:
    return plan.shape if shape is None else tuple(plan.size if size is None else size for size in shape)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(0.3 + np.abs(rng.standard_normal(shape)))


def _definite(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Symmetric positive definite where the last two sizes agree, else normal."""
    values = rng.standard_normal(shape)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return values
    return np.asarray(values @ np.swapaxes(values, -1, -2) / shape[-1] + np.eye(shape[-1]))


_FILLS: Sequence[Fill] = (
    _normal,
    _positive,
    lambda rng, shape: rng.uniform(0.1, 0.9, shape),
    lambda rng, shape: rng.uniform(-0.9, 0.9, shape),
    lambda rng, shape: rng.uniform(1.2, 3.0, shape),
    _definite,
)
