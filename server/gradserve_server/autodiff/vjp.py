"""The vector-Jacobian product of an op as one graph function: outputs and input gradients, forward run once.

The tape stands inside the traced function: outside, a persistent tape gives NaN where 0 is right.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

FlatFunction = Callable[..., list[Any]]
"""Takes the inputs as flat tensors and returns the outputs as flat tensors."""


class ContractError(Exception):
    """A gradient does not have the dtype or the static shape of its input."""

    def __init__(self, text: str, cause: str) -> None:
        super().__init__(text)
        self.cause = cause


def make_vjp(
    function: FlatFunction,
    input_names: Sequence[str],
    variables: Mapping[str, Any],
    differentiable: Callable[[Any], bool],
) -> FlatFunction:
    """Returns a function of ``(inputs, output_gradients)``, to be traced, that returns ``(outputs, gradients)``.

    Args:
        function: The op, flat.
        input_names: Names of its inputs, for errors.
        variables: Variables whose gradients are wanted too, by name.
        differentiable: Whether a tensor can have a gradient.

    Returns:
        A function that takes a list of inputs and a list with an output gradient for each differentiable output, which
        may be of rank 0 to stand for its value in every element. It returns the outputs, and for each input a gradient
        in its dtype, or None, and then the same for each variable. Tracing it raises ``ContractError`` where a gradient has another dtype or shape.
    """

    def vjp(inputs: list[Any], output_gradients: list[Any]) -> Any:
        sources = [tensor for tensor in inputs if differentiable(tensor)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = function(*inputs)
        targets = [output for output in outputs if differentiable(output)]
        upstream = [_fill_like(gradient, target) for gradient, target in zip(output_gradients, targets, strict=True)]
        found = tape.gradient(targets, [*sources, *variables.values()], output_gradients=upstream)
        remaining = iter(found)
        gradients = [next(remaining) if differentiable(tensor) else None for tensor in inputs]
        of_inputs = [
            _check(gradient, tensor, f"input {name!r}")
            for gradient, tensor, name in zip(gradients, inputs, input_names, strict=True)
        ]
        of_variables = [
            _check(gradient, variable, f"variable {name!r}")
            for gradient, (name, variable) in zip(remaining, variables.items(), strict=True)
        ]
        return outputs, [*of_inputs, *of_variables]

    return vjp


def _fill_like(gradient: Any, output: Any) -> Any:
    """Spreads a rank-0 output gradient over its output; leaves one of the output's shape as it is."""
    filled = tf.broadcast_to(gradient, tf.shape(output))
    filled.set_shape(output.shape)  # the op's rule may rely on what is known of its output's shape
    return filled


def _check(gradient: Any, tensor: Any, place: str) -> Any:
    """Returns a gradient as a dense tensor, having compared its dtype and static shape with those of its place."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):  # as from a gather
        gradient = _densify(gradient, tensor)
    gradient = tf.convert_to_tensor(gradient)
    if gradient.dtype != tensor.dtype:
        raise ContractError(
            f"the gradient of {place} must have its dtype: wanted {tensor.dtype.name}, "
            f"got {gradient.dtype.name}; cast it in the gradient function",
            cause="GRADIENT_DTYPE_MISMATCH",
        )
    if not gradient.shape.is_compatible_with(tensor.shape):
        raise ContractError(
            f"the gradient of {place} must have its shape: wanted {_shape(tensor)}, got {_shape(gradient)}; "
            "sum it over broadcast axes, or return tf.zeros_like(input) for a zero gradient",
            cause="GRADIENT_SHAPE_MISMATCH",
        )
    return gradient


def _densify(slices: Any, tensor: Any) -> Any:
    """Sums slices into a dense tensor; a rule may leave out the dense shape, and TensorFlow would drop negative rows."""
    dense_shape = tf.shape(tensor) if slices.dense_shape is None else slices.dense_shape
    with tf.control_dependencies(
        [tf.debugging.assert_non_negative(slices.indices, "a slice of a gradient has no row")]
    ):
        return tf.convert_to_tensor(tf.IndexedSlices(tf.identity(slices.values), slices.indices, dense_shape))


def _shape(tensor: Any) -> str:
    return str(tuple(tensor.shape.as_list())) if tensor.shape.rank is not None else "unknown"
