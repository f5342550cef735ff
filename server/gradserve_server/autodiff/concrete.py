"""Concrete functions: one graph for one kind of call, placed on a device."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


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

    traced = tf.function(placed, autograph=False, jit_compile=jit_compile or None)
    return traced.get_concrete_function(*specs)


def nodes_of(trace: Any) -> list[Any]:
    """Returns the nodes of a concrete function and of all functions that it calls."""
    graph = trace.graph.as_graph_def()
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
