"""Undecorated functions: a trace without its custom rules, and with the functions that it calls written out in it.

Names in a ``FunctionDef``: an input is "x", an output of a node "node:name:0", a control input "^node".
"""

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

# An imported graph of a function is made by no public call.
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

_RULE = "_gradient_op_type"
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


class RecursiveFunction(Exception):
    """A function calls itself, so that it cannot be written out."""


def undecorated(trace: Any) -> Any:
    """Returns the graph of a concrete function as TensorFlow would differentiate it without any custom rule.

    Calls are written out since TensorFlow differentiates an imported call by rules in C++, which few operations have.

    Args:
        trace: A concrete function.

    Returns:
        A ``GraphDef`` with a placeholder for each input and captured tensor, and the names of its inputs and outputs,
        in the order of the trace. The functions of its loops and branches have new names.

    Raises:
        RecursiveFunction: One of its functions calls itself.
    """
    library = trace.graph.as_graph_def().library.function
    writer = _Writer(library={function.signature.name: function for function in library})
    function = writer.write(trace.function_def)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(_graph_of_library(writer.referenced.values()), name="")
        graph, names = function_def_to_graph_def(function)
    graph.library.CopyFrom(_graph_of_library(writer.referenced.values()).library)
    inputs = [argument.name for argument in function.signature.input_arg]
    outputs = [names[function.ret[result.name]] for result in function.signature.output_arg]
    return graph, inputs, outputs


def _graph_of_library(functions: Iterable[Any]) -> Any:
    graph = tf.compat.v1.GraphDef()
    graph.library.function.extend(functions)
    return graph


@dataclasses.dataclass(slots=True, kw_only=True)
class _Body:
    """Nodes of a function written out, and what the names that they gave up stand for."""

    nodes: list[Any] = dataclasses.field(default_factory=list)
    tensors: dict[str, str] = dataclasses.field(default_factory=dict)
    controls: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def add(self, node: Any) -> Any:
        """Adds a copy of a node, and returns it."""
        new = type(node)()
        new.CopyFrom(node)
        new.attr.pop("_class", None)  # which nodes share a device, by their old names
        self.nodes.append(new)
        return new

    def add_call(self, call: Any, function: Any) -> None:
        """Adds the nodes of a function, which itself has no calls, in the place of a call of it."""
        prefix = f"{call.name}/_own/"
        names = [argument.name for argument in function.signature.input_arg]
        given: dict[str, str] = dict(zip(names, _tensors(call), strict=True))

        def outer(name: str) -> str:
            if name.startswith("^"):
                inner = name[1:]
                return f"^{given[inner].split(':')[0]}" if inner in given else f"^{prefix}{inner}"
            return given.get(name, f"{prefix}{name}")

        for node in function.node_def:
            new = self.add(node)
            new.name = f"{prefix}{node.name}"
            _set_inputs(new, [*map(outer, node.input), *_controls(call)])
        for index, result in enumerate(function.signature.output_arg):
            tensor = outer(function.ret[result.name])
            self.tensors[f"{call.name}:output:{index}"] = tensor
            self.tensors[f"{call.name}:{result.name}:0"] = tensor  # where the function's name is the node's type
        self.controls[f"^{call.name}"] = [outer(f"^{name}") for name in function.control_ret.values()]

    def as_function(self, old: Any) -> Any:
        """Returns these nodes as a function with the inputs and outputs of an old one."""
        for node in self.nodes:
            _set_inputs(node, [new for name in node.input for new in self._resolve(name)])
        new = type(old)()
        new.CopyFrom(old)
        new.attr.clear()  # names of its forward and backward functions, among others
        del new.node_def[:]
        new.node_def.extend(self.nodes)
        for name, tensor in old.ret.items():
            (new.ret[name],) = self._resolve(tensor)
        controls = [f"^{name}" for name in old.control_ret.values()]
        kept = [name[1:] for control in controls for name in self._resolve(control)]
        new.control_ret.clear()
        del new.signature.control_output[:]
        for name in dict.fromkeys(kept):
            new.control_ret[name] = name
            new.signature.control_output.append(name)
        return new

    def _resolve(self, name: str) -> list[str]:
        """Returns what now stands for an input of a node; a control input may have become several."""
        if name.startswith("^"):
            return self.controls.get(name, [name])
        while name in self.tensors:
            name = self.tensors[name]
        return [name]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    library: dict[str, Any]
    done: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Functions written anew, by their names; None for one that is being written."""
    referenced: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Those among them that loops and branches refer to, by their new names."""

    def write(self, function: Any) -> Any:
        """Returns a function without calls and custom rules."""
        name = function.signature.name
        if name not in self.done:
            self.done[name] = None
            body = _Body()
            for node in function.node_def:
                self._write_node(node, body)
            self.done[name] = body.as_function(function)
        if self.done[name] is None:
            raise RecursiveFunction(name)
        return self.done[name]

    def _write_node(self, node: Any, body: _Body) -> None:
        called = self._called(node)
        if called is not None:
            body.add_call(node, self.write(called))
            return
        new = body.add(node)
        is_rule = new.op == "IdentityN" and _RULE in new.attr
        new.attr.pop(_RULE, None)
        if is_rule:  # gone from the path of the derivative, since TensorFlow would send zeros to its other inputs
            body.tensors.update((f"{node.name}:output:{index}", name) for index, name in enumerate(_tensors(node)))
        for attribute in new.attr.values():
            for reference in [attribute.func, *attribute.list.func] if _refers(attribute) else []:
                if reference.name in self.library:
                    reference.name = self._refer(reference.name)

    def _called(self, node: Any) -> Any:
        return self.library.get(node.attr["f"].func.name if node.op in _CALLS else node.op)

    def _refer(self, old_name: str) -> str:
        """Writes a function that is no part of the one around it, and names it by its content."""
        new = type(self.library[old_name])()
        new.CopyFrom(self.write(self.library[old_name]))
        content = hashlib.sha256(new.SerializeToString(deterministic=True)).hexdigest()[:16]
        new_name = f"{old_name}_own_{content}"
        new.signature.name = new_name
        self.referenced[new_name] = new
        return new_name


def _refers(attribute: Any) -> bool:
    return attribute.HasField("func") or bool(attribute.list.func)


def _tensors(node: Any) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def _controls(node: Any) -> list[str]:
    return [name for name in node.input if name.startswith("^")]


def _set_inputs(node: Any, names: Iterable[str]) -> None:
    """Sets the inputs of a node, tensors first, as a graph wants them."""
    inputs = list(names)
    del node.input[:]
    node.input.extend(name for name in inputs if not name.startswith("^"))
    node.input.extend(dict.fromkeys(name for name in inputs if name.startswith("^")))
