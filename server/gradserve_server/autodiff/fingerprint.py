"""Fingerprints: a digest of what an op computes, equal in every process and on every device that traces the same op."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from gradserve.signature import Signature, signature_to_message

_GENERATED = r"__(?:inference|forward|backward)_\w*|CustomGradient-\d+|PartitionedCall-\d+|pyfunc_\d+"
_SERIAL_NUMBER = re.compile(r"(?<=[_-])\d+(?![A-Za-z0-9])")
_LARGE_BYTES = 1024
_ARGUMENT_NAME = "_user_specified_name"  # a serial number where the argument is a variable of a SavedModel


def fingerprint(signature: Signature, traces: list[Any], variables: Mapping[str, Any]) -> str:
    """Returns 32 hexadecimal digits over a signature, the graphs of its concrete functions and the values of its variables.

    The serial numbers that TensorFlow gives to functions and gradients are left out: they depend on what was traced
    before. Graphs are taken as text, since the length of a number shows in the binary form. Devices are left out too.
    """
    digest = hashlib.sha256(signature_to_message(signature).SerializeToString(deterministic=True))
    for trace in traces:
        for part in _parts_of(trace):
            digest.update(part.encode())
        for constant in trace.captured_inputs:  # tensors that the op found made, such as a table of its module
            if constant.dtype not in (tf.resource, tf.variant):
                digest.update(tf.io.serialize_tensor(constant).numpy())
    for name, variable in variables.items():
        digest.update(name.encode())
        digest.update(_bytes_of(variable))
    return digest.hexdigest()[:32]


def _parts_of(trace: Any) -> list[str]:
    """Returns the nodes of a concrete function and the functions that it calls, as text."""
    graph = trace.graph.as_graph_def()
    functions = graph.library.function
    _name_by_order(graph.node, [internal.op.name for _, internal in trace.graph.captures])
    for nodes in (graph.node, *(function.node_def for function in functions)):
        _simplify(nodes)
    for argument in (argument for function in functions for argument in function.arg_attr.values()):
        argument.attr.pop(_ARGUMENT_NAME, None)
    generated = _pattern([function.signature.name for function in functions])
    return [
        *(_without_numbers(generated, str(node)) for node in graph.node),
        *sorted(_without_numbers(generated, str(function)) for function in functions),
    ]


def _bytes_of(variable: Any) -> bytes:
    """Returns the value of a variable as bytes; one message would not hold the largest."""
    if variable.dtype == tf.string:
        return bytes(tf.io.serialize_tensor(variable).numpy())
    return bytes(variable.numpy().tobytes())


def _name_by_order(nodes: Any, captures: list[str]) -> None:
    """Renames captured tensors that have a serial number for a name, as those of a SavedModel have."""
    names = {name: f"capture-{order}" for order, name in enumerate(captures) if name.isdecimal()}
    for node in nodes:
        node.name = names.get(node.name, node.name)
        node.input[:] = [names.get(name, name) for name in node.input]


def _simplify(nodes: Any) -> None:
    """Takes out of nodes what depends on the machine, and puts digests in the place of large constants.

    Calls of functions hold, as ``config_proto``, how many devices of each kind there are. The text of a constant would
    be larger still than the constant.
    """
    for node in nodes:
        node.device = ""
        node.attr.pop("config_proto", None)
        node.attr.pop(_ARGUMENT_NAME, None)
        if node.op == "Const" and len(node.attr["value"].tensor.tensor_content) > _LARGE_BYTES:
            tensor = node.attr["value"].tensor
            tensor.tensor_content = hashlib.sha256(tensor.tensor_content).digest()


def _pattern(function_names: list[str]) -> "re.Pattern[str]":
    """Returns what finds names that TensorFlow made up, also as parts of the names of arguments."""
    names = [re.escape(name) for name in sorted(function_names, key=len, reverse=True)]
    return re.compile("|".join([_GENERATED, *(rf"(?<![A-Za-z0-9]){name}(?![0-9])" for name in names)]))


def _without_numbers(generated: "re.Pattern[str]", text: str) -> str:
    return generated.sub(lambda found: _SERIAL_NUMBER.sub("", found[0]), text)
