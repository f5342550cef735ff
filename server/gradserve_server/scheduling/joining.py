"""Joining: calls of one trace that wait together run as one; each gets its own rows of what comes back.

Calls with a batch axis are put one behind the other along it. Calls of an elementwise op are flattened first, so that their
shapes may differ. Calls of an op that XLA compiles, one alone too, get further rows up to one of a few numbers. Stacks have one more
axis in front, in output gradients and gradients. Nothing here calls TensorFlow; what an op claims of its rows is tried out before
this is used (``gradserve_server.checking.rows``).
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from gradserve.tensors import Array
from gradserve_server.ops import Layout, Op

MOST_BYTES = 2**16
"""A call of more bytes runs alone: what joining saves is less than what the copies cost."""
_MOST_SHARED_BYTES = 2**10
"""Inputs that all calls of a batch share are compared byte by byte, up to this size."""
_LEAST_PADDED_ROWS = 8
"""Rows that are padded become so many, or twice that, and so on."""

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

    return TraceCall(key=(*op.key, "forward"), run=run)


def backward_call(op: Op, *, with_variables: bool = False) -> TraceCall:
    """Returns how to call both passes of an op; calls with gradients of its variables are never joined."""
    run = functools.partial(op.program.vjp, with_variables=True) if with_variables else op.program.vjp
    return TraceCall(key=(*op.key, "vjp"), run=run)


def stacked_call(op: Op, stack: int, max_bytes: int, *, with_variables: bool = False) -> TraceCall:
    """Returns how to call both passes of an op for a stack of output gradients; see ``Program.stacked_vjp``."""

    def run(inputs: Sequence[Array], output_gradients: Sequence[Array]) -> Results:
        return op.program.stacked_vjp(
            inputs, output_gradients, stack, max_bytes=max_bytes, with_variables=with_variables
        )

    return TraceCall(key=(*op.key, "stacked vjp"), run=run)


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
    stack: int = 0
    """How many output gradients are stacked; 0 if they are not."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its inputs, if the op is elementwise."""
        return self.inputs[0].shape

    @property
    def is_plain(self) -> bool:
        """Whether it takes about as long as others of its trace: it is no stack, and has no rows to be compiled for."""
        return not self.stack and not self.layout.is_padded


def layout_of(op: Op) -> Layout | None:
    """Returns where the rows of an op's tensors are, by what its author claims; None if its calls cannot be joined."""
    if op.stateful or not op.repeatable:
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
        is_padded=op.is_compiled,
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
    *,
    stack: int = 0,
    most_bytes: float = MOST_BYTES,
) -> Share | None:
    """Returns a call in the form in which it can be joined; None if it has to run alone.

    Args:
        layout: Where the rows of the op's tensors are.
        call: How to call the trace.
        inputs: The inputs, in order, compared with the signature.
        output_gradients: An output gradient for each differentiable output; of rank 0 where it stands for all elements.
        wanted: For each input, whether its gradient is asked for.
        stack: How many output gradients are stacked; 0 if they are not.
        most_bytes: Bytes of tensors beyond which it runs alone.
    """
    if stack == 1:  # of too large a batch of them the program returns a single row, as it would of a good one
        return None
    if sum(array.nbytes for array in (*inputs, *output_gradients)) > most_bytes:
        return None
    if any(axis is None and wanted[index] for index, axis in enumerate(layout.inputs) if index in layout.gradients):
        return None  # it would be a sum over everybody's rows
    if layout.is_flat:
        found = _flat_rows(inputs, output_gradients, stack)
    else:
        given = zip(output_gradients, _axes_of_given(layout, output_gradients, stack), strict=True)
        found = _rows([*zip(inputs, layout.inputs, strict=True), *given])
    if found is None:
        return None
    rows, sizes = found
    return Share(
        key=(call.key, stack, sizes),
        layout=layout,
        call=call,
        inputs=inputs,
        output_gradients=output_gradients,
        rows=rows,
        stack=stack,
    )


def _flat_rows(inputs: Sequence[Array], output_gradients: Sequence[Array], stack: int) -> tuple[int, Hashable] | None:
    shape = inputs[0].shape
    alike = all(array.shape == shape for array in inputs)
    fitting = all(array.shape in ((), (stack, *shape) if stack else shape) for array in output_gradients)
    return (inputs[0].size, ()) if alike and fitting and inputs[0].size else None


def _rows(tensors: Sequence[tuple[Array, int | None]]) -> tuple[int, Hashable] | None:
    """Returns the number of rows, and all that must be equal for others to be joined; None if the sizes do not fit."""
    counts, sizes = set(), []
    for array, axis in tensors:
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


def _axes_of_given(layout: Layout, output_gradients: Sequence[Array], stack: int) -> list[int | None]:
    """Returns the axis of each output gradient, None where one number stands for all elements of all calls."""
    return [  # a forward call has none
        _behind(stack, axis) if layout.is_flat or array.ndim else None
        for array, axis in zip(output_gradients, layout.output_gradients, strict=False)
    ]


def _behind(stack: int, axis: int) -> int:
    """Returns an axis of a tensor, counted in a stack of such tensors if there is one."""
    return axis + 1 if stack and axis >= 0 else axis


def run_together(shares: Sequence[Share]) -> list[Results]:
    """Runs several calls as one; returns outputs and gradients of each.

    Raises:
        RowsMismatch: The op returned other rows than it was given.
        Exception: Whatever the op raises, for any of the calls.
    """
    first = shares[0]
    layout, stack = first.layout, first.stack
    given = _axes_of_given(layout, first.output_gradients, stack)
    inputs = [
        _join(shares, arrays, axis, 0) for arrays, axis in zip(_columns(shares, "inputs"), layout.inputs, strict=True)
    ]
    upstream = [
        _join(shares, arrays, axis, stack)
        for arrays, axis in zip(_columns(shares, "output_gradients"), given, strict=True)
    ]
    outputs, gradients = first.call.run(inputs, upstream)
    axes = [layout.inputs[index] for index in layout.gradients][: len(gradients)]
    split_outputs = [_split(shares, array, axis, 0) for array, axis in zip(outputs, layout.outputs, strict=True)]
    split_gradients = [_split(shares, array, axis, stack) for array, axis in zip(gradients, axes, strict=True)]
    return [
        ([parts[number] for parts in split_outputs], [parts[number] for parts in split_gradients])
        for number in range(len(shares))
    ]


def _columns(shares: Sequence[Share], name: str) -> list[tuple[Array, ...]]:
    """Returns, for each input or output gradient, that of each call."""
    return list(zip(*(getattr(share, name) for share in shares), strict=True))


def _join(shares: Sequence[Share], arrays: Sequence[Array], axis: int | None, stack: int) -> Array:
    """Returns the rows of all calls; ``axis`` counts the stack, too."""
    if axis is None:
        return arrays[0]
    layout = shares[0].layout
    joined = _flattened(shares, arrays, stack) if layout.is_flat else np.concatenate(arrays, axis=axis)
    missing = _rows_of(shares) - joined.shape[axis]
    if not missing:
        return joined
    widths = [(0, 0)] * joined.ndim
    widths[axis] = (0, missing)
    return np.pad(joined, widths, mode="edge")  # rows that are there are good ones


def _flattened(shares: Sequence[Share], arrays: Sequence[Array], stack: int) -> Array:
    shape = _shape_of_all(shares)
    if shape and not stack and all(array.shape == shape for array in arrays):
        return np.concatenate(arrays).reshape(-1)
    front = (stack,) if stack else ()
    spread = []
    for array, share in zip(arrays, shares, strict=True):
        shape = (*front, *share.shape)
        spread.append((array if array.shape == shape else np.broadcast_to(array, shape)).reshape(*front, -1))
    return np.concatenate(spread, axis=-1)


def _shape_of_all(shares: Sequence[Share]) -> tuple[int, ...] | None:
    """Returns the shape of the inputs of calls of an elementwise op; None if they differ in it."""
    shape = shares[0].shape
    return shape if all(share.shape == shape for share in shares) else None


def _rows_of(shares: Sequence[Share]) -> int:
    """Returns how many rows calls have together, with those that pad them."""
    rows = sum(share.rows for share in shares)
    return max(_LEAST_PADDED_ROWS, 1 << (rows - 1).bit_length()) if shares[0].layout.is_padded else rows


def _split(shares: Sequence[Share], array: Array, axis: int | None, stack: int) -> list[Array]:
    """Returns each call's own rows; all of them the same array if it has no rows. ``axis`` does not count the stack."""
    if axis is None:
        return [array] * len(shares)
    front, axis, rows = ((stack,) if stack else ()), _behind(stack, axis), _rows_of(shares)
    if array.shape[: len(front)] != front or not -array.ndim <= axis < array.ndim or array.shape[axis] != rows:
        raise RowsMismatch(f"wanted {rows} rows along axis {axis}, got shape {array.shape}")
    is_flat = shares[0].layout.is_flat
    shape = _shape_of_all(shares) if is_flat and not stack else None
    if shape:
        return list(array[: sum(share.rows for share in shares)].reshape(len(shares), *shape))
    before = (slice(None),) * (axis % array.ndim)
    parts, begin = [], 0
    for share in shares:
        place = (*before, slice(begin, begin + share.rows))
        part = array[place]
        parts.append(part.reshape((*front, *share.shape)) if is_flat else part)
        begin += share.rows
    return parts
