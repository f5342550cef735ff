"""Concrete functions: one graph for one kind of call, placed on a device, and the cheapest way to call it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradserve.tensors import Array


def concrete_function(
    function: Callable[..., list[Any]], specs: Sequence[Any], *, device: str, jit_compile: bool = False
) -> Any:
    """Traces a function of flat tensors.

    Args:
        function: What to trace.
        specs: A ``tf.TensorSpec`` for each of its arguments.
        device: Device such as "cpu:0", where the graph is placed.
        jit_compile: Whether XLA compiles it.

    Raises:
        BaseException: Whatever the function raises.
    """

    def placed(*tensors: Any) -> list[Any]:
        with tf.device(device):
            return function(*tensors)

    traced: Any = placed
    if jit_compile:  # ``Executable`` compiles what a function calls, not the function itself
        traced = tf.function(placed, autograph=False, jit_compile=True)
    return tf.function(traced, autograph=False).get_concrete_function(*specs)


class Executable:
    """Calls a concrete function without what Python does around it for signatures, tapes and nested values.

    That costs tens of microseconds where the concrete function's own call costs hundreds. Shapes are not compared with
    those that it was traced for: whoever calls has done that.
    """

    def __init__(self, trace: Any) -> None:
        """Takes a concrete function of flat tensors, and keeps it, with what it captured."""
        self._trace = trace
        self._captured = list(trace.captured_inputs)
        self._dtypes = [tensor.dtype for tensor in trace.outputs]
        is_plain = tf.int32 not in self._dtypes and not runs_python(trace)
        self._call = self._call_bare if is_plain else self._call_whole

    def __call__(self, arrays: Sequence[Array]) -> list[Any]:
        """Returns the tensors that it computes of arrays, one for each of its inputs, on the current device.

        Raises:
            tf.errors.OpError: A kernel failed.
        """
        return list(self._call([tf.constant(array, tf.string) if array.dtype == object else array for array in arrays]))

    def _call_bare(self, given: list[Any]) -> Any:
        return tf.raw_ops.StatefulPartitionedCall(args=given + self._captured, Tout=self._dtypes, f=self._trace)

    def _call_whole(self, given: list[Any]) -> Any:
        """Calls it as everybody does.

        Of a bare call TensorFlow refuses some int32 results, as of ``tf.shape``, and errors of Python code without a text.
        """
        return self._trace(*map(tf.convert_to_tensor, given))


def runs_python(trace: Any) -> bool:
    """Returns whether a concrete function, or one that it calls, runs Python code, as by ``tf.numpy_function``."""
    return any("PyFunc" in node.op for node in nodes_of(trace))


def compiles(trace: Any) -> bool:
    """Returns whether XLA compiles a concrete function or a part of it."""
    functions = trace.graph.as_graph_def().library.function
    attributes = [item.attr for item in (*nodes_of(trace), *functions)]
    return any("_XlaMustCompile" in each and each["_XlaMustCompile"].b for each in attributes)


def nodes_of(trace: Any) -> list[Any]:
    """Returns the nodes of a concrete function and of all functions that it calls."""
    graph = trace.graph.as_graph_def()
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
