"""Variables: which ones an op reads, what they are called, and whether it assigns one.

TensorFlow hands variables to a gradient function in changing order, so they are told apart by identity alone.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gradserve_server.autodiff.concrete import nodes_of

_ASSIGNS = re.compile(r"Assign(Add|Sub)?VariableOp|Resource(Scatter|SparseApply|Apply|StridedSliceAssign)\w*|Rng\w*")


def variables_of(trace: Any) -> list[Any]:
    """Returns the variables that a concrete function reads, in the order in which it first reads them.

    The order of ``graph.variables`` itself is not that one, and names that are numbered must not change between starts.
    """
    by_handle = {id(variable.handle): variable for variable in trace.graph.variables}
    captured = [by_handle.pop(id(external), None) for external, _ in trace.graph.captures]
    return [variable for variable in captured if variable is not None]


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


def _named_by(function: Any, given: Any) -> list[tuple[str, Any]]:
    """Returns variables with names; where one has several, the last one counts."""
    owner = getattr(function, "__self__", function)
    paths = [(variable.path, variable) for variable in getattr(owner, "variables", ()) if hasattr(variable, "path")]
    return [*paths, *(given.items() if isinstance(given, Mapping) else ())]


def _value(variable: Any) -> Any:
    """Returns the TensorFlow variable of a Keras variable; any other is itself."""
    return variable.value if hasattr(variable, "path") else variable
