"""Variables: which ones an op reads, what they are called, and whether it assigns one.

TensorFlow hands variables to a gradient function in changing order, so they are told apart by identity alone.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from gradserve_server.autodiff.concrete import nodes_of

_ASSIGNS = re.compile(r"Assign(Add|Sub)?VariableOp|Resource(Scatter|SparseApply|Apply|StridedSliceAssign)\w*|Rng\w*")


def given_variables(given: Any) -> list[Any]:
    """Returns the variables that the author gave, by name or in a sequence.

    Raises:
        TypeError: There is something else among them.
    """
    values = list(given.values() if isinstance(given, Mapping) else given)
    variables = [_value(value) for value in values]
    wrong = [type(value).__name__ for value in variables if not isinstance(value, tf.Variable)]
    if wrong:
        raise TypeError(f"variables must be a mapping from names to variables, or a sequence of them: got {wrong}")
    return variables


def variables_of(trace: Any, given: Iterable[Any] = ()) -> list[Any]:
    """Returns the variables that a concrete function reads, in the order in which it first reads them.

    The order of ``graph.variables`` itself is not that one, and names that are numbered must not change between starts.

    Args:
        trace: The concrete function.
        given: Variables that it may read by their handles alone, which TensorFlow does not report.
    """
    by_handle = {id(variable.handle): variable for variable in [*given, *trace.graph.variables]}
    captured = [by_handle.pop(id(external), None) for external, _ in trace.graph.captures]
    return [variable for variable in captured if variable is not None]


def unreported_variables(trace: Any, known: Iterable[Any]) -> list[str]:
    """Returns dtype and shape of each variable that a concrete function reads by its handle, beside the known ones.

    Only those of a floating-point or complex dtype count: the others have no gradient that would go missing, and the state of
    a ``tf.random.Generator`` is one of them. Lookup tables and other resources are no variables.
    """
    handles = {id(variable.handle) for variable in known}
    others = [external for external, _ in trace.graph.captures if id(external) not in handles]
    contents = [content for handle in others for content in _contents(handle)]
    return [f"{dtype.name} {tuple(shape)}" for dtype, shape in contents if _has_gradient(dtype)]


def _contents(handle: Any) -> list[tuple[Any, list[int]]]:
    """Returns dtype and shape of the variable that a tensor is the handle of; of anything else it knows none."""
    data = getattr(handle, "_handle_data", None)
    if handle.dtype != tf.resource or data is None or not data.is_set:
        return []
    return [(tf.as_dtype(content.dtype), tf.TensorShape(content.shape).as_list()) for content in data.shape_and_type]


def assigning_operations(trace: Any) -> list[str]:
    """Returns the types of the operations in a concrete function, and in those that it calls, that change a variable."""
    return sorted({node.op for node in nodes_of(trace) if _ASSIGNS.fullmatch(node.op)})


def name_variables(variables: Sequence[Any], function: Any, given: Any) -> dict[str, Any]:
    """Names variables, each differently.

    Args:
        variables: The variables that an op reads.
        function: The op's callable: a Keras layer or a method of one names its variables by their paths.
        given: What the author gave: a mapping from name to variable, or anything else for no names.

    Returns:
        The variables by name: the author's name, else the Keras path, else TensorFlow's name without ":0"; where that
        is taken, with "_1" and so on, as TensorFlow itself does it. Those that the author or Keras names come first, in
        their order.
    """
    names = {id(_value(variable)): name for name, variable in _named_by(function, given)}
    order = list(names)
    by_rank = sorted(variables, key=lambda v: order.index(id(v)) if id(v) in names else len(order))
    named: dict[str, Any] = {}
    for variable in by_rank:
        base = names.get(id(variable), variable.name.removesuffix(":0"))
        name, number = base, 0
        while name in named:
            number += 1
            name = f"{base}_{number}"
        named[name] = variable
    return named


def trained(variables: Mapping[str, Any], function: Any) -> dict[str, Any]:
    """Returns the variables that training would change, which have gradients.

    Keras freezes a layer without a word to TensorFlow's variables, so the op's callable is asked too.
    """
    owner = getattr(function, "__self__", function)
    frozen = {id(_value(variable)) for variable in getattr(owner, "non_trainable_variables", ())}
    return {
        name: variable
        for name, variable in variables.items()
        if variable.trainable and id(variable) not in frozen and _has_gradient(variable.dtype)
    }


def _has_gradient(dtype: Any) -> bool:
    return bool(dtype.is_floating or dtype.is_complex)


def _named_by(function: Any, given: Any) -> list[tuple[str, Any]]:
    """Returns variables with names; where one has several, the last one counts."""
    owner = getattr(function, "__self__", function)
    paths = [(variable.path, variable) for variable in getattr(owner, "variables", ()) if hasattr(variable, "path")]
    return [*paths, *(given.items() if isinstance(given, Mapping) else ())]


def _value(variable: Any) -> Any:
    """Returns the TensorFlow variable of a Keras variable; any other is itself."""
    return variable.value if hasattr(variable, "path") else variable
