"""The wire path of tensors: protobuf's bytes written and read by hand, where the generated code would copy elements.

    array -> pieces -> bytes            ``tensor_pieces``, ``field_pieces``, one ``b"".join`` for a whole message
    bytes -> message + elements         ``parse``: large elements stay where they are, all else is protobuf's to read

Both sides of each arrow are what the generated code makes and takes; the tests compare them. A message that is in any way
unusual is left to protobuf as a whole, so that nothing is judged here.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from gradserve.dtypes import dtype_of
from gradserve.errors import quote
from gradserve.tensors import Array, encode
from gradserve.v1 import tensor_pb2

AnyMessage = TypeVar("AnyMessage", bound=Message)
Piece = bytes | memoryview
Elements = Mapping[tuple[int, int], Array]
"""Elements of large tensors as bytes, by number of the message's field and index in it."""

LARGE_BYTES = 2**16
"""Tensors of more bytes are read and written without copies; for fewer, protobuf is quicker."""
_ALIGNMENT = 64
"""TensorFlow takes an array as it is if it lies on such a boundary, and copies it otherwise."""
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_FIXED_BYTES = {_I64: 8, _I32: 4}
_MOST_FIELDS, _MOST_FIELDS_OF_A_TENSOR = 2**14, 64
"""A message of more fields is left to protobuf, which is quicker where there is little to cut out."""
_HEADS = 4096
"""How many heads of tensors are kept: names come from signatures, shapes from callers."""


def tensor_pieces(array: Array, name: str = "") -> list[Piece]:
    """Returns the bytes of ``encode(array, name)`` in pieces, of which a large array's own memory is one.

    Args:
        array: The array, of any layout and byte order; it must not change until the pieces are joined.
        name: Name to send with it.

    Raises:
        InvalidRequest: As for ``encode``.
    """
    head = _tensor_head(name, array.dtype, array.shape)
    if head is None:
        return [encode(array, name).SerializeToString()]
    if not array.nbytes:
        return [head]
    little_endian = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("<"))
    return [head, elements_piece(little_endian)]


def elements_piece(array: Array) -> Piece:
    """Returns the bytes of an array's elements, not of strings; those of a large one are its own memory if it is contiguous.

    Args:
        array: The array, of little-endian byte order; it must not change until the piece is joined.
    """
    if array.nbytes <= LARGE_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@functools.lru_cache(_HEADS)
def _tensor_head(name: str, array_dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bytes | None:
    """Returns all of a ``Tensor`` but its elements, None for strings."""
    dtype = dtype_of(array_dtype, f"tensor {quote(name)}")
    if dtype.is_string:
        return None
    head = tensor_pb2.Tensor(name=name, dtype=dtype.wire, shape=shape).SerializeToString()
    size = int(np.prod(shape, dtype=object)) * dtype.numpy.itemsize
    return head + _field_head(tensor_pb2.Tensor.DATA_FIELD_NUMBER, size) if size else head


def field_pieces(number: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Returns a field of a message whose value is a message, bytes or text of these pieces."""
    return [_field_head(number, sum(map(len, pieces))), *pieces]


@functools.lru_cache(_HEADS)
def _field_head(number: int, size: int) -> bytes:
    return _varint(number << 3 | _LEN) + _varint(size)


def _varint(value: int) -> bytes:
    """Returns a number as protobuf writes it: 7 bits a byte, the least first, the eighth bit set in all but the last.

    Source: https://protobuf.dev/programming-guides/encoding/
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def parse(message_type: type[AnyMessage], data: bytes) -> tuple[AnyMessage, Elements]:
    """Reads a message; the elements of large tensors are left out of it and come beside it, aligned for TensorFlow.

    Args:
        message_type: Type of the message, of which tensors are found in fields of the types ``Tensor`` and ``Gradient``,
            and others that hold one tensor.
        data: Its bytes.

    Raises:
        DecodeError: The bytes are no such message.
    """
    if len(data) <= LARGE_BYTES:
        return message_type.FromString(data), {}
    try:
        rest, elements = _cut(memoryview(data), _paths_of(message_type.DESCRIPTOR))
    except (_Unusual, IndexError):
        return message_type.FromString(data), {}
    return message_type.FromString(rest), {key: aligned(view) for key, view in elements.items()}


def aligned(view: memoryview) -> Array:
    """Returns a copy of bytes, as an array of them, that begins where TensorFlow takes an array as it is."""
    room = np.empty(len(view) + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    copy = room[begin : begin + len(view)]
    copy[:] = np.frombuffer(view, np.uint8)
    return copy


def places_of(message_type: type[Message], data: bytes) -> dict[tuple[int, int], slice] | None:
    """Returns where the elements of each tensor of a message lie, by number of the message's field and index in it.

    Args:
        message_type: Type of the message.
        data: Its bytes, which ``message_type`` can parse.

    Returns:
        The places, in the order of the bytes; None if the message is unusual.
    """
    found: dict[tuple[int, int], slice] = {}
    counts: Counter[int] = Counter()
    view, paths = memoryview(data), _paths_of(message_type.DESCRIPTOR)
    try:
        for field in _fields(view, _MOST_FIELDS):
            if field.number not in paths:
                continue
            if field.wire_type != _LEN:
                return None
            key = (field.number, counts[field.number])
            counts[field.number] += 1
            place = _place(view[: field.end], field.value, paths[field.number])
            if place is not None:
                found[key] = place
    except (_Unusual, IndexError):
        return None
    return found


def _place(data: memoryview, begin: int, path: Sequence[int]) -> slice | None:
    """Returns where what lies at the end of a path of fields is, in a message that begins there and ends with the data."""
    found: slice | None = None
    is_there = False
    for field in _fields(data, _MOST_FIELDS_OF_A_TENSOR, begin):
        if field.number != path[0]:
            continue
        if is_there or field.wire_type != _LEN:
            raise _Unusual
        is_there = True
        found = slice(field.value, field.end) if len(path) == 1 else _place(data[: field.end], field.value, path[1:])
    return found


class _Unusual(Exception):
    """Bytes that are no message, or one of a form that nobody writes."""


class _Field(NamedTuple):
    """One field in the bytes of a message."""

    number: int
    wire_type: int
    begin: int
    """Where its tag begins."""
    value: int
    """Where its value begins."""
    end: int
    """Where its value ends."""


def _cut(data: memoryview, paths: Mapping[int, Sequence[int]]) -> tuple[bytes, dict[tuple[int, int], memoryview]]:
    """Returns a message without the elements of its large tensors, and those elements."""
    rest: list[Piece] = []
    found: dict[tuple[int, int], memoryview] = {}
    counts: Counter[int] = Counter()
    for field in _fields(data, _MOST_FIELDS):
        whole = data[field.begin : field.end]
        path = paths.get(field.number) if field.wire_type == _LEN else None
        if path is None:
            rest.append(whole)
            continue
        key = (field.number, counts[field.number])
        counts[field.number] += 1
        if len(whole) <= LARGE_BYTES:
            rest.append(whole)
            continue
        pieces, elements = _cut_tensor(data[field.value : field.end], path)
        rest += field_pieces(field.number, pieces)
        if elements is not None:
            found[key] = elements
    return b"".join(rest), found


def _cut_tensor(data: memoryview, path: Sequence[int]) -> tuple[list[Piece], memoryview | None]:
    """Returns a message without what lies at the end of a path of fields, and that; no field of it may stand twice."""
    rest: list[Piece] = []
    found: memoryview | None = None
    is_there = False
    for field in _fields(data, _MOST_FIELDS_OF_A_TENSOR):
        if field.number != path[0] or field.wire_type != _LEN:
            rest.append(data[field.begin : field.end])
            continue
        if is_there:
            raise _Unusual
        is_there, found = True, data[field.value : field.end]
        if len(path) > 1:
            pieces, found = _cut_tensor(found, path[1:])
            rest += field_pieces(field.number, pieces)
    return rest, found


def _fields(data: memoryview, most: int, begin: int = 0) -> Iterator[_Field]:
    """Yields the fields of a message that begins there and ends with the data.

    Raises:
        _Unusual: There are groups, or more fields than the most, or a field has another length than it says.
        IndexError: A number has no end.
    """
    at, end = begin, len(data)
    for _ in range(most):
        if at == end:
            return
        begin = at
        tag, at = _read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        value = at
        if wire_type == _VARINT:
            _, at = _read_varint(data, at)
        elif wire_type == _LEN:
            size, value = _read_varint(data, at)
            at = value + size
        elif wire_type in _FIXED_BYTES:
            at += _FIXED_BYTES[wire_type]
        else:
            raise _Unusual
        if at > end:
            raise _Unusual
        yield _Field(number, wire_type, begin, value, at)
    raise _Unusual


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Returns the number that begins there, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _Unusual


@functools.cache
def _paths_of(descriptor: Descriptor) -> dict[int, tuple[int, ...]]:
    """Returns, for each repeated field that holds tensors, the numbers of the fields that lead to a tensor's elements."""
    found = {}
    for field in descriptor.fields:
        path = _path_to_data(field.message_type) if field.is_repeated and field.message_type else None
        if path is not None:
            found[field.number] = path
    return found


def _path_to_data(descriptor: Descriptor) -> tuple[int, ...] | None:
    """Returns the numbers of the fields that lead to the elements of the one tensor of a message; None if it has none."""
    if descriptor is tensor_pb2.Tensor.DESCRIPTOR:
        return (tensor_pb2.Tensor.DATA_FIELD_NUMBER,)
    tensors = [field for field in descriptor.fields if field.message_type is tensor_pb2.Tensor.DESCRIPTOR]
    return (tensors[0].number, tensor_pb2.Tensor.DATA_FIELD_NUMBER) if len(tensors) == 1 else None
