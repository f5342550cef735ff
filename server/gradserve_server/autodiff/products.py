"""Products of an op's derivatives, from its own rule: stacked VJPs, Jacobians, JVPs and HVPs, each as one graph function.

    stacked VJP   K output gradients -> K gradients, forward run once
    Jacobian      a stacked VJP of unit output gradients, for each output
    JVP           u -> VJP(x, u) is linear for every derivative, so that the VJP of that function is J v
                  (https://j-towns.github.io/2017/06/12/A-new-trick.html); TensorFlow's forward mode drops custom rules
    HVP           x -> <VJP(x, dy), v>, differentiated

All functions here are to be called while a function is traced. A gradient that does not exist is None.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from gradserve_server.autodiff.vjp import FlatOp, Recording, check_gradient, fill_like, is_differentiable

_TOGETHER = 32
"""How many rows are pulled back at once."""


def stacked_vjp(
    op: FlatOp, inputs: Sequence[Any], output_gradients: Sequence[Any], stack: Any, max_bytes: Any, *, vectorise: bool
) -> tuple[list[Any], list[Any]]:
    """Evaluates an op once and pulls back a stack of output gradients.

    Args:
        op: The op.
        inputs: The inputs.
        output_gradients: For each differentiable output a tensor with a leading axis of size ``stack``, or one of rank 0
            to stand for its value in every element.
        stack: Number of gradients, int32 of rank 0.
        max_bytes: Most bytes that the output gradients may have when they are spread out, int64 of rank 0. If they would
            have more, a single row of zeros is pulled back instead.
        vectorise: Whether to pull back many of them at once, rather than one after the other.

    Returns:
        The outputs; and for each input, then each variable, a gradient with a leading axis, or None.
    """
    run = op.record(inputs, persistent=True)
    row_bytes = tf.add_n([_size(target) * target.dtype.size for target in run.targets])
    fits = tf.cast(stack, tf.int64) * row_bytes <= max_bytes
    count = tf.where(fits, stack, 1)
    stacks = [
        _spread_rows(_keep_if(fits, gradient), target, count)
        for gradient, target in zip(output_gradients, run.targets, strict=True)
    ]
    return run.outputs, _pull_back_rows(run, run.targets, stacks, vectorise=vectorise)


def jacobian(op: FlatOp, inputs: Sequence[Any], max_rows: Any, *, vectorise: bool) -> tuple[list[Any], list[list[Any]]]:
    """Evaluates an op once and pulls back a unit output gradient for each element of its differentiable outputs.

    Args:
        op: The op.
        inputs: The inputs.
        max_rows: Most rows, int32 of rank 0. If there would be more, there are none.
        vectorise: Whether to pull back many rows at once, rather than one after the other.

    Returns:
        The outputs; and for each differentiable output and each input a tensor of shape (rows, *shape of the input), where
        row i is the gradient of element i, or None.
    """
    run = op.record(inputs, persistent=True)
    fits = tf.add_n([_size(target) for target in run.targets]) <= tf.cast(max_rows, tf.int64)
    counts = [tf.where(fits, tf.size(target), 0) for target in run.targets]
    rows = [
        _pull_back_rows(run, [target], [_units(target, count)], vectorise=vectorise)
        for target, count in zip(run.targets, counts, strict=True)
    ]
    return run.outputs, [
        [None if tensor is None else tensor[:count] for tensor in of_output]
        for of_output, count in zip(rows, counts, strict=True)
    ]


def _pull_back_rows(run: Recording, targets: list[Any], stacks: Sequence[Any], *, vectorise: bool) -> list[Any]:
    """Pulls back each row of stacked output gradients; returns stacked gradients as ``Recording.pull_back`` does."""
    sources = [*run.inputs, *run.op.variables.values()]
    dtypes = [source.dtype if is_differentiable(source) else tf.float32 for source in sources]
    exists: list[bool] = []

    def pull_back(rows: Sequence[Any]) -> list[Any]:
        gradients = run.pull_back(targets, list(rows))
        exists[:] = [gradient is not None for gradient in gradients]
        return [
            tf.zeros([0], dtype) if gradient is None else gradient
            for gradient, dtype in zip(gradients, dtypes, strict=True)
        ]

    specs = [tf.TensorSpec(None, dtype) for dtype in dtypes]
    if vectorise:
        found = _map_together(pull_back, stacks, specs)
    else:
        found = tf.map_fn(pull_back, list(stacks), fn_output_signature=specs)
    return [gradient if there else None for gradient, there in zip(found, exists, strict=True)]


def _map_together(function: Callable[[Sequence[Any]], list[Any]], stacks: Sequence[Any], specs: list[Any]) -> list[Any]:
    """Maps a function over rows, many at a time: each takes as much memory as if it were alone, which may be much."""
    count = tf.shape(stacks[0])[0]
    size = tf.minimum(count, _TOGETHER)
    total = -(-count // size) * size
    chunks = tf.reshape(tf.minimum(tf.range(total), count - 1), [-1, size])  # the last row fills up the last chunk

    def map_chunk(chunk: Any) -> Any:
        return tf.vectorized_map(function, [tf.gather(stack, chunk) for stack in stacks], warn=False)

    found = tf.map_fn(map_chunk, chunks, fn_output_signature=specs, parallel_iterations=1)
    return [tf.reshape(rows, tf.concat([[total], tf.shape(rows)[2:]], axis=0))[:count] for rows in found]


def _spread_rows(gradient: Any, output: Any, stack: Any) -> Any:
    filled = tf.broadcast_to(gradient, tf.concat([[stack], tf.shape(output)], axis=0))
    filled.set_shape(tf.TensorShape([None]).concatenate(output.shape))
    return filled


def _units(target: Any, count: Any) -> Any:
    """Returns a tensor like ``target`` for each of its elements, with a one there and zeros elsewhere.

    If ``count`` is 0 that is a single tensor of zeros: a loop without rounds could not tell the shape of its results.
    """
    like_rows = tf.concat([[tf.maximum(count, 1)], tf.shape(target)], axis=0)
    units = tf.cond(
        count > 0,
        lambda: tf.reshape(tf.eye(count, dtype=target.dtype), like_rows),
        lambda: tf.zeros(like_rows, target.dtype),
    )
    units.set_shape(tf.TensorShape([None]).concatenate(target.shape))
    return units


def _keep_if(condition: Any, tensor: Any) -> Any:
    """Returns a tensor, or a zero of rank 0 in its place."""
    return tf.cond(condition, lambda: tf.identity(tensor), lambda: tf.zeros([], tensor.dtype))


def _size(tensor: Any) -> Any:
    return tf.size(tensor, out_type=tf.int64)


def jvp(op: FlatOp, inputs: Sequence[Any], tangents: Sequence[Any], given: Any) -> tuple[list[Any], list[Any]]:
    """Evaluates an op and pushes tangents forward through it, by the VJP of its VJP.

    Args:
        op: The op; its rule must be linear in the output gradients.
        inputs: The inputs.
        tangents: One for each differentiable input, in its shape or of rank 0.
        given: Which of them count, bool of shape (number of tangents,); the others are zeros.

    Returns:
        The outputs, and a tangent for each differentiable output.
    """
    run = op.record(inputs)
    anywhere = [
        tf.ones_like(target) for target in run.targets
    ]  # as the rule is linear, its slope is the same everywhere
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(anywhere)
        gradients = run.pull_back(run.targets, anywhere)
    terms = _terms(inputs, gradients, tangents, given)
    return run.outputs, _pull_back_terms(tape, terms, anywhere, ["an output"] * len(anywhere))


def hvp(
    op: FlatOp, inputs: Sequence[Any], output_gradients: Sequence[Any], vectors: Sequence[Any], given: Any
) -> tuple[list[Any], list[Any]]:
    """Evaluates an op, its gradients, and the gradient of the inner product of those and some vectors.

    Args:
        op: The op.
        inputs: The inputs.
        output_gradients: One for each differentiable output, in its shape or of rank 0.
        vectors: One for each differentiable input, in its shape or of rank 0.
        given: Which of them count, bool of shape (number of vectors,); the others are zeros.

    Returns:
        The outputs, and a product for each input.
    """
    named = [(f"input {name!r}", x) for name, x in zip(op.input_names, inputs, strict=True) if is_differentiable(x)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([tensor for _, tensor in named])
        run = op.record(inputs)
        upstream = [fill_like(gradient, target) for gradient, target in zip(output_gradients, run.targets, strict=True)]
        gradients = run.pull_back(run.targets, upstream)
    terms = _terms(inputs, gradients, vectors, given)
    found = iter(_pull_back_terms(tape, terms, [tensor for _, tensor in named], [place for place, _ in named]))
    return run.outputs, [next(found) if is_differentiable(tensor) else None for tensor in inputs]


class _Term(NamedTuple):
    """One term of an inner product of gradients and vectors."""

    gradient: Any
    vector: Any
    tensor: Any
    """The input that both belong to."""
    counts: Any
    """Whether the vector was given, bool of rank 0."""


def _terms(inputs: Sequence[Any], gradients: Sequence[Any], vectors: Sequence[Any], given: Any) -> list[_Term]:
    """Returns a term for each gradient that exists."""
    differentiable = [(x, g) for x, g in zip(inputs, gradients, strict=True) if is_differentiable(x)]
    return [
        _Term(gradient, vector, tensor, given[index])
        for index, ((tensor, gradient), vector) in enumerate(zip(differentiable, vectors, strict=True))
        if gradient is not None
    ]


def _pull_back_terms(tape: Any, terms: Sequence[_Term], sources: list[Any], places: Sequence[str]) -> list[Any]:
    """Differentiates the sum of those terms that count; None where no term depends on a source.

    A term that does not count is not computed: times zero, an infinite slope would be NaN.
    """
    totals: list[Any] = [None] * len(sources)
    for term in terms:
        parts, exists = _pull_back_term(tape, term, sources, places)
        for index, part in enumerate(parts):
            if exists[index]:
                totals[index] = part if totals[index] is None else totals[index] + part
    return totals


def _pull_back_term(
    tape: Any, term: _Term, sources: list[Any], places: Sequence[str]
) -> tuple[list[Any], Sequence[bool]]:
    exists: list[bool] = []

    def pull_back() -> list[Any]:
        found = tape.gradient(term.gradient, sources, output_gradients=fill_like(term.vector, term.tensor))
        dense = [check_gradient(part, *place) for part, *place in zip(found, sources, places, strict=True)]
        exists[:] = [part is not None for part in dense]
        return [tf.zeros_like(x) if part is None else part for part, x in zip(dense, sources, strict=True)]

    parts = tf.cond(term.counts, pull_back, lambda: [tf.zeros_like(source) for source in sources])
    parts = parts if isinstance(parts, list) else [parts]  # tf.cond takes a list of one apart
    for part, source in zip(parts, sources, strict=True):
        part.set_shape(source.shape)
    return parts, exists
