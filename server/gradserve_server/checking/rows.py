"""What an op claims of its rows, tried out: calls that run together must give what each gives alone.

An op that couples rows (a softmax over the batch, batch normalisation) and claims that they are independent would mix up its
callers' data, so it is refused.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from gradserve.tensors import Array
from gradserve_server.checking.differences import reals, roundoff
from gradserve_server.checking.points import draw_points
from gradserve_server.ops import Layout, Op
from gradserve_server.rule_facts import normal_like
from gradserve_server.scheduling.joining import (
    RowsMismatch,
    Share,
    TraceCall,
    backward_call,
    forward_call,
    layout_of,
    run_together,
    share_of,
)

_SLACK = 64.0
"""Roundings, of the largest value of a tensor, that a kernel may do otherwise for more rows."""


def with_layout(op: Op) -> Op:
    """Returns an op whose calls may be joined, if its author claims that they may and that can be tried out.

    To be called on the thread of the op's device.

    Raises:
        OpLoadError: Together, calls give something else than alone (ROWS_COUPLED).
    """
    layout = layout_of(op)
    if layout is None:
        return op
    tried = [shares for shares in _calls(op, layout) if len({share.key for share in shares}) == 1 < len(shares)]
    for shares in tried:
        found = _difference_of(op, shares)
        if found:
            claim = "elementwise=True" if layout.is_flat else "batch_axis"
            raise op.failure(f"it claims {claim}, but its rows depend on each other: {found}", "ROWS_COUPLED")
    return dataclasses.replace(op, layout=layout) if len(tried) == 2 else op


def _calls(op: Op, layout: Layout) -> list[list[Share]]:
    """Returns for each kind of call two that may be joined, or fewer where they cannot; nothing if none can be drawn."""
    rng = np.random.default_rng(0)
    points = [] if op.no_vjp else list(draw_points(op, 2, rng))
    if len(points) < 2:
        return []
    points[1] = [first if axis is None else second for first, second, axis in zip(*points, layout.inputs, strict=True)]
    forward = [_share(layout, forward_call(op), inputs, []) for inputs in points]
    backward = [_share(layout, backward_call(op), inputs, _upstream(op, inputs, rng)) for inputs in points]
    return [[share for share in shares if share is not None] for shares in (forward, backward)]


def _share(layout: Layout, call: TraceCall, inputs: Sequence[Array], upstream: Sequence[Array]) -> Share | None:
    return share_of(layout, call, inputs, upstream, [axis is not None for axis in layout.inputs])


def _upstream(op: Op, inputs: Sequence[Array], rng: np.random.Generator) -> list[Array]:
    pairs = zip(op.program.forward(inputs), op.signature.outputs.values(), strict=True)
    return [normal_like(array, rng) for array, spec in pairs if spec.differentiable]


def _difference_of(op: Op, shares: Sequence[Share]) -> str:
    """Returns the first value that differs, and where; empty if none does."""
    alone = [share.call.run(share.inputs, share.output_gradients) for share in shares]
    try:
        together = run_together(shares)
    except RowsMismatch as error:
        return str(error)
    for number, (one, other) in enumerate(zip(alone, together, strict=True), 1):
        for what, wanted, got in _pairs(op, shares[0].layout, one, other):
            place = _place_of_difference(wanted, got)
            if place is not None:
                return f"{what} of call {number}, element {place}: alone {wanted[place]!s}, beside another call {got[place]!s}"
    return ""


def _pairs(
    op: Op, layout: Layout, one: tuple[Sequence[Array], Sequence[Array]], other: tuple[Sequence[Array], Sequence[Array]]
) -> Iterator[tuple[str, Array, Array]]:
    for name, wanted, got in zip(op.signature.outputs, one[0], other[0], strict=True):
        yield f"output {name!r}", wanted, got
    names = list(op.signature.inputs)
    for index, wanted, got in zip(layout.gradients, one[1], other[1], strict=False):  # a forward call has none
        if layout.inputs[index] is not None:
            yield f"gradient of {names[index]!r}", wanted, got


def _place_of_difference(wanted: Array, got: Array) -> tuple[int, ...] | None:
    """Returns the index of the value that differs most, if that is by more than rounding."""
    if wanted.dtype.kind in "biuO":
        apart, slack = (wanted != got).astype(np.float64).reshape(-1), 0.0
    else:
        a, b = reals(wanted), reals(got)
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        apart = np.nan_to_num(apart, nan=np.inf)
        slack = _SLACK * roundoff(wanted.dtype) * np.abs(a[np.isfinite(a)]).max(initial=0.0)
    if apart.max(initial=0.0) <= slack:
        return None
    number = int(np.argmax(apart)) // (2 if wanted.dtype.kind == "c" else 1)
    return tuple(int(at) for at in np.unravel_index(number, wanted.shape))
