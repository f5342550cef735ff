"""The vector-Jacobian product of an op as one graph function: outputs and input gradients, forward run once.

The tape stands inside the traced function: outside, a persistent tape gives NaN where 0 is right.
"""

import dataclasses
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlatOp:
    """An op as a function of flat tensors, and the names that errors call them by."""

    function: FlatFunction
    """Takes the inputs and returns the outputs."""
    input_names: Sequence[str]
    """Names of the inputs."""
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Variables whose gradients are wanted too, by name."""

    def record(self, inputs: Sequence[Any], *, persistent: bool = False) -> "Recording":
        """Runs the op under a tape; to be called while a function is traced.

        Args:
            inputs: The inputs.
            persistent: Whether gradients will be taken more than once.
        """
        with tf.GradientTape(persistent=persistent) as tape:
            tape.watch([tensor for tensor in inputs if is_differentiable(tensor)])
            tape.watch(list(self.variables.values()))
            outputs = self.function(*inputs)
        return Recording(op=self, tape=tape, inputs=inputs, outputs=outputs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run of an op, ready to be differentiated."""

    op: FlatOp
    """The op."""
    tape: Any
    """What recorded the run."""
    inputs: Sequence[Any]
    """Its inputs."""
    outputs: list[Any]
    """Its outputs."""

    @property
    def targets(self) -> list[Any]:
        """The differentiable outputs."""
        return [output for output in self.outputs if is_differentiable(output)]

    def pull_back(self, targets: list[Any], output_gradients: list[Any]) -> list[Any]:
        """Returns a dense gradient, or None, for each input, and then for each variable.

        Args:
            targets: Outputs.
            output_gradients: An output gradient for each of them, in its shape and dtype.

        Raises:
            ContractError: A gradient has another dtype or static shape than its input or variable.
        """
        variables = self.op.variables
        sources = [tensor for tensor in self.inputs if is_differentiable(tensor)]
        found = self.tape.gradient(targets, [*sources, *variables.values()], output_gradients=output_gradients)
        remaining = iter(found)
        gradients = [next(remaining) if is_differentiable(tensor) else None for tensor in self.inputs]
        of_inputs = [
            check_gradient(gradient, tensor, f"input {name!r}")
            for gradient, tensor, name in zip(gradients, self.inputs, self.op.input_names, strict=True)
        ]
        of_variables = [
            check_gradient(gradient, variable, f"variable {name!r}")
            for gradient, (name, variable) in zip(remaining, variables.items(), strict=True)
        ]
        return [*of_inputs, *of_variables]


def vjp(op: FlatOp, inputs: Sequence[Any], output_gradients: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Evaluates an op and pulls output gradients back through it; to be called while a function is traced.

    Args:
        op: The op.
        inputs: The inputs.
        output_gradients: One for each differentiable output, which may be of rank 0 to stand for its value in every element.

    Returns:
        The outputs; and for each input, then each variable, a gradient in its dtype, or None.

    Raises:
        ContractError: A gradient has another dtype or static shape than its input or variable.
    """
    run = op.record(inputs)
    upstream = [fill_like(gradient, target) for gradient, target in zip(output_gradients, run.targets, strict=True)]
    return run.outputs, run.pull_back(run.targets, upstream)


def is_differentiable(tensor: Any) -> bool:
    """Whether a tensor or spec is of a floating-point or complex dtype."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def fill_like(gradient: Any, output: Any) -> Any:
    """Spreads a rank-0 gradient over its output (or input); leaves one of the output's shape as it is."""
    filled = tf.broadcast_to(gradient, tf.shape(output))
    filled.set_shape(output.shape)  # the op's rule may rely on what is known of its output's shape
    return filled


def check_gradient(gradient: Any, tensor: Any, place: str) -> Any:
    """Returns a gradient as a dense tensor, or None, having compared its dtype and static shape with those of its place.

    Raises:
        ContractError: They differ.
    """
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
