"""Everything that the codec refuses, with reason and text, before it allocates anything."""

import tracemalloc

import pytest

from gradserve.errors import InvalidRequest
from gradserve.tensors import decode
from gradserve.v1 import tensor_pb2

LIMIT = 2**63 - 1
F32 = tensor_pb2.DATA_TYPE_FLOAT32
F64 = tensor_pb2.DATA_TYPE_FLOAT64
BOOL = tensor_pb2.DATA_TYPE_BOOL
STRING = tensor_pb2.DATA_TYPE_STRING


def refusal(**fields: object) -> tuple[str, str]:
    """Returns reason and text of the error that a message with these fields raises."""
    with pytest.raises(InvalidRequest) as caught:
        decode(tensor_pb2.Tensor(**fields), "input 'x'")
    assert "\n" not in str(caught.value)
    assert caught.value.facts["place"] == "input 'x'"
    return caught.value.reason, str(caught.value)


@pytest.mark.parametrize("dtype", [0, 17, 99, -1])
def test_decode_unknown_dtype_is_refused(dtype: int) -> None:
    text = f"input 'x': dtype is not a known gradserve.v1.DataType: got {dtype}"
    assert refusal(dtype=dtype) == ("UNKNOWN_DTYPE", text)


@pytest.mark.parametrize(
    ("dtype", "shape", "got", "wanted"),
    [
        (F32, [], 0, 4),
        (F32, [3], 8, 12),
        (F32, [3], 11, 12),
        (F32, [3], 13, 12),
        (F32, [0], 4, 0),
        (F64, [2, 3], 24, 48),
        (BOOL, [2], 1, 2),
        (tensor_pb2.DATA_TYPE_COMPLEX128, [1], 8, 16),
        (F32, [LIMIT // 4], 4, LIMIT // 4 * 4),
    ],
)
def test_decode_wrong_byte_count_is_refused(dtype: int, shape: list[int], got: int, wanted: int) -> None:
    reason, text = refusal(dtype=dtype, shape=shape, data=bytes(got))
    name = tensor_pb2.DataType.Name(dtype).removeprefix("DATA_TYPE_").lower()
    assert reason == "BYTE_COUNT_MISMATCH"
    assert text == (
        f"input 'x': bytes of data must fit shape {tuple(shape)} and dtype {name}: wanted {wanted}, got {got}"
    )


@pytest.mark.parametrize("shape", [[-1], [2, -3], [0, -1], [-(2**63)], [-2, -3]])
@pytest.mark.parametrize("dtype", [F32, STRING])
def test_decode_negative_dimension_is_refused(dtype: int, shape: list[int]) -> None:
    text = f"input 'x': each dimension must be at least 0: got {tuple(shape)}"
    assert refusal(dtype=dtype, shape=shape, data=bytes(24)) == ("BAD_SHAPE", text)


@pytest.mark.parametrize("shape", [[2**62, 4], [2**31, 2**31, 2**31], [LIMIT], [LIMIT] * 32, [0, LIMIT], [2**62, 0, 8]])
@pytest.mark.parametrize("dtype", [F32, STRING])
def test_decode_overflowing_dimensions_are_refused(dtype: int, shape: list[int]) -> None:
    text = f"input 'x': the dimensions must describe at most {LIMIT} bytes: got {tuple(shape)}"
    assert refusal(dtype=dtype, shape=shape) == ("BAD_SHAPE", text)


def test_decode_product_that_wraps_to_the_byte_count_is_refused() -> None:
    assert 2**32 * 2**32 * 4 % 2**64 == 0  # what 64-bit arithmetic would take for no bytes at all
    assert refusal(dtype=F32, shape=[2**32, 2**32])[0] == "BAD_SHAPE"


@pytest.mark.parametrize("rank", [33, 64, 10_000])
def test_decode_too_many_dimensions_is_refused(rank: int) -> None:
    text = f"input 'x': a tensor has at most 32 dimensions: got {rank} dimensions"
    assert refusal(dtype=F32, shape=[1] * rank, data=bytes(4)) == ("BAD_SHAPE", text)


@pytest.mark.parametrize("data", [b"\x02", b"\x00\x01\xff", b"\x80\x00"])
def test_decode_bool_byte_above_1_is_refused(data: bytes) -> None:
    text = f"input 'x': each byte of a bool tensor must be 0 or 1: got {max(data)}"
    assert refusal(dtype=BOOL, shape=[len(data)], data=data) == ("BAD_BOOL", text)


def test_decode_strings_in_a_numeric_tensor_are_refused() -> None:
    text = "input 'x': strings must fit shape (1,) and dtype float32: wanted 0, got 1"
    assert refusal(dtype=F32, shape=[1], data=bytes(4), strings=[b"a"]) == ("BYTE_COUNT_MISMATCH", text)


def test_decode_data_in_a_string_tensor_is_refused() -> None:
    text = "input 'x': bytes of data must fit shape (1,) and dtype string: wanted 0, got 1"
    assert refusal(dtype=STRING, shape=[1], data=b"a", strings=[b"a"]) == ("BYTE_COUNT_MISMATCH", text)


@pytest.mark.parametrize(("shape", "count"), [([], 0), ([], 2), ([3], 2), ([0], 1), ([2, 2], 5)])
def test_decode_wrong_count_of_strings_is_refused(shape: list[int], count: int) -> None:
    reason, text = refusal(dtype=STRING, shape=shape, strings=[b"a"] * count)
    assert reason == "BYTE_COUNT_MISMATCH"
    assert text.startswith(f"input 'x': strings must fit shape {tuple(shape)} and dtype string: wanted ")
    assert text.endswith(f", got {count}")


@pytest.mark.parametrize("dtype", [F32, BOOL, STRING])
@pytest.mark.parametrize("shape", [[2**40], [2**20, 2**20], [2**62, 2**62], [-(2**40)], [2**59]])
def test_decode_huge_claim_is_refused_with_nothing_allocated(dtype: int, shape: list[int]) -> None:
    message = tensor_pb2.Tensor(dtype=dtype, shape=shape, data=b"")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            decode(message)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [[0, 2**60], [2**40, 0], [0, 2**31, 2**20]])
def test_decode_empty_tensor_with_large_dimensions_is_taken(shape: list[int]) -> None:
    assert decode(tensor_pb2.Tensor(dtype=F32, shape=shape)).shape == tuple(shape)
