"""What an op claims of its rows, tried out: calls that run together must give what each gives alone.

An op that couples rows (a softmax over the batch, batch normalisation) and claims that they are independent would mix up its
callers' data, so it is refused.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from gradserve.tensors import Array
from gradserve_server.checking.differences import from_reals, reals, roundoff
from gradserve_server.checking.points import draw_points
from gradserve_server.ops import Layout, Op
from gradserve_server.rule_facts import normal_like
from gradserve_server.scheduling.joining import (
    Results,
    RowsMismatch,
    Share,
    TraceCall,
    backward_call,
    forward_call,
    layout_of,
    run_together,
    share_of,
)

_FACTORS = (2.0**6, -(2.0**12), 2.0**24, float("nan"))
"""What the values of a call are multiplied by to see whether others notice."""
_SLACK = 64.0
"""Roundings, of the largest value of a tensor, that a kernel may do otherwise for more rows."""


def with_layout(op: Op) -> Op:
    """Returns an op whose calls may be joined, if its author claims that they may and that can be tried out.

    Two drawn calls run together; then one of them is changed, and what the other gets must stay. An op that gives another
    result together than alone for another reason (it counts its rows, say, or kernels sum in another order for more
    rows) keeps what its author claims, but its calls run one by one.

    To be called on the thread of the op's device.

    Raises:
        OpLoadError: What a call gets depends on the call beside it (ROWS_COUPLED).
    """
    layout = layout_of(op)
    if layout is None:
        return op
    calls = _calls(op, layout)
    for shares in calls:
        found = _difference_by_neighbour(op, shares)
        if found:
            claim = "elementwise=True" if layout.is_flat else "batch_axis"
            raise op.failure(f"it claims {claim}, but its rows depend on each other: {found}", "ROWS_COUPLED")
    if len(calls) < 2 or any(map(_differs_from_alone, calls)):
        return op
    return dataclasses.replace(op, layout=layout)


def _calls(op: Op, layout: Layout) -> list[list[Share]]:
    """Returns for each kind of call two that may be joined; fewer kinds where they cannot, or none can be drawn."""
    rng = np.random.default_rng(0)
    points = [] if op.no_vjp else list(draw_points(op, 2, rng))
    if len(points) < 2:
        return []
    points[1] = [first if axis is None else second for first, second, axis in zip(*points, layout.inputs, strict=True)]
    forward = [_share(layout, forward_call(op), inputs, []) for inputs in points]
    backward = [_share(layout, backward_call(op), inputs, _upstream(op, inputs, rng)) for inputs in points]
    calls = [[share for share in shares if share is not None] for shares in (forward, backward)]
    return [shares for shares in calls if len(shares) == 2 and shares[0].key == shares[1].key]


def _share(layout: Layout, call: TraceCall, inputs: Sequence[Array], upstream: Sequence[Array]) -> Share | None:
    return share_of(layout, call, inputs, upstream, [axis is not None for axis in layout.inputs])


def _upstream(op: Op, inputs: Sequence[Array], rng: np.random.Generator) -> list[Array]:
    pairs = zip(op.program.forward(inputs), op.signature.outputs.values(), strict=True)
    return [normal_like(array, rng) for array, spec in pairs if spec.differentiable]


def _difference_by_neighbour(op: Op, shares: Sequence[Share]) -> str:
    """Returns the first value that changes with the call beside it, and where; empty if none does."""
    try:
        before = run_together(shares)
        for kept, (first, second) in [
            *((1, (changed, shares[1])) for changed in _changed(shares[0])),
            *((0, (shares[0], changed)) for changed in _changed(shares[1])),
        ]:
            after = _run_if_valid([first, second])
            found = "" if after is None else _difference(op, shares[0].layout, before[kept], after[kept])
            if found:
                return found
    except RowsMismatch as error:
        return str(error)
    return ""


def _run_if_valid(shares: Sequence[Share]) -> list[Results] | None:
    """Runs calls of which one was made up; returns None if the op refuses that."""
    try:
        return run_together(shares)
    except RowsMismatch:
        raise
    except Exception:  # an op may raise anything outside of its domain
        return None


def _changed(share: Share) -> Iterator[Share]:
    """Yields a call of the same sizes with other values: far larger ones, some that spread (NaN), other whole numbers."""
    axes = share.layout.inputs
    for factor in _FACTORS:
        upstream = [_scaled(array, factor) if array.ndim else array for array in share.output_gradients]
        yield dataclasses.replace(share, output_gradients=upstream)
        inputs = [
            array if axis is None else _scaled(array, factor) for array, axis in zip(share.inputs, axes, strict=True)
        ]
        yield dataclasses.replace(share, inputs=inputs)
    for offset in (1, 2):
        inputs = [
            array if axis is None else _shifted(array, offset) for array, axis in zip(share.inputs, axes, strict=True)
        ]
        yield dataclasses.replace(share, inputs=inputs)


def _scaled(array: Array, factor: float) -> Array:
    """Returns an array times a factor, with zeros replaced; as it is if it is not of a floating-point or complex dtype."""
    if array.dtype.kind in "biuO":
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        values = reals(array)
        return from_reals(np.where(values == 0, 1.0, values) * factor, array)


def _shifted(array: Array, offset: int) -> Array:
    """Returns an array plus an offset, whole numbers modulo 3 of it, so that they stay small; strings as they are."""
    if array.dtype.kind == "b":
        return np.logical_not(array)
    if array.dtype.kind in "iu":
        return np.asarray((array + array.dtype.type(offset)) % array.dtype.type(3))
    return array if array.dtype.kind == "O" else from_reals(reals(array) + offset, array)


def _differs_from_alone(shares: Sequence[Share]) -> bool:
    alone = [share.call.run(share.inputs, share.output_gradients) for share in shares]
    return any(
        wanted.shape != got.shape or _place_of_difference(wanted, got) is not None
        for one, other in zip(alone, run_together(shares), strict=True)
        for _, wanted, got in _pairs(shares[0].layout, one, other)
    )


def _difference(op: Op, layout: Layout, before: Results, after: Results) -> str:
    names = [f"output {name!r}" for name in op.signature.outputs]
    names += [f"gradient of {name!r}" for name in op.signature.inputs]
    for number, one, other in _pairs(layout, before, after):
        place = _place_of_difference(one, other)
        if place is not None:
            return f"{names[number]}, element {place}: {one[place]!s} beside one call, {other[place]!s} beside another"
    return ""


def _pairs(layout: Layout, one: Results, other: Results) -> Iterator[tuple[int, Array, Array]]:
    """Yields outputs, and gradients that have rows, of two results; each with its number among all outputs and inputs."""
    for number, (wanted, got) in enumerate(zip(one[0], other[0], strict=True)):
        yield number, wanted, got
    for index, wanted, got in zip(layout.gradients, one[1], other[1], strict=False):  # a forward call has none
        if layout.inputs[index] is not None:
            yield len(layout.outputs) + index, wanted, got


def _place_of_difference(wanted: Array, got: Array) -> tuple[int, ...] | None:
    """Returns the index of the value that differs most, if that is by more than rounding."""
    if wanted.dtype.kind in "biuO":
        apart, slack = (wanted != got).astype(np.float64).reshape(-1), 0.0
    else:
        a, b = reals(wanted), reals(got)
        with np.errstate(invalid="ignore"):
            apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        apart = np.nan_to_num(apart, nan=np.inf)
        slack = _SLACK * roundoff(wanted.dtype) * np.abs(a[np.isfinite(a)]).max(initial=0.0)
    if apart.max(initial=0.0) <= slack:
        return None
    number = int(np.argmax(apart)) // (2 if wanted.dtype.kind == "c" else 1)
    return tuple(int(at) for at in np.unravel_index(number, wanted.shape))
