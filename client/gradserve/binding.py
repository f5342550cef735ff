"""Binding: from the forms in which a caller may give tensors to arrays by name.

A mapping by name (nested ones join their keys with "/"), arrays by position, or one bare array or number. Python
numbers take the dtype of the signature; arrays never cast.
"""

import numbers
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gradserve.dtypes import DType
from gradserve.errors import InvalidRequest, OpContractError, quote, quote_all
from gradserve.op_info import OpInfo
from gradserve.seeds import seed_input
from gradserve.signature import Signature, TensorSpec
from gradserve.tensors import Array

Tensors = Any
"""A mapping by name, a list or tuple of arrays by position, or one bare array or number."""


def flatten(values: Mapping[str, Any], leaves: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings, and sequences of arrays in them, to names joined with "/".

    Args:
        values: What may be nested.
        leaves: Names, as far as they are known, whose values are single tensors, even if they are lists of arrays.
        prefix: What names begin with.
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, leaves, f"{name}/"))
        elif name not in leaves and (_is_list_of_arrays(value) or _is_list_of_inputs(name, value, leaves)):
            flat.update(flatten({str(index): item for index, item in enumerate(value)}, leaves, f"{name}/"))
        else:
            flat[name] = value
    return flat


def arrays_by_name(values: Tensors) -> dict[str, Array] | None:
    """Returns arrays by name where that needs no signature: a mapping that holds arrays alone. Else None."""
    if not isinstance(values, Mapping):
        return None
    flat = flatten(values)
    if _has_list_of_arrays(values) or not all(_is_array(value) for value in flat.values()):
        return None
    return {name: np.asarray(value) for name, value in flat.items()}


def bind_inputs(values: Tensors, info: OpInfo, key: str, *, seeded: bool = False) -> tuple[Signature, dict[str, Array]]:
    """Binds inputs by an op's signature.

    Args:
        values: Mapping, sequence of arrays, or one array or number.
        info: The op.
        key: Signature key; empty for the first signature whose dtypes fit the arrays among the values.
        seeded: Whether a seed fills one of the inputs, which is then not counted by position.

    Returns:
        The signature that the call means, and arrays by name. Unknown names pass, for the server to refuse.

    Raises:
        InvalidRequest: The values cannot be bound, or a Python number does not fit its dtype.
    """
    signature, named = choose_signature(values, info, key, seeded=seeded)
    return signature, _to_arrays(named, signature.inputs, f"op {quote(info.name)}, input")


def bind_output_gradients(values: Tensors, info: OpInfo, signature: Signature) -> dict[str, Array]:
    """Binds output gradients by an op's signature; an entry of None in a mapping or sequence means none is given.

    Raises:
        InvalidRequest: As for ``bind_inputs``.
    """
    named = _name_by_position(values, list(signature.outputs), f"op {quote(info.name)}, output gradients")
    given = {name: value for name, value in named.items() if value is not None}
    return _to_arrays(given, signature.outputs, f"op {quote(info.name)}, output gradient")


def bind_vectors(
    values: Tensors, info: OpInfo, signature: Signature, what: str, *, seeded: bool = False
) -> dict[str, Array]:
    """Binds tangents, or other vectors like the inputs; an entry of None in a mapping or sequence means none is given.

    Args:
        values: In the forms of inputs.
        info: The op.
        signature: Its signature that is called.
        what: What they are called, such as "tangents", for errors.
        seeded: As for ``bind_inputs``.

    Raises:
        InvalidRequest: As for ``bind_inputs``.
    """
    place = f"op {quote(info.name)}, {what}"
    named = _name_by_position(values, _names_by_position(signature, seeded=seeded), place)
    given = {name: value for name, value in named.items() if value is not None}
    return _to_arrays(given, signature.inputs, place.removesuffix("s"))


def _names_by_position(signature: Signature, *, seeded: bool) -> list[str]:
    skipped = seed_input(signature) if seeded else None
    return [name for name, spec in signature.inputs.items() if spec is not skipped]


def choose_signature(
    values: Tensors, info: OpInfo, key: str, *, seeded: bool = False
) -> tuple[Signature, dict[str, Any]]:
    """Returns the signature that a call means, and its inputs by name, as they were given.

    With an empty key that is the first one whose dtypes fit the arrays given, else the default one.

    Raises:
        InvalidRequest: Too many or too few are given by position, or a bare list of numbers.
        OpContractError: The server could not load the op.
    """
    candidates = [info.signatures[key]] if key in info.signatures else list(info.signatures.values())
    if not candidates:
        raise OpContractError(
            f"op {quote(info.name)} version {info.version} could not be loaded: {info.failure}",
            reason="OP_NOT_LOADED",
            facts={"op": info.name, "cause": info.failure.partition(":")[0]},
        )
    bound = [
        (
            signature,
            _name_by_position(values, _names_by_position(signature, seeded=seeded), f"op {quote(info.name)}, inputs"),
        )
        for signature in candidates
    ]
    for signature, named in bound:
        arrays = {name: np.asarray(value) for name, value in named.items() if _is_array(value)}
        if signature.fits_dtypes(arrays):
            return signature, named
    return bound[0]


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__")


def _is_list_of_arrays(value: object) -> bool:
    return isinstance(value, list | tuple) and any(_is_array(item) for item in value)


def _is_list_of_inputs(name: str, value: object, leaves: Collection[str]) -> bool:
    """Whether a list, of numbers perhaps, stands where the signature has nested inputs."""
    return isinstance(value, list | tuple) and any(leaf.startswith(f"{name}/") for leaf in leaves)


def _has_list_of_arrays(values: Mapping[str, Any]) -> bool:
    """Whether a list holds arrays: one tensor, or nested inputs, as only the signature can tell."""
    return any(
        _has_list_of_arrays(value) if isinstance(value, Mapping) else _is_list_of_arrays(value)
        for value in values.values()
    )


def _name_by_position(values: Tensors, names: Sequence[str], place: str) -> dict[str, Any]:
    if isinstance(values, Mapping):
        return flatten(values, names)
    if not isinstance(values, list | tuple):
        values = [values]
    elif any(isinstance(item, Mapping) for item in values):
        return _name_nested(values, names, place)
    elif any(not _is_array(item) and item is not None for item in values):
        raise InvalidRequest(
            f"{place}: a bare list of numbers is ambiguous (one tensor, or several?): "
            "give a numpy array, a list of arrays, or a mapping by name",
            reason="AMBIGUOUS_LIST",
        )
    _check_count(values, names, place)
    return dict(zip(names, values, strict=True))


def _name_nested(values: Sequence[Any], names: Sequence[str], place: str) -> dict[str, Any]:
    """Names values by position where some are mappings: one value for each parameter, nested or not."""
    parameters = list(dict.fromkeys(name.partition("/")[0] for name in names))
    _check_count(values, parameters, place)
    return flatten(dict(zip(parameters, values, strict=True)), names)


def _check_count(values: Sequence[Any], names: Sequence[str], place: str) -> None:
    if len(values) != len(names):
        raise InvalidRequest(
            f"{place}: the number given by position must be the signature's: wanted {len(names)} "
            f"({quote_all(list(names))}), got {len(values)}",
            reason="WRONG_COUNT",
            facts={"wanted": str(len(names)), "got": str(len(values))},
        )


def _to_arrays(named: Mapping[str, Any], specs: Mapping[str, TensorSpec], place: str) -> dict[str, Array]:
    return {
        name: _as_array(value, f"{place} {quote(name)}")
        if _is_array(value) or _is_list_of_arrays(value) or name not in specs
        else numbers_to_array(value, specs[name].dtype, f"{place} {quote(name)}")
        for name, value in named.items()
    }


def _as_array(value: Any, place: str) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InvalidRequest(f"{place}: a list of arrays must make one array: {error}", reason="RAGGED_LIST") from None


def numbers_to_array(value: Any, dtype: DType, place: str) -> Array:
    """Turns a Python number, string or nested list of them into an array of that dtype, where no kind is lost.

    Raises:
        InvalidRequest: A ragged list, a fraction for an integer, a number that the dtype cannot hold, and the like.
    """
    try:
        leaves = np.asarray(value, dtype=object)
    except ValueError:  # arrays of different shapes in one list
        raise _unfit(place, dtype, "a ragged list") from None
    for leaf in leaves.reshape(-1).tolist():
        if isinstance(leaf, list | tuple):
            raise _unfit(place, dtype, "a ragged list")
        if not _kind_fits(leaf, dtype):
            raise _unfit(place, dtype, f"{type(leaf).__name__} {' '.join(repr(leaf).split())}"[:80])
    if dtype.is_string:
        return leaves
    array = _convert(leaves, dtype)
    if array is None:
        raise _unfit(place, dtype, f"a number that it cannot hold: {value!r}"[:80])
    return array


def _convert(leaves: Array, dtype: DType) -> Array | None:
    """Converts an object array of numbers of a fitting kind; None if one is out of the dtype's range."""
    wide = np.dtype(np.complex128 if dtype.numpy.kind == "c" else np.float64)
    try:
        if not dtype.is_differentiable:
            array = leaves.astype(dtype.numpy)
            return array if (array == leaves).all() else None
        exact = leaves.astype(wide)
    except OverflowError:
        return None
    with np.errstate(over="ignore"):  # told by the infinity that it makes
        array = exact.astype(dtype.numpy)
    return None if (np.isinf(array) & np.isfinite(exact)).any() else array


def _kind_fits(leaf: object, dtype: DType) -> bool:
    """Whether such a value may become ``dtype``: string and bool stay what they are, integer < floating < complex."""
    if dtype.is_string:
        return isinstance(leaf, bytes | str)
    if dtype.name == "bool" or isinstance(leaf, bool | np.bool_):
        return dtype.name == "bool" and isinstance(leaf, bool | np.bool_)
    if dtype.is_floating:
        return isinstance(leaf, numbers.Real)
    return isinstance(leaf, numbers.Complex if dtype.is_differentiable else numbers.Integral)


def _unfit(place: str, dtype: DType, got: str) -> InvalidRequest:
    return InvalidRequest(
        f"{place}: Python values must fit the signature's dtype: wanted {dtype.name}, got {got}",
        reason="DTYPE_MISMATCH",
        facts={"place": place, "wanted": dtype.name},
    )
