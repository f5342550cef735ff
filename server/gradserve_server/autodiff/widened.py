"""Widened functions: the graph of a trace with float64 in the place of every narrower float, for values without its rounding.

A graph of 16-bit floats rounds so coarsely that its values say little of its derivative; the same operations in float64
say all. Names in a ``FunctionDef``: see ``undecorated``.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# The functions of an imported graph become known to eager calls by no public call.
from tensorflow.python.eager.context import context

from gradserve.tensors import Array
from gradserve_server.autodiff.concrete import concrete_function, runs_python
from gradserve_server.autodiff.kernel_errors import kernel_text
from gradserve_server.autodiff.undecorated import RecursiveFunction, undecorated

_WIDE = {tf.float16: tf.float64, tf.bfloat16: tf.float64, tf.float32: tf.float64, tf.complex64: tf.complex128}
_NUMBERS = {narrow.as_datatype_enum: wide.as_datatype_enum for narrow, wide in _WIDE.items()}
_READS = {"ReadVariableOp": "value", "ResourceGather": "output", "ResourceGatherNd": "output"}
"""Operations whose result has the dtype of a variable, which stays as it is, and the names of their results."""
_STORED = "/as_stored"
"""Ends the names of those."""
_DIGITS = {tf.float16: 11, tf.bfloat16: 8}
"""Binary digits of a number in each 16-bit dtype."""
Constant = Callable[[Array, Any, str], Array]
"""Takes the value of a constant in float64, its dtype and the name of its node; returns a value in float64."""


class NoWiderForm(Exception):
    """A trace cannot be widened; ``str()`` says why in one line without paths."""


def widened(trace: Any, *, device: str, nudged: bool = False) -> Any:
    """Returns a concrete function that computes in float64 what a trace computes in narrower floats.

    Its inputs and outputs are of float64 too. It has no custom rules: it can be called, not differentiated. Variables are
    read as they are stored.

    Args:
        trace: Concrete function of flat inputs that returns a flat list of outputs. It is not changed.
        device: Device such as "cpu:0", where the graph is placed.
        nudged: Whether 16-bit constants are moved by as much as their rounding may have, so that what that does shows.

    Raises:
        NoWiderForm: An operation is not known for float64, or runs Python code.
    """
    if runs_python(trace):
        raise NoWiderForm("it runs Python code")
    try:
        graph, input_names, output_names = undecorated(trace)
    except RecursiveFunction as error:
        raise NoWiderForm("one of its functions calls itself") from error
    if _loops_by_floats(graph):
        raise NoWiderForm("a loop ends by a comparison of floats, which may take far longer in float64")
    _widen(graph, _nudge if nudged else _keep)
    for function in graph.library.function:
        context().add_function_def(function)
    inputs = trace.inputs[: len(trace.inputs) - len(trace.captured_inputs)]

    def imported(*tensors: Any) -> list[Any]:
        captured = map(_widen_value, map(tf.convert_to_tensor, trace.captured_inputs))
        given = dict(zip(input_names, [*tensors, *captured], strict=True))
        return list(tf.graph_util.import_graph_def(graph, input_map=given, return_elements=output_names, name="wide"))

    specs = [tf.TensorSpec(tensor.shape, _WIDE.get(tensor.dtype, tensor.dtype)) for tensor in inputs]
    try:
        return concrete_function(imported, specs, device=device)
    except Exception as error:  # TensorFlow refuses dtypes in many ways
        raise NoWiderForm(f"TensorFlow does not know it for float64: {kernel_text(str(error))}") from error


def _loops_by_floats(graph: Any) -> bool:
    functions = {function.signature.name: function for function in graph.library.function}
    nodes = [*graph.node, *(node for function in functions.values() for node in function.node_def)]
    conditions = [functions[node.attr["cond"].func.name] for node in nodes if node.op in ("While", "StatelessWhile")]
    return any(
        attribute.type in _NUMBERS
        for condition in conditions
        for node in condition.node_def
        for attribute in node.attr.values()
    )


def _widen_value(value: Any) -> Any:
    return tf.cast(value, _WIDE[value.dtype]) if value.dtype in _WIDE else value


def _keep(values: Array, _dtype: Any, _name: str) -> Array:
    return values


def _nudge(values: Array, dtype: Any, name: str) -> Array:
    """Moves each 16-bit constant by half the distance to the next, but those of few digits, which were not rounded."""
    if dtype not in _DIGITS:
        return values
    digits = _DIGITS[dtype]
    mantissas = np.ldexp(np.frexp(values)[0], digits // 2)
    signs = np.random.default_rng(zlib.crc32(name.encode())).choice([-1.0, 1.0], values.shape)
    return np.where(mantissas == np.round(mantissas), values, values * (1 + signs * 2.0**-digits))


def _widen(graph: Any, constant: Constant) -> None:
    """Widens a ``GraphDef`` in place, and gives its functions new names."""
    ending = f"_wide{constant.__name__}"
    names = {function.signature.name: f"{function.signature.name}{ending}" for function in graph.library.function}
    for read in _widen_nodes(graph.node, names, constant):
        _add_cast(graph.node, read, read.name + _STORED)
    for function in graph.library.function:
        function.signature.name = names[function.signature.name]
        for argument in [*function.signature.input_arg, *function.signature.output_arg]:
            argument.type = _NUMBERS.get(argument.type, argument.type)
        _widen_body(function, names, constant)


def _widen_body(function: Any, names: Mapping[str, str], constant: Constant) -> None:
    renamed = {}
    for read in _widen_nodes(function.node_def, names, constant):
        result = f":{_READS[read.op]}:0"
        renamed[read.name + result] = f"{read.name}:y:0"
        _add_cast(function.node_def, read, read.name + _STORED + result)
    for node in function.node_def:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    for name, tensor in function.ret.items():
        function.ret[name] = renamed.get(tensor, tensor)


def _widen_nodes(nodes: Any, names: Mapping[str, str], constant: Constant) -> list[Any]:
    """Widens nodes in place, and renames the functions that they refer to; returns the reads of narrow variables."""
    for node in nodes:
        if node.op not in _READS:
            for attribute in node.attr.values():
                _widen_attribute(attribute, names)
        if node.op == "Const":
            _widen_constant(node.attr["value"].tensor, node.name, constant)
    return [node for node in nodes if node.op in _READS and node.attr["dtype"].type in _NUMBERS]


def _add_cast(nodes: Any, read: Any, tensor: str) -> None:
    """Adds a node that widens the tensor that is read, under the name that the read had."""
    narrow = read.attr["dtype"].type
    cast = nodes.add(op="Cast", name=read.name)
    cast.input.append(tensor)
    cast.attr["SrcT"].type = narrow
    cast.attr["DstT"].type = _NUMBERS[narrow]
    read.name += _STORED


def _widen_attribute(attribute: Any, names: Mapping[str, str]) -> None:
    kind = attribute.WhichOneof("value")
    if kind == "type":
        attribute.type = _NUMBERS.get(attribute.type, attribute.type)
    elif kind == "func":
        _rename([attribute.func], names)
    elif kind == "list":
        attribute.list.type[:] = [_NUMBERS.get(number, number) for number in attribute.list.type]
        _rename(attribute.list.func, names)


def _widen_constant(tensor: Any, name: str, constant: Constant) -> None:
    if tensor.dtype not in _NUMBERS:
        return
    wide = tf.as_dtype(_NUMBERS[tensor.dtype])
    values = tf.make_ndarray(tensor).astype(wide.as_numpy_dtype)
    tensor.CopyFrom(tf.make_tensor_proto(constant(values, tf.as_dtype(tensor.dtype), name), wide))


def _rename(references: Iterable[Any], names: Mapping[str, str]) -> None:
    for reference in references:
        reference.name = names.get(reference.name, reference.name)
