"""The codec, forward and back: every dtype, layout and special value, bit for bit."""

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradserve.dtypes import DTYPES, dtype_named
from gradserve.errors import InvalidRequest
from gradserve.tensors import MAX_RANK, decode, encode
from gradserve.v1 import tensor_pb2

NUMERIC = [dtype for dtype in DTYPES if not dtype.is_string]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
STRINGS = st.one_of(st.binary(max_size=8), st.sampled_from([b"", b"\x00", b"a\x00", b"\xff\xfe", b"\x80"]))


@st.composite
def arrays_of(draw, dtype) -> np.ndarray:
    """Arrays of any bits, NaNs with payloads among them."""
    shape = draw(SHAPES)
    size = int(np.prod(shape)) * dtype.numpy.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype.name == "bool":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, dtype=dtype.numpy).reshape(shape)


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda dtype: dtype.name)
@hypothesis.given(data=st.data())
def test_encode_then_decode_any_bits_returns_them(dtype, data: st.DataObject) -> None:
    array = data.draw(arrays_of(dtype))
    back = decode(encode(array, "x"))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda dtype: dtype.name)
@hypothesis.given(data=st.data())
def test_decode_then_encode_any_message_returns_it(dtype, data: st.DataObject) -> None:
    array = data.draw(arrays_of(dtype))
    message = tensor_pb2.Tensor(name="x", dtype=dtype.wire, shape=array.shape, data=array.tobytes())
    assert encode(decode(message), "x") == message


@hypothesis.given(data=st.data())
def test_encode_then_decode_strings_returns_them(data: st.DataObject) -> None:
    array = data.draw(hnp.arrays(object, SHAPES, elements=STRINGS))
    message = encode(array, "words")
    back = decode(message)
    assert back.dtype == object
    assert back.shape == array.shape
    assert back.reshape(-1).tolist() == array.reshape(-1).tolist()
    assert encode(back, "words") == message


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["fortran", "reversed", "strided", "broadcast", "big_endian"])
def test_encode_any_layout_sends_little_endian_row_major(dtype, layout: str) -> None:
    plain = np.arange(24).reshape(4, 6).astype(dtype.numpy)
    laid_out = {
        "fortran": np.asfortranarray(plain),
        "reversed": plain[::-1, ::-1],
        "strided": plain[1::2, ::3],
        "broadcast": np.broadcast_to(plain[0], (3, 6)),
        "big_endian": plain.astype(dtype.numpy.newbyteorder(">")),
    }[layout]
    expected = laid_out.astype(dtype.numpy, order="C")
    assert encode(laid_out).data == expected.tobytes()
    assert decode(encode(laid_out)).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", NUMERIC, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * MAX_RANK])
def test_encode_then_decode_edge_shape_keeps_it(dtype, shape: tuple[int, ...]) -> None:
    back = decode(encode(np.zeros(shape, dtype=dtype.numpy)))
    assert (back.shape, back.dtype) == (shape, dtype.numpy)


FLOAT32_BITS = [0x7FC00001, 0xFFC12345, 0x7F800001, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001, 0x807FFFFF]
"""Quiet NaNs with payloads, a signalling NaN, infinities, -0.0, the denormals next to 0 and next to normal."""


@pytest.mark.parametrize("order", ["<", ">"])
def test_encode_special_float32_sends_their_bits(order: str) -> None:
    bits = np.array(FLOAT32_BITS, dtype=f"{order}u4")
    message = encode(bits.view(f"{order}f4"))
    assert np.frombuffer(message.data, dtype="<u4").tolist() == FLOAT32_BITS
    assert decode(message).view("<u4").tolist() == FLOAT32_BITS


@pytest.mark.parametrize("dtype", [dtype for dtype in NUMERIC if dtype.is_floating], ids=lambda dtype: dtype.name)
def test_encode_then_decode_special_values_keeps_sign_and_kind(dtype) -> None:
    tiny = ml_dtypes.finfo(dtype.numpy).smallest_subnormal
    array = np.array([np.nan, np.inf, -np.inf, -0.0, tiny, -tiny], dtype=dtype.numpy)
    back = decode(encode(array))
    assert back.tobytes() == array.tobytes()
    assert np.signbit(back[3])
    assert back[4] > 0


def test_encode_complex_sends_real_then_imaginary_part() -> None:
    assert encode(np.array(1 + 2j, np.complex64)).data == np.array([1, 2], "<f4").tobytes()


def test_encode_numpy_scalar_is_rank_0() -> None:
    message = encode(np.float32(2.5), "x")
    assert (message.name, list(message.shape), message.data) == ("x", [], np.array(2.5, "<f4").tobytes())


def test_encode_str_sends_utf8() -> None:
    assert list(encode(np.array(["grün", b"\xff"], dtype=object)).strings) == ["grün".encode(), b"\xff"]


@pytest.mark.parametrize("array", [np.array(["a", "bc"]), np.array([b"a", b"bc"])], ids=["U", "S"])
def test_encode_fixed_width_strings_sends_each(array: np.ndarray) -> None:
    assert list(encode(array).strings) == [b"a", b"bc"]


@pytest.mark.parametrize("item", [1.0, None, [1], bytearray(b"a")], ids=repr)
def test_encode_object_array_with_something_else_is_refused(item: object) -> None:
    array = np.empty(2, dtype=object)
    array[:] = [b"fine", item]
    with pytest.raises(InvalidRequest) as caught:
        encode(array, "x")
    assert caught.value.reason == "UNKNOWN_DTYPE"
    assert str(caught.value) == (
        f"tensor 'x': an object array must hold bytes or str alone: got {type(item).__name__}; "
        "give numbers in an array of a numeric dtype"
    )


def test_encode_str_that_is_no_unicode_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="tensor 'x'") as caught:
        encode(np.array(["\ud800"], dtype=object), "x")
    assert caught.value.reason == "BAD_STRING"


def test_encode_datetime_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"tensor 'when'.*got datetime64") as caught:
        encode(np.zeros(2, "M8[s]"), "when")
    assert caught.value.reason == "UNKNOWN_DTYPE"


def test_decode_returns_read_only_view_of_the_message() -> None:
    back = decode(encode(np.ones(3, np.float32)))
    assert not back.flags.writeable
    assert not back.flags.owndata


def test_decode_of_a_big_endian_array_has_the_little_endian_dtype() -> None:
    assert decode(encode(np.ones(2, ">f8"))).dtype == dtype_named("float64").numpy
