"""Structures: nested inputs and outputs as flat lists with names, and named inputs as positional arguments.

{"x": spec, "state": {"h": spec}}  <->  ["x", "state/h"], [spec, spec]
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def flatten(tree: Any, name: str = "") -> list[tuple[str, Any]]:
    """Returns the leaves of nested mappings, sequences and named tuples, each with its path joined by "/"."""
    children = _children(tree)
    if children is None:
        return [(name, tree)]
    prefix = f"{name}/" if name else ""
    return [leaf for key, value in children.items() for leaf in flatten(value, f"{prefix}{key}")]


def flatten_like(tree: Any, values: Any, name: str = "") -> dict[str, Any]:
    """Returns the values at the leaves of ``tree``, by path; a value may itself be a list where the tree has a leaf."""
    children, given = _children(tree), _children(values)
    if children is None or given is None:
        return {name: values}
    prefix = f"{name}/" if name else ""
    found: dict[str, Any] = {}
    for key in given:
        found.update(flatten_like(children.get(key), given[key], f"{prefix}{key}"))
    return found


def pack(tree: Any, leaves: Sequence[Any]) -> Any:
    """Returns a structure like ``tree`` whose leaves are ``leaves``, in order; inverse of ``flatten``."""
    remaining = iter(leaves)

    def build(node: Any) -> Any:
        children = _children(node)
        if children is None:
            return next(remaining)
        built = {key: build(value) for key, value in children.items()}
        if isinstance(node, Mapping):
            return built
        values = list(built.values())
        return type(node)(*values) if hasattr(node, "_fields") else type(node)(values)

    return build(tree)


def _children(tree: Any) -> dict[str, Any] | None:
    if isinstance(tree, Mapping):
        bad = [key for key in tree if not isinstance(key, str)]
        if bad:
            raise TypeError(f"keys of nested mappings must be strings: got {bad}")
        return dict(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return dict(zip(tree._fields, tree, strict=True))
    if isinstance(tree, list | tuple):
        return {str(index): value for index, value in enumerate(tree)}
    return None


def name_outputs(result: Any) -> list[tuple[str, Any]]:
    """Returns the tensors of what an op returned, named as the wire names them.

    A single tensor is "output"; the entries of a list or tuple are "output_0", "output_1" and so on; those of a
    mapping or named tuple go by their keys. Deeper ones join their paths with "/".
    """
    if _children(result) is None:
        return [("output", result)]
    if isinstance(result, list | tuple) and not hasattr(result, "_fields"):
        return flatten({f"output_{index}": value for index, value in enumerate(result)})
    return flatten(result)


def positional_order(function: Callable[..., Any], names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Orders named inputs as positional arguments: by keyword, TensorFlow would drop an op's custom gradient.

    Args:
        function: What will be called.
        names: Names of the inputs that a request gives.

    Returns:
        The parameter names to pass by position, in order, and the defaults of those among them that no input gives.

    Raises:
        TypeError: An input is no positional parameter of the function, or a parameter has neither input nor default.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable that does not tell its parameters takes the inputs as declared
        return list(names), {}
    positional = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    unknown = [name for name in names if name not in positional]
    if takes_any and unknown:
        return list(names), {}
    if unknown:
        raise TypeError(
            f"inputs must be positional parameters of the function: wanted some of {positional}, got {unknown}"
        )
    last = max(positional.index(name) for name in names)
    required = [name for name in positional if parameters[name].default is inspect.Parameter.empty]
    unfilled = [name for name in required if name not in names]
    if unfilled:
        raise TypeError(f"each parameter needs an input or a default: parameters {unfilled} have neither")
    order = positional[: last + 1]
    return order, {name: parameters[name].default for name in order if name not in names}
