"""Products of an op's derivatives, from its own rule: stacked VJPs, Jacobians, JVPs and HVPs, each as one graph function.

    stacked VJP   K output gradients -> K gradients, forward run once
    Jacobian      a stacked VJP of unit output gradients, for each output
    JVP           u -> VJP(x, u) is linear for every derivative, so that the VJP of that function is J v
                  (https://j-towns.github.io/2017/06/12/A-new-trick.html); TensorFlow's forward mode drops custom rules
    HVP           x -> <VJP(x, dy), v>, differentiated

All functions here are to be called while a function is traced. A gradient that does not exist is None.
"""

from collections.abc import Callable, Sequence
from typing import Any

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


def jvp(op: FlatOp, inputs: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Evaluates an op and pushes tangents forward through it, by the VJP of its VJP.

    Args:
        op: The op; its rule must be linear in the output gradients.
        inputs: The inputs.
        tangents: One for each differentiable input, in its shape or of rank 0.

    Returns:
        The outputs, and a tangent for each differentiable output.
    """
    run = op.record(inputs)
    anywhere = [
        tf.ones_like(target) for target in run.targets
    ]  # the rule is linear, so its slope is the same everywhere
    with tf.GradientTape() as tape:
        tape.watch(anywhere)
        gradients = run.pull_back(run.targets, anywhere)
    sums, weights = _connected(inputs, gradients, tangents)
    found = tape.gradient(sums, anywhere, output_gradients=weights)
    return run.outputs, [
        check_gradient(tangent, target, "an output") for tangent, target in zip(found, run.targets, strict=True)
    ]


def hvp(
    op: FlatOp, inputs: Sequence[Any], output_gradients: Sequence[Any], vectors: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Evaluates an op, its gradients, and the gradient of the inner product of those and some vectors.

    Args:
        op: The op.
        inputs: The inputs.
        output_gradients: One for each differentiable output, in its shape or of rank 0.
        vectors: One for each differentiable input, in its shape or of rank 0.

    Returns:
        The outputs, and a product for each input.
    """
    sources = [tensor for tensor in inputs if is_differentiable(tensor)]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        run = op.record(inputs)
        upstream = [fill_like(gradient, target) for gradient, target in zip(output_gradients, run.targets, strict=True)]
        gradients = run.pull_back(run.targets, upstream)
    sums, weights = _connected(inputs, gradients, vectors)
    found = iter(tape.gradient(sums, sources, output_gradients=weights))
    products = [next(found) if is_differentiable(tensor) else None for tensor in inputs]
    return run.outputs, [
        check_gradient(product, tensor, f"input {name!r}")
        for product, tensor, name in zip(products, inputs, op.input_names, strict=True)
    ]


def _connected(inputs: Sequence[Any], gradients: Sequence[Any], vectors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Returns the gradients that exist, and for each of them the vector of its input, in its shape."""
    remaining = iter(vectors)
    by_input = [next(remaining) if is_differentiable(tensor) else None for tensor in inputs]
    pairs = [
        (gradient, fill_like(vector, tensor))
        for gradient, vector, tensor in zip(gradients, by_input, inputs, strict=True)
        if gradient is not None
    ]
    return [gradient for gradient, _ in pairs], [vector for _, vector in pairs]
