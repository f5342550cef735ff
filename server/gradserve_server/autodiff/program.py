"""``TracedProgram``: the concrete functions of an op, from numpy arrays to numpy arrays."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradserve.tensors import Array
from gradserve_server.autodiff.kernel_errors import translate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """Runs an op's traces; implements ``gradserve_server.ops.Program``."""

    op_name: str
    """Name of the op, for errors."""
    forward_trace: Any
    """Concrete function of the flat inputs that returns the flat outputs."""
    vjp_trace: Any
    """Concrete function of the flat inputs and output gradients; None if the op has no backward pass."""
    variable_vjp_trace: Any
    """The same, but with gradients of the variables after those of the inputs; None if it reads no trainable one."""
    output_count: int
    """How many of the tensors that a VJP trace returns are outputs; the others are gradients."""

    def forward(self, inputs: Sequence[Array]) -> list[Array]:
        """Evaluates the op."""
        return self._run(self.forward_trace, inputs)

    def vjp(
        self, inputs: Sequence[Array], output_gradients: Sequence[Array], *, with_variables: bool = False
    ) -> tuple[list[Array], list[Array]]:
        """Evaluates the op and pulls back the output gradients."""
        trace = self.variable_vjp_trace if with_variables else self.vjp_trace
        results = self._run(trace, [*inputs, *output_gradients])
        return results[: self.output_count], results[self.output_count :]

    def _run(self, trace: Any, arrays: Sequence[Array]) -> list[Array]:
        try:
            return [_to_array(tensor) for tensor in trace(*[_to_tensor(array) for array in arrays])]
        except tf.errors.OpError as error:
            public = translate(error, self.op_name)
            if public is None:
                raise
            raise public from error


def _to_tensor(array: Array) -> Any:
    return tf.constant(array, dtype=tf.string if array.dtype == object else None)


def _to_array(tensor: Any) -> Array:
    value = tensor.numpy()
    if isinstance(value, bytes):  # a string tensor of rank 0; numpy would drop its trailing NULs
        array = np.empty((), dtype=object)
        array[()] = value
        return array
    return np.asarray(value)
