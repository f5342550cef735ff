"""Joining: calls of one trace that wait together run as one; each gets its own rows of what comes back.

Calls with a batch axis are put one behind the other along it. Calls of an elementwise op are flattened first, so that their
shapes may differ. Nothing here calls TensorFlow; what an op claims of its rows is tried out before this is used
(``gradserve_server.checking.rows``).
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from gradserve.tensors import Array
from gradserve_server.ops import Layout, Op

MOST_BYTES = 2**16
"""A call of more bytes runs alone: what joining saves is less than what the copies cost."""
_MOST_SHARED_BYTES = 2**10
"""Inputs that all calls of a batch share are compared byte by byte, up to this size."""

Results = tuple[Sequence[Array], Sequence[Array]]
"""Outputs and gradients."""


class RowsMismatch(Exception):
    """An op returned other rows than it was given."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TraceCall:
    """How to call one trace of an op."""

    key: Hashable
    """Which one it is."""
    run: Callable[[Sequence[Array], Sequence[Array]], Results]
    """Takes inputs and output gradients, and returns outputs and gradients."""


def forward_call(op: Op) -> TraceCall:
    """Returns how to call the forward pass of an op."""

    def run(inputs: Sequence[Array], _: Sequence[Array]) -> Results:
        return op.program.forward(inputs), []

    return TraceCall(key=(op.name, op.version, op.signature.key, "forward"), run=run)


def backward_call(op: Op) -> TraceCall:
    """Returns how to call both passes of an op."""
    return TraceCall(key=(op.name, op.version, op.signature.key, "vjp"), run=op.program.vjp)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """One call in the form in which it can be joined with those of an equal key."""

    key: Hashable
    """What must be equal: the trace, the sizes beside the rows, and whatever the calls share."""
    layout: Layout
    """Where the rows of its tensors are."""
    call: TraceCall
    """How to call the trace."""
    inputs: Sequence[Array]
    """The inputs, in order."""
    output_gradients: Sequence[Array]
    """An output gradient for each differentiable output; of rank 0 where it stands for all elements."""
    rows: int
    """How many rows it has; how many elements, if the op is elementwise."""


def layout_of(op: Op) -> Layout | None:
    """Returns where the rows of an op's tensors are, by what its author claims; None if its calls cannot be joined."""
    if op.stateful or not op.repeatable or op.is_compiled:
        return None
    signature = op.signature
    specs = [*signature.inputs.values(), *signature.outputs.values()]
    is_flat = op.elementwise and all(spec.accepts_shape((2,)) and spec.accepts_shape((3,)) for spec in specs)
    axes = {spec.name: 0 for spec in specs} if is_flat else signature.batch_axes
    if not is_flat and not all(_is_open(spec.shape, axes[spec.name]) for spec in specs if spec.name in axes):
        return None
    if not any(name in axes for name in signature.inputs) or not all(name in axes for name in signature.outputs):
        return None
    return Layout(
        inputs=[axes.get(name) for name in signature.inputs],
        outputs=[axes[name] for name in signature.outputs],
        output_gradients=[axes[name] for name, spec in signature.outputs.items() if spec.differentiable],
        gradients=[index for index, spec in enumerate(signature.inputs.values()) if spec.differentiable],
        is_flat=is_flat,
    )


def _is_open(shape: Sequence[int | None] | None, axis: int) -> bool:
    """Whether a tensor of that shape may have any number of rows; one of any rank may be another tensor in another rank."""
    return shape is not None and -len(shape) <= axis < len(shape) and shape[axis] is None


def share_of(
    layout: Layout,
    call: TraceCall,
    inputs: Sequence[Array],
    output_gradients: Sequence[Array],
    wanted: Sequence[bool],
) -> Share | None:
    """Returns a call in the form in which it can be joined; None if it has to run alone.

    Args:
        layout: Where the rows of the op's tensors are.
        call: How to call the trace.
        inputs: The inputs, in order, compared with the signature.
        output_gradients: An output gradient for each differentiable output; of rank 0 where it stands for all elements.
        wanted: For each input, whether its gradient is asked for.
    """
    if sum(array.nbytes for array in (*inputs, *output_gradients)) > MOST_BYTES:
        return None
    if any(axis is None and wanted[index] for index, axis in enumerate(layout.inputs) if index in layout.gradients):
        return None  # it would be a sum over everybody's rows
    found = _flat_rows(inputs, output_gradients) if layout.is_flat else _rows(layout, inputs, output_gradients)
    if found is None:
        return None
    rows, sizes = found
    return Share(
        key=(call.key, sizes), layout=layout, call=call, inputs=inputs, output_gradients=output_gradients, rows=rows
    )


def _flat_rows(inputs: Sequence[Array], output_gradients: Sequence[Array]) -> tuple[int, Hashable] | None:
    shape = inputs[0].shape
    alike = all(array.shape == shape for array in inputs)
    fitting = all(array.shape in ((), shape) for array in output_gradients)
    return (inputs[0].size, ()) if alike and fitting and inputs[0].size else None


def _rows(layout: Layout, inputs: Sequence[Array], output_gradients: Sequence[Array]) -> tuple[int, Hashable] | None:
    """Returns the number of rows, and all that must be equal for others to be joined; None if the sizes do not fit."""
    counts, sizes = set(), []
    for array, axis in [*zip(inputs, layout.inputs, strict=True), *_given(layout, output_gradients)]:
        if axis is None:
            if array.nbytes > _MOST_SHARED_BYTES or array.dtype == object:
                return None
            sizes.append((array.shape, array.tobytes()))
        elif -array.ndim <= axis < array.ndim:
            counts.add(array.shape[axis])
            sizes.append((axis, *np.delete(array.shape, axis).tolist()))
        else:
            return None
    if len(counts) != 1 or not min(counts):
        return None
    return counts.pop(), tuple(sizes)


def _given(layout: Layout, output_gradients: Sequence[Array]) -> list[tuple[Array, int | None]]:
    """Returns each output gradient with its axis, None where one number stands for all elements of all calls."""
    return [  # a forward call has none
        (array, axis if layout.is_flat or array.ndim else None)
        for array, axis in zip(output_gradients, layout.output_gradients, strict=False)
    ]


def run_together(shares: Sequence[Share]) -> list[Results]:
    """Runs several calls as one; returns outputs and gradients of each.

    Raises:
        RowsMismatch: The op returned other rows than it was given.
        Exception: Whatever the op raises, for any of the calls.
    """
    first = shares[0]
    layout = first.layout
    given = [axis for _, axis in _given(layout, first.output_gradients)]
    inputs = [
        _join(shares, arrays, axis) for arrays, axis in zip(_columns(shares, "inputs"), layout.inputs, strict=True)
    ]
    upstream = [
        _join(shares, arrays, axis) for arrays, axis in zip(_columns(shares, "output_gradients"), given, strict=True)
    ]
    outputs, gradients = first.call.run(inputs, upstream)
    axes = [layout.inputs[index] for index in layout.gradients][: len(gradients)]
    split_outputs = [_split(shares, array, axis) for array, axis in zip(outputs, layout.outputs, strict=True)]
    split_gradients = [_split(shares, array, axis) for array, axis in zip(gradients, axes, strict=True)]
    return [
        ([parts[number] for parts in split_outputs], [parts[number] for parts in split_gradients])
        for number in range(len(shares))
    ]


def _columns(shares: Sequence[Share], name: str) -> list[tuple[Array, ...]]:
    """Returns, for each input or output gradient, that of each call."""
    return list(zip(*(getattr(share, name) for share in shares), strict=True))


def _join(shares: Sequence[Share], arrays: Sequence[Array], axis: int | None) -> Array:
    if axis is None:
        return arrays[0]
    if not shares[0].layout.is_flat:
        return np.concatenate(arrays, axis=axis)
    shape = _shape_of_all(shares)
    if shape and all(array.shape == shape for array in arrays):
        return np.concatenate(arrays).reshape(-1)
    spread = []
    for array, share in zip(arrays, shares, strict=True):
        shape = share.inputs[0].shape
        spread.append((array if array.shape == shape else np.broadcast_to(array, shape)).reshape(-1))
    return np.concatenate(spread)


def _shape_of_all(shares: Sequence[Share]) -> tuple[int, ...] | None:
    """Returns the shape of the inputs of calls of an elementwise op; None if they differ in it."""
    shape = shares[0].inputs[0].shape
    return shape if all(share.inputs[0].shape == shape for share in shares) else None


def _split(shares: Sequence[Share], array: Array, axis: int | None) -> list[Array]:
    """Returns each call's own rows; all of them the same array if it has no rows."""
    if axis is None:
        return [array] * len(shares)
    rows = sum(share.rows for share in shares)
    if not -array.ndim <= axis < array.ndim or array.shape[axis] != rows:
        raise RowsMismatch(f"wanted {rows} rows along axis {axis}, got shape {array.shape}")
    before = (slice(None),) * (axis % array.ndim)
    shape = _shape_of_all(shares) if shares[0].layout.is_flat else None
    if shape:
        return list(array.reshape(len(shares), *shape))
    parts, begin = [], 0
    for share in shares:
        place = (*before, slice(begin, begin + share.rows))
        part = array[place]
        parts.append(part.reshape(share.inputs[0].shape) if share.layout.is_flat else part)
        begin += share.rows
    return parts
