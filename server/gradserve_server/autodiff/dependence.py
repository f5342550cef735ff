"""Dependence: which outputs of a trace depend on which inputs, and whether TensorFlow has a rule for every step between.

Where it has none, TensorFlow leaves out that path without a word: its gradient is then None, or a part of a sum.
"""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

# A FunctionDef of a library becomes a graph of operations with inputs and dtypes by no public call.
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from gradserve_server.autodiff import steps
from gradserve_server.autodiff.gradient_rules import is_smooth
from gradserve_server.autodiff.paths import KEPT, NONE, Summary, path_of
from gradserve_server.autodiff.steps import Step

_CALL = ("f",)
_LOOP = ("cond", "body")
_CALLED = {
    "PartitionedCall": _CALL,
    "StatefulPartitionedCall": _CALL,
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": _LOOP,
    "StatelessWhile": _LOOP,
}
"""The attributes that name the functions which an operation calls."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """What the outputs of a trace depend on; made by ``dependence_of``."""

    summary: Summary
    """The paths to each output, in the order of the trace's flat outputs."""

    def blockers(self, output: int, input_: int) -> frozenset[str] | None:
        """Returns what keeps TensorFlow from differentiating an output with respect to an input.

        Args:
            output: Position among the flat outputs of the trace.
            input_: Position among its flat inputs.

        Returns:
            None if there is no path over tensors of a floating-point or complex dtype, or only through operations
            whose derivative is zero or stopped on purpose. Otherwise the types of the operations on such paths that
            TensorFlow has no rule for, such as {"PyFunc"}; empty if it has a rule for each.
        """
        paths, any_of = self.summary[output], path_of(input_, smooth=True).smooth | KEPT.smooth
        if not paths.smooth & any_of:
            return None
        return frozenset(kind for kind, inputs in paths.blocked.items() if inputs & any_of)

    def depends(self, output: int, input_: int) -> bool:
        """Whether there is any path at all, of any dtype and through any operation."""
        return bool(self.summary[output].data & path_of(input_, smooth=True).data)


def dependence_of(trace: Any) -> Dependence:
    """Analyses a concrete function and all that it calls, in time linear in their sizes.

    Args:
        trace: A concrete function.
    """
    graph_def = trace.graph.as_graph_def()
    library = {function.signature.name: function for function in graph_def.library.function}
    del graph_def.node[:]
    with tf.Graph().as_default():  # where functions look up those that they call
        tf.graph_util.import_graph_def(graph_def, name="")
        return Dependence(summary=_Analysis(library=library).summarise(trace.graph))


class _Node(NamedTuple):
    step: Step
    sources: list[tuple[int, int]]
    """For each input, the position of the node that makes it, and which of its outputs it is."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Analysis:
    library: dict[str, Any]
    done: dict[str, Summary | None] = dataclasses.field(default_factory=dict)
    """Summaries by function; None for one that is being made, so that it called itself, and for one that is not known."""

    def summarise(self, graph: Any) -> Summary:
        """Returns the paths from the inputs of a function's graph to its outputs."""
        operations = graph.get_operations()
        position = {operation.name: index for index, operation in enumerate(operations)}
        nodes = [
            _Node(self._step_of(each), [(position[tensor.op.name], tensor.value_index) for tensor in each.inputs])
            for each in operations
        ]
        state = [[NONE] * len(operation.outputs) for operation in operations]
        for number, tensor in enumerate(graph.inputs):
            state[position[tensor.op.name]] = [path_of(number, smooth=is_smooth(tensor.dtype))]
        _spread(nodes, state)
        return [state[position[tensor.op.name]][tensor.value_index] for tensor in graph.outputs]

    def _step_of(self, operation: Any) -> Step:
        attributes = _CALLED.get(operation.type)
        if attributes is None:
            return steps.step_of(operation)
        values = [operation.get_attr(attribute) for attribute in attributes]
        references = [each for value in values for each in (value if isinstance(value, list) else [value])]
        called = [self._summary_of(reference.name) for reference in references]
        known = [summary for summary in called if summary is not None]
        if len(known) < len(called):
            return steps.opaque(operation)
        if attributes == _LOOP:
            return steps.loop(*known)
        return steps.call(*known) if attributes == _CALL else steps.choice(known)

    def _summary_of(self, name: str) -> Summary | None:
        if name not in self.done:
            self.done[name] = None
            if name in self.library:
                self.done[name] = self.summarise(function_def_to_graph(self.library[name]))
        return self.done[name]


def _spread(nodes: list[_Node], state: list[Summary]) -> None:
    """Carries the paths from node to node until nothing changes.

    Nodes come in nearly topological order, since only loops gain inputs that are younger than they: few sweeps suffice.
    """
    changed = True
    while changed:
        changed = False
        for index, node in enumerate(nodes):
            if node.sources:
                reached = node.step([state[source][output] for source, output in node.sources])
                changed = changed or reached != state[index]
                state[index] = reached
