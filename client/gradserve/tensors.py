"""The codec: ``encode`` turns a numpy array into a ``Tensor`` message, ``decode`` turns it back, bit for bit.

Everything that a hostile message could get wrong is checked here, with Python integers and before anything is
allocated: dtype, dimensions, byte count, bool bytes.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gradserve.dtypes import BOOL, DType, dtype_of, dtype_on_wire
from gradserve.errors import InvalidRequest, quote
from gradserve.v1 import tensor_pb2

MAX_RANK = 32
"""Most dimensions a tensor may have: what every supported numpy can hold."""
_MAX_BYTES = 2**63 - 1
_FORMS = 4096
"""How many kinds of tensors are kept that were found to be good."""

Array = npt.NDArray[Any]


def encode(array: Array | np.generic, name: str = "") -> tensor_pb2.Tensor:
    """Encodes an array of any layout and byte order; one copy is made beside protobuf's own.

    Args:
        array: The array. An object array must hold ``bytes`` or ``str`` alone; ``str`` is sent as UTF-8. (Fixed-width
            numpy strings, dtype "S", have already lost their trailing NULs: numpy cannot tell them from padding.)
        name: Name to send with it.

    Returns:
        The message: little-endian, row-major.

    Raises:
        InvalidRequest: The dtype is not one of the contract, an object array holds something else than strings
            (UNKNOWN_DTYPE), or a ``str`` has no UTF-8 form (BAD_STRING).
    """
    array = np.asarray(array)
    dtype = dtype_of(array.dtype, f"tensor {quote(name)}")
    if dtype.is_string:
        strings = [_to_bytes(item, name) for item in array.reshape(-1).tolist()]
        return tensor_pb2.Tensor(name=name, dtype=dtype.wire, shape=array.shape, strings=strings)
    little_endian = array.astype(dtype.numpy, copy=False)
    return tensor_pb2.Tensor(name=name, dtype=dtype.wire, shape=array.shape, data=little_endian.tobytes())


def decode(tensor: tensor_pb2.Tensor, place: str = "tensor", elements: Array | None = None) -> Array:
    """Decodes a message into an array; no copy is made beside protobuf's own, so the array may be read-only.

    Args:
        tensor: The message.
        place: What errors call it, such as "input 'x'".
        elements: What stands for ``tensor.data``, as bytes, if ``gradserve.wire.parse`` left it out.

    Returns:
        The array, little-endian and row-major; strings as an object array of ``bytes``.

    Raises:
        InvalidRequest: Unknown dtype (UNKNOWN_DTYPE), a bad dimension (BAD_SHAPE), a byte or string count that does
            not fit the shape (BYTE_COUNT_MISMATCH), or a bool byte other than 0 and 1 (BAD_BOOL).
    """
    form = _form_of(tensor.dtype, tuple(tensor.shape), place)
    data = tensor.data if elements is None else elements
    if len(data) != form.data_bytes:
        raise _miscounted("bytes of data", form, wanted=form.data_bytes, got=len(data))
    if len(tensor.strings) != form.strings:
        raise _miscounted("strings", form, wanted=form.strings, got=len(tensor.strings))
    if form.dtype.is_string:
        array = np.empty(form.strings, dtype=object)
        array[:] = list(tensor.strings)
    else:
        array = np.frombuffer(data, dtype=form.dtype.numpy)
        if form.dtype is BOOL:
            _check_bools(array.view(np.uint8), place)
    return array.reshape(form.shape)


class _Form(NamedTuple):
    """What is known of a tensor before its elements are looked at."""

    place: str
    dtype: DType
    shape: tuple[int, ...]
    data_bytes: int
    """How many bytes of data it must have."""
    strings: int
    """How many strings it must have."""


@functools.lru_cache(_FORMS)
def _form_of(wire: int, shape: tuple[int, ...], place: str) -> _Form:
    dtype = dtype_on_wire(wire)
    if dtype is None:
        raise InvalidRequest(
            f"{place}: dtype is not a known gradserve.v1.DataType: got {wire}",
            reason="UNKNOWN_DTYPE",
            facts={"place": place, "got": str(wire)},
        )
    count = element_count(shape, dtype, place)
    if dtype.is_string:
        return _Form(place, dtype, shape, data_bytes=0, strings=count)
    return _Form(place, dtype, shape, data_bytes=count * dtype.numpy.itemsize, strings=0)


def _check_bools(elements: Array, place: str) -> None:
    if elements.size and elements.max() > 1:
        raise InvalidRequest(
            f"{place}: each byte of a bool tensor must be 0 or 1: got {elements.max()}",
            reason="BAD_BOOL",
            facts={"place": place},
        )


def element_count(shape: Sequence[int], dtype: DType, place: str) -> int:
    """Returns the product of the dimensions, having refused negative, too many and overflowing ones.

    Args:
        shape: The dimensions.
        dtype: Element type.
        place: What has that shape, for the error.

    Raises:
        InvalidRequest: No tensor can have that shape (BAD_SHAPE).
    """
    if len(shape) > MAX_RANK:
        raise _bad_shape(place, f"a tensor has at most {MAX_RANK} dimensions", f"{len(shape)} dimensions")
    count, product_of_nonzero = 1, 1
    for size in shape:
        if size < 0:
            raise _bad_shape(place, "each dimension must be at least 0", str(tuple(shape)))
        count *= size
        product_of_nonzero *= size or 1
    if product_of_nonzero * dtype.numpy.itemsize > _MAX_BYTES:
        raise _bad_shape(place, f"the dimensions must describe at most {_MAX_BYTES} bytes", str(tuple(shape)))
    return count


def _bad_shape(place: str, rule: str, got: str) -> InvalidRequest:
    return InvalidRequest(f"{place}: {rule}: got {got}", reason="BAD_SHAPE", facts={"place": place, "got": got})


def _miscounted(unit: str, form: _Form, *, wanted: int, got: int) -> InvalidRequest:
    return InvalidRequest(
        f"{form.place}: {unit} must fit shape {form.shape} and dtype {form.dtype.name}: wanted {wanted}, got {got}",
        reason="BYTE_COUNT_MISMATCH",
        facts={"place": form.place, "wanted": str(wanted), "got": str(got)},
    )


def _to_bytes(item: object, name: str) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"tensor {quote(name)}: a str must be valid Unicode to be sent as UTF-8: {error.reason} "
                f"at character {error.start}; give bytes instead",
                reason="BAD_STRING",
            ) from None
    raise InvalidRequest(
        f"tensor {quote(name)}: an object array must hold bytes or str alone: got {type(item).__name__}; "
        "give numbers in an array of a numeric dtype",
        reason="UNKNOWN_DTYPE",
        facts={"got": type(item).__name__},
    )
