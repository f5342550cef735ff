"""What can be found out about an op's rule by trying it: whether it is linear in dy, and whether rows can be vectorised."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from gradserve.dtypes import dtype_of
from gradserve.tensors import Array
from gradserve_server.program import Program

_SCALES = {16: (2.0**-4, 2.0**4, 2.0**10), 128: (2.0**-12, 2.0**12, 2.0**24), 1024: (2.0**-40, 2.0**12, 2.0**40)}
"""By the largest exponent of a dtype. Powers of two, so that only the exponent of a linear rule's result changes."""
_SUM_TOLERANCE = 1 / 16
"""Relative difference between the gradient for a sum and the sum of gradients that rounding explains."""
_ROWS = 3
"""How many rows are pulled back both together and alone."""
PullBackTogether = Callable[[Sequence[Array], Sequence[Array], int], Sequence[Array | None]]


def is_linear(program: Program, points: Iterable[Sequence[Array]]) -> bool | None:
    """Returns whether gradients are linear in the output gradients, as those of every true derivative are.

    Tries whether the gradient for s * dy is s times that for dy, for small, large and negative s, and whether the gradient
    for a sum is the sum of gradients. A sign, a threshold, or a clip of dy by value or by norm fails one of these.

    Args:
        program: The op, to be called on the thread of its device.
        points: Inputs at which to try. Those where the op raises are passed over, and so are elements that are not finite.

    Returns:
        None if there was nothing to compare.
    """
    agreements: list[bool] = []
    for inputs in points:
        with contextlib.suppress(
            Exception
        ):  # drawn inputs need not be valid, and Python code in an op may raise anything
            agreements += list(_compare(program, inputs))
    return all(agreements) if agreements else None


def _compare(program: Program, inputs: Sequence[Array]) -> Iterator[bool]:
    rng = np.random.default_rng(0)
    first, second = (_draw_output_gradients(program, inputs, rng) for _ in range(2))
    base = program.vjp(inputs, first)[1]
    if not base:  # the rule leaves every input out, as a linear one may
        yield True
    for scale in (-1.0, *_SCALES[min(int(_finfo(array).maxexp) for array in first)]):
        scaled = program.vjp(inputs, [_cast(_wide(array) * scale, array) for array in first])[1]
        yield from _agreements(scaled, [_wide(gradient) * scale for gradient in base])
    both = program.vjp(inputs, [_cast(_wide(a) + _wide(b), a) for a, b in zip(first, second, strict=True)])[1]
    other = program.vjp(inputs, second)[1]
    for gradients in zip(both, base, other, strict=True):
        yield from _sums_agree(*gradients)


def rows_agree(pull_back_together: PullBackTogether, program: Program, inputs: Sequence[Array]) -> bool:
    """Returns whether output gradients that are pulled back together give what each gives alone; False if that fails.

    Args:
        pull_back_together: Takes inputs, stacked output gradients and their number, and returns stacked gradients.
        program: The op, to be called on the thread of its device.
        inputs: Inputs at which to try.
    """
    rng = np.random.default_rng(0)
    try:
        rows = [_draw_output_gradients(program, inputs, rng) for _ in range(_ROWS)]
        stacks = [np.stack(stack) for stack in zip(*rows, strict=True)]
        together = [stack for stack in pull_back_together(inputs, stacks, _ROWS) if stack is not None]
        return all(
            agrees
            for index, row in enumerate(rows)
            for agrees in _agreements([stack[index] for stack in together], program.vjp(inputs, row)[1])
        )
    except Exception:  # Python code in the op may raise anything at inputs that its author never thought of
        return False


def _draw_output_gradients(program: Program, inputs: Sequence[Array], rng: np.random.Generator) -> list[Array]:
    outputs = program.forward(inputs)
    return [normal_like(output, rng) for output in outputs if dtype_of(output.dtype).is_differentiable]


def normal_like(array: Array, rng: np.random.Generator) -> Array:
    """Returns normally distributed numbers in the shape and dtype of an array."""
    drawn: Any = rng.standard_normal(array.shape)
    if array.dtype.kind == "c":
        drawn = drawn + 1j * rng.standard_normal(array.shape)
    return _cast(drawn, array)


def _agreements(got: Sequence[Array], wanted: Sequence[Array]) -> Iterator[bool]:
    """Yields for each array whether it is close to what is wanted, up to rounding; nothing where none of it is finite."""
    for one, other in zip(got, wanted, strict=True):
        a, b = _wide(one), _wide(other)
        finite = np.isfinite(a) & np.isfinite(b)
        if finite.any():
            info = _finfo(one)
            largest = max(np.abs(a[finite]).max(), np.abs(b[finite]).max())
            yield bool(np.abs(a - b)[finite].max() <= np.sqrt(float(info.eps)) * largest + float(info.tiny))


def _sums_agree(got: Array, one: Array, other: Array) -> Iterator[bool]:
    """Yields whether a gradient is the sum of two others; nothing where none of it is finite.

    Ops may compute in a narrower dtype than they return, and the two may cancel, so that rounding counts by their sizes.
    """
    a, b, c = _wide(got), _wide(one), _wide(other)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    if finite.any():
        size = (np.abs(b) + np.abs(c))[finite].max()
        yield bool(np.abs(a - b - c)[finite].max() <= _SUM_TOLERANCE * size + float(_finfo(got).tiny))


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _cast(values: Any, like: Array) -> Array:
    return np.asarray(values).astype(like.dtype)


def _finfo(array: Array) -> Any:
    return ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]  # it has no types
