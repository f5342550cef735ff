"""Binding: from the forms in which a caller may give tensors to arrays by name.

A mapping by name (nested ones join their keys with "/"), arrays by position, or one bare array or number. Python
numbers take the dtype of the signature; arrays never cast.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradserve.dtypes import DType
from gradserve.errors import InvalidRequest, quote, quote_all
from gradserve.op_info import OpInfo
from gradserve.signature import Signature, TensorSpec
from gradserve.tensors import Array

Tensors = Any
"""A mapping by name, a list or tuple of arrays by position, or one bare array or number."""

_KIND_RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings, and sequences of arrays in them, to names joined with "/"."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}/"))
        elif isinstance(value, list | tuple) and any(_is_array(item) for item in value):
            flat.update(flatten({str(index): item for index, item in enumerate(value)}, f"{name}/"))
        else:
            flat[name] = value
    return flat


def arrays_by_name(values: Tensors) -> dict[str, Array] | None:
    """Returns arrays by name where that needs no signature: a mapping that holds arrays alone. Else None."""
    if not isinstance(values, Mapping):
        return None
    flat = flatten(values)
    if not all(_is_array(value) for value in flat.values()):
        return None
    return {name: np.asarray(value) for name, value in flat.items()}


def bind_inputs(values: Tensors, info: OpInfo, key: str) -> dict[str, Array]:
    """Binds inputs by an op's signature.

    Args:
        values: Mapping, sequence of arrays, or one array or number.
        info: The op.
        key: Signature key; empty for the first signature whose dtypes fit the arrays among the values.

    Returns:
        Arrays by name. Unknown names pass, for the server to refuse.

    Raises:
        InvalidRequest: The values cannot be bound, or a Python number does not fit its dtype.
    """
    signature, named = choose_signature(values, info, key)
    return _to_arrays(named, signature.inputs, f"op {quote(info.name)}, input")


def bind_output_gradients(values: Tensors, info: OpInfo, signature: Signature) -> dict[str, Array]:
    """Binds output gradients by an op's signature; an entry of None in a mapping or sequence means none is given.

    Raises:
        InvalidRequest: As for ``bind_inputs``.
    """
    named = _name_by_position(values, list(signature.outputs), f"op {quote(info.name)}, output gradients")
    given = {name: value for name, value in named.items() if value is not None}
    return _to_arrays(given, signature.outputs, f"op {quote(info.name)}, output gradient")


def choose_signature(values: Tensors, info: OpInfo, key: str) -> tuple[Signature, dict[str, Any]]:
    """Returns the signature that a call means, and its inputs by name, as they were given.

    With an empty key that is the first one whose dtypes fit the arrays given, else the default one.
    """
    candidates = [info.signatures[key]] if key in info.signatures else list(info.signatures.values())
    if not candidates:
        raise InvalidRequest(f"op {quote(info.name)} could not be loaded by the server: {info.failure}")
    bound = [
        (signature, _name_by_position(values, list(signature.inputs), f"op {quote(info.name)}, inputs"))
        for signature in candidates
    ]
    for signature, named in bound:
        arrays = {name: np.asarray(value) for name, value in named.items() if _is_array(value)}
        if signature.fits_dtypes(arrays):
            return signature, named
    return bound[0]


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__")


def _name_by_position(values: Tensors, names: Sequence[str], place: str) -> dict[str, Any]:
    if isinstance(values, Mapping):
        return flatten(values)
    if not isinstance(values, list | tuple):
        values = [values]
    elif any(not _is_array(item) and item is not None for item in values):
        raise InvalidRequest(
            f"{place}: a bare list of numbers is ambiguous (one tensor, or several?): "
            "give a numpy array, a list of arrays, or a mapping by name",
            reason="AMBIGUOUS_LIST",
        )
    if len(values) != len(names):
        raise InvalidRequest(
            f"{place}: the number given by position must be the signature's: wanted {len(names)} "
            f"({quote_all(list(names))}), got {len(values)}",
            reason="WRONG_COUNT",
            facts={"wanted": str(len(names)), "got": str(len(values))},
        )
    return dict(zip(names, values, strict=True))


def _to_arrays(named: Mapping[str, Any], specs: Mapping[str, TensorSpec], place: str) -> dict[str, Array]:
    return {
        name: np.asarray(value)
        if _is_array(value) or name not in specs
        else numbers_to_array(value, specs[name].dtype, f"{place} {quote(name)}")
        for name, value in named.items()
    }


def numbers_to_array(value: Any, dtype: DType, place: str) -> Array:
    """Turns a Python number, string or nested list of them into an array of that dtype, where no kind is lost.

    Raises:
        InvalidRequest: A ragged list, a fraction for an integer, a number that the dtype cannot hold, and the like.
    """
    try:
        if dtype.is_string:
            return _strings_to_array(value)
        natural = np.asarray(value)
        fits = natural.size == 0 or _kind_fits(natural.dtype, dtype)
        array = np.asarray(value, dtype=dtype.numpy) if fits else None
    except (ValueError, TypeError, OverflowError) as error:
        raise _unfit(place, dtype, str(error).splitlines()[0]) from None
    if array is None or (natural.dtype.kind in "iu" and array.dtype.kind in "iu" and (array != natural).any()):
        raise _unfit(place, dtype, f"{natural.dtype.name} {value!r}"[:80])
    return array


def _kind_fits(natural: np.dtype[Any], dtype: DType) -> bool:
    """Whether numbers of that kind may become ``dtype``: bool stays bool, integer < floating < complex."""
    wanted = _KIND_RANK.get("f" if dtype.is_floating else dtype.numpy.kind)
    got = _KIND_RANK.get(natural.kind)
    if wanted is None or got is None:
        return False
    return wanted == got if 0 in (wanted, got) else got <= wanted


def _strings_to_array(value: Any) -> Array:
    array = np.asarray(value, dtype=object)
    if not all(isinstance(item, bytes | str) for item in array.reshape(-1).tolist()):
        raise TypeError("something else than bytes and str")
    return array


def _unfit(place: str, dtype: DType, got: str) -> InvalidRequest:
    return InvalidRequest(
        f"{place}: Python values must fit the signature's dtype: wanted {dtype.name}, got {got}",
        reason="DTYPE_MISMATCH",
        facts={"place": place, "wanted": dtype.name},
    )
