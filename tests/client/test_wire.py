"""The wire path by hand: the same bytes and the same messages as the generated code's."""

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from gradserve import wire
from gradserve.dtypes import DTYPES
from gradserve.tensors import decode, encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2

LARGE = (wire.LARGE_BYTES // 4 + 1,)
NUMERIC = [dtype.numpy for dtype in DTYPES if not dtype.is_string]


def large(value: float = 1.5) -> np.ndarray:
    return np.full(LARGE, value, np.float32)


def joined(array: np.ndarray, name: str = "x") -> bytes:
    return b"".join(wire.tensor_pieces(array, name))


@pytest.mark.parametrize("dtype", [*NUMERIC, np.dtype(">f4"), np.dtype(ml_dtypes.bfloat16)], ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 1), (2**15, 3)], ids=str)
def test_pieces_of_an_array_are_the_bytes_of_its_message(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    array = (np.arange(int(np.prod(shape))) % 100).reshape(shape).astype(dtype)
    assert joined(array) == encode(array, "x").SerializeToString()


@pytest.mark.parametrize("array", [np.array([b"a\0", b""], object), np.array("é", object), np.zeros(0, object)])
def test_pieces_of_strings_are_the_bytes_of_their_message(array: np.ndarray) -> None:
    assert joined(array) == encode(array, "x").SerializeToString()


def test_pieces_of_a_large_array_in_another_order_are_in_rows() -> None:
    array = np.arange(2 * LARGE[0], dtype=np.float32).reshape(2, -1).T
    np.testing.assert_array_equal(decode(tensor_pb2.Tensor.FromString(joined(array))), array)


def test_pieces_of_a_large_array_do_not_copy_it() -> None:
    array = large()
    assert np.shares_memory(np.frombuffer(wire.tensor_pieces(array)[1], np.uint8), array)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 2**14, 2**21])
def test_a_field_of_pieces_is_what_protobuf_writes(size: int) -> None:
    data = bytes(size)
    assert b"".join(wire.field_pieces(4, [data])) == (tensor_pb2.Tensor(data=data).SerializeToString() or b"\x22\x00")


def test_parse_leaves_large_elements_out_of_a_request() -> None:
    request = pb.VjpRequest(
        op="op", inputs=[encode(np.float32(1), "a"), encode(large(2), "b")], output_gradients=[encode(large(3), "y")]
    )
    message, elements = wire.parse(pb.VjpRequest, request.SerializeToString())
    fields = pb.VjpRequest.INPUTS_FIELD_NUMBER, pb.VjpRequest.OUTPUT_GRADIENTS_FIELD_NUMBER
    assert set(elements) == {(fields[0], 1), (fields[1], 0)}
    assert [(t.name, len(t.data)) for t in message.inputs] == [("a", 4), ("b", 0)]
    np.testing.assert_array_equal(decode(message.inputs[1], "b", elements[fields[0], 1]), large(2))
    np.testing.assert_array_equal(decode(message.output_gradients[0], "y", elements[fields[1], 0]), large(3))


def test_parse_finds_the_elements_of_gradients() -> None:
    dense = pb.Gradient(name="x", status=pb.GRADIENT_STATUS_DENSE, tensor=encode(large(4), "x"))
    response = pb.VjpResponse(input_gradients=[pb.Gradient(name="i"), dense], fingerprint="f")
    message, elements = wire.parse(pb.VjpResponse, response.SerializeToString())
    found = elements[pb.VjpResponse.INPUT_GRADIENTS_FIELD_NUMBER, 1]
    np.testing.assert_array_equal(decode(message.input_gradients[1].tensor, "x", found), large(4))
    assert (message.fingerprint, message.input_gradients[0].name) == ("f", "i")


def test_elements_begin_where_tensorflow_takes_them_as_they_are() -> None:
    data = pb.ForwardRequest(inputs=[encode(large(), "x")]).SerializeToString()
    _, elements = wire.parse(pb.ForwardRequest, data)
    assert all(array.ctypes.data % 64 == 0 for array in elements.values())


def unusual() -> dict[str, bytes]:
    """Returns messages that protobuf reads and that nobody writes."""
    tensor = encode(large(), "x")
    twice = tensor.SerializeToString() + tensor_pb2.Tensor(data=large(2).tobytes()).SerializeToString()
    many = [tensor_pb2.Tensor(name="x", dtype=tensor_pb2.DATA_TYPE_STRING, shape=[2**17], strings=[b""] * 2**17)]
    return {
        "data twice": b"".join(wire.field_pieces(4, [twice])),
        "many strings": pb.ForwardRequest(inputs=many).SerializeToString(),
        "many tensors": pb.ForwardRequest(inputs=[tensor_pb2.Tensor(name="x")] * 2**15).SerializeToString(),
        "a group": pb.ForwardRequest(inputs=[tensor]).SerializeToString() + b"\x9b\x06\x9c\x06",
    }


@pytest.mark.parametrize("kind", unusual())
def test_parse_leaves_an_unusual_message_to_protobuf(kind: str) -> None:
    data = unusual()[kind]
    message, elements = wire.parse(pb.ForwardRequest, data)
    assert (message, elements) == (pb.ForwardRequest.FromString(data), {})


@pytest.mark.parametrize("cut", [1, 100, wire.LARGE_BYTES // 2])
def test_parse_of_a_message_that_was_cut_off_fails_as_protobuf_does(cut: int) -> None:
    data = pb.ForwardRequest(inputs=[encode(large(), "x")]).SerializeToString()
    with pytest.raises(DecodeError):
        wire.parse(pb.ForwardRequest, data[:-cut])


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_parse_agrees_with_protobuf_on_any_bytes_around_a_large_tensor(before: bytes, after: bytes) -> None:
    data = before + pb.ForwardRequest(inputs=[encode(large(), "x")]).SerializeToString() + after
    try:
        wanted = pb.ForwardRequest.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            wire.parse(pb.ForwardRequest, data)
        return
    message, elements = wire.parse(pb.ForwardRequest, data)
    for (_, index), array in elements.items():
        message.inputs[index].data = array.tobytes()
    assert message == wanted


def test_places_are_where_the_elements_of_each_tensor_lie() -> None:
    dense = pb.Gradient(name="x", status=pb.GRADIENT_STATUS_DENSE, tensor=encode(np.float32(4), "x"))
    response = pb.VjpResponse(
        outputs=[encode(np.zeros(0), "none"), encode(np.ones(2), "y")],
        input_gradients=[pb.Gradient(name="i"), dense],
        fingerprint="f",
    )
    data = response.SerializeToString()
    places = wire.places_of(pb.VjpResponse, data)
    fields = pb.VjpResponse.OUTPUTS_FIELD_NUMBER, pb.VjpResponse.INPUT_GRADIENTS_FIELD_NUMBER
    assert {key: data[place] for key, place in places.items()} == {
        (fields[0], 1): np.ones(2).tobytes(),
        (fields[1], 1): np.float32(4).tobytes(),
    }


NOT_A_TENSOR = pb.ForwardRequest.INPUTS_FIELD_NUMBER << 3
"""A number where a tensor belongs."""


@pytest.mark.parametrize("data", [*unusual().values(), bytes([NOT_A_TENSOR, 1])], ids=[*unusual(), "a number"])
def test_an_unusual_message_has_no_places(data: bytes) -> None:
    pb.ForwardRequest.FromString(data)
    assert wire.places_of(pb.ForwardRequest, data) is None


@given(st.binary(max_size=40), st.binary(max_size=12), st.binary(max_size=40))
def test_places_agree_with_protobuf_on_any_bytes(before: bytes, inside: bytes, after: bytes) -> None:
    tensor = encode(np.arange(3.0), "x").SerializeToString() + inside
    data = before + b"".join(wire.field_pieces(pb.ForwardRequest.INPUTS_FIELD_NUMBER, [tensor])) + after
    try:
        message = pb.ForwardRequest.FromString(data)
    except DecodeError:
        return
    places = wire.places_of(pb.ForwardRequest, data)
    if places is not None:
        found = {index: data[place] for (_, index), place in places.items()}
        wanted = {index: tensor.data for index, tensor in enumerate(message.inputs) if tensor.data}
        assert {index: elements for index, elements in found.items() if elements} == wanted
