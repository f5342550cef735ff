"""The dtype table: the name, the wire value and the numpy dtype of each element type of the contract."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from gradserve.errors import InvalidRequest
from gradserve.v1 import tensor_pb2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """One element type."""

    name: str
    """Name as numpy and TensorFlow spell it, such as "float32"; "string" for byte strings."""
    wire: tensor_pb2.DataType
    """Value in the enum ``gradserve.v1.DataType``."""
    numpy: np.dtype[Any]
    """Little-endian numpy dtype; object, holding ``bytes``, for strings."""

    @property
    def is_string(self) -> bool:
        """Whether the elements are byte strings."""
        return self.name == "string"

    @property
    def is_floating(self) -> bool:
        """Whether the elements are real floating-point numbers."""
        return self.name in ("float16", "bfloat16", "float32", "float64")

    @property
    def is_differentiable(self) -> bool:
        """Whether a tensor of this type can have a gradient: floating-point and complex ones can."""
        return self.is_floating or self.name in ("complex64", "complex128")


def _row(name: str, scalar: Any) -> DType:
    wire: tensor_pb2.DataType = getattr(tensor_pb2, f"DATA_TYPE_{name.upper()}")
    return DType(name=name, wire=wire, numpy=np.dtype(scalar).newbyteorder("<"))


DTYPES: tuple[DType, ...] = (
    _row("bool", np.bool_),
    _row("int8", np.int8),
    _row("int16", np.int16),
    _row("int32", np.int32),
    _row("int64", np.int64),
    _row("uint8", np.uint8),
    _row("uint16", np.uint16),
    _row("uint32", np.uint32),
    _row("uint64", np.uint64),
    _row("float16", np.float16),
    _row("bfloat16", ml_dtypes.bfloat16),
    _row("float32", np.float32),
    _row("float64", np.float64),
    _row("complex64", np.complex64),
    _row("complex128", np.complex128),
    _row("string", np.object_),
)
"""Every element type of the contract."""

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
_BY_WIRE = {int(dtype.wire): dtype for dtype in DTYPES}
BOOL, STRING = _BY_NAME["bool"], _BY_NAME["string"]


def dtype_named(name: str) -> DType:
    """Returns the row of that name.

    Raises:
        KeyError: There is none.
    """
    return _BY_NAME[name]


def dtype_on_wire(value: int) -> DType | None:
    """Returns the row of a ``gradserve.v1.DataType`` value, None if there is none."""
    return _BY_WIRE.get(value)


def dtype_of(array_dtype: np.dtype[Any], place: str = "array") -> DType:
    """Returns the row of a numpy dtype of either byte order; object, str and bytes dtypes are strings.

    Raises:
        InvalidRequest: The contract has no such element type (reason UNKNOWN_DTYPE).
    """
    if array_dtype.kind in "OSU":
        return STRING
    dtype = _BY_NAME.get(array_dtype.name)
    if dtype is None or dtype.is_string:
        names = ", ".join(_BY_NAME)
        raise InvalidRequest(
            f"{place}: dtype is not one that the service takes: wanted one of {names}; got {array_dtype.name}",
            reason="UNKNOWN_DTYPE",
            facts={"got": array_dtype.name},
        )
    return dtype
