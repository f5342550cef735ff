"""``TracedProgram``: the concrete functions of an op, from numpy arrays to numpy arrays."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradserve.errors import InvalidRequest, quote
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
    has_python: bool
    """Whether its graph holds Python code, as by ``tf.numpy_function``."""
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
            public = translate(error, self.op_name, has_python=self.has_python)
            if public is None:
                raise
            raise public from error
        except UnicodeDecodeError as error:  # TensorFlow fails to tell of values that are no UTF-8
            if self.has_python:
                raise
            raise InvalidRequest(
                f"op {quote(self.op_name)}: a kernel refused the values, with a text that is no UTF-8",
                reason="VALUES_REFUSED",
                facts={"op": self.op_name},
            ) from error


def has_python_code(trace: Any) -> bool:
    """Whether a concrete function, or one that it calls, runs Python code."""
    graph = trace.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return any("PyFunc" in node.op for node in nodes)


def _to_tensor(array: Array) -> Any:
    return tf.constant(array, dtype=tf.string if array.dtype == object else None)


def _to_array(tensor: Any) -> Array:
    value = tensor.numpy()
    if isinstance(value, bytes):  # a string tensor of rank 0; numpy would drop its trailing NULs
        array = np.empty((), dtype=object)
        array[()] = value
        return array
    return np.asarray(value)
