"""The dtype table."""

import ml_dtypes
import numpy as np
import pytest

from gradserve.dtypes import DTYPES, STRING, dtype_named, dtype_of, dtype_on_wire
from gradserve.errors import InvalidRequest
from gradserve.v1 import tensor_pb2

NAMES = [dtype.name for dtype in DTYPES]
NUMERIC = [dtype for dtype in DTYPES if not dtype.is_string]


def test_dtypes_table_and_wire_enum_name_the_same_types() -> None:
    wire_names = [name.removeprefix("DATA_TYPE_").lower() for name in tensor_pb2.DataType.DESCRIPTOR.values_by_name]
    assert wire_names == ["unspecified", *NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_dtype_named_and_dtype_on_wire_return_the_same_row(name: str) -> None:
    row = dtype_named(name)
    assert row.name == name
    assert dtype_on_wire(row.wire) is row


@pytest.mark.parametrize("name", ["", "float8", "Float32", "object", "unspecified"])
def test_dtype_named_unknown_name_raises_key_error(name: str) -> None:
    with pytest.raises(KeyError):
        dtype_named(name)


@pytest.mark.parametrize("value", [0, 17, -1, 2**31 - 1])
def test_dtype_on_wire_unknown_value_returns_none(value: int) -> None:
    assert dtype_on_wire(value) is None


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("order", ["<", ">", "="])
def test_dtype_of_any_byte_order_returns_the_row(dtype, order: str) -> None:
    assert dtype_of(dtype.numpy.newbyteorder(order)) is dtype


@pytest.mark.parametrize("numpy_dtype", [np.dtype(object), np.dtype("S3"), np.dtype("U5")])
def test_dtype_of_object_bytes_and_str_is_string(numpy_dtype: np.dtype) -> None:
    assert dtype_of(numpy_dtype) is STRING


@pytest.mark.parametrize(
    "numpy_dtype",
    [np.dtype("M8[s]"), np.dtype("m8[s]"), np.dtype([("a", "i4")]), np.dtype("V4"), np.dtype(ml_dtypes.float8_e5m2)],
    ids=str,
)
def test_dtype_of_foreign_dtype_is_refused_with_its_name(numpy_dtype: np.dtype) -> None:
    with pytest.raises(InvalidRequest) as caught:
        dtype_of(numpy_dtype, "input 'x'")
    assert caught.value.reason == "UNKNOWN_DTYPE"
    assert caught.value.facts == {"got": numpy_dtype.name}
    assert str(caught.value) == (
        f"input 'x': dtype is not one that the service takes: wanted one of {', '.join(NAMES)}; got {numpy_dtype.name}"
    )


def test_dtype_of_long_double_is_refused_unless_it_is_float64() -> None:
    long_double = np.dtype(np.longdouble)
    if long_double == np.dtype(np.float64):  # as on Windows and on ARM macOS
        assert dtype_of(long_double).name == "float64"
    else:
        with pytest.raises(InvalidRequest, match="got float128"):
            dtype_of(long_double)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_dtype_flags_follow_the_name(dtype) -> None:
    assert dtype.is_string == (dtype.name == "string")
    assert dtype.is_floating == ("float" in dtype.name)
    assert dtype.is_differentiable == ("float" in dtype.name or "complex" in dtype.name)


@pytest.mark.parametrize(
    ("name", "itemsize"),
    [("bool", 1), ("int8", 1), ("uint16", 2), ("float16", 2), ("bfloat16", 2), ("float64", 8), ("complex128", 16)],
)
def test_dtype_numpy_is_little_endian_of_the_size_on_the_wire(name: str, itemsize: int) -> None:
    numpy_dtype = dtype_named(name).numpy
    assert numpy_dtype.itemsize == itemsize
    assert numpy_dtype.newbyteorder("<") == numpy_dtype
