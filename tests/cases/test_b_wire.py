"""Public cases about tensors on the wire: byte order, dtypes, shapes and strings, through a real server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import ml_dtypes
import numpy as np
import pytest
from tests.support.raw import Answer, send

from gradserve import Client
from gradserve.errors import Code, InvalidRequest
from gradserve.tensors import encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2
from gradserve_server.testing import RunningServer

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
F32 = tensor_pb2.DATA_TYPE_FLOAT32
STRING = tensor_pb2.DATA_TYPE_STRING
AWKWARD = [b"a\x00", b"", b"\xff\xfe", "\u00fc".encode(), b"\x00", b"\n"]


@pytest.fixture(scope="module")
def server(serve: Callable[..., RunningServer]) -> RunningServer:
    return serve(Path(__file__).with_name("ops_b_wire.py"))


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


def vjp_raw(server: RunningServer, op: str, **fields: object) -> Answer:
    """Sends a tensor that the client would never build."""
    request = pb.VjpRequest(op=op, inputs=[tensor_pb2.Tensor(name="x", **fields)])
    with grpc.insecure_channel(server.target) as channel:
        return send(channel, "Vjp", request.SerializeToString())


def objects(items: list[bytes]) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def test_B01_big_endian_array_arrives_little_endian(client: Client) -> None:
    array = np.array([1.0, 2.0], ">f4")
    assert encode(array).data == bytes.fromhex("0000803f00000040")
    result = client.vjp("echo", array, np.array([3.0, 4.0], ">f4"))
    assert result.output.tolist() == [1.0, 2.0]
    assert result.gradient.tolist() == [3.0, 4.0]
    assert result.output.tobytes() == bytes.fromhex("0000803f00000040")


def test_B04_float32_for_bfloat16_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="wanted bfloat16, got float32") as caught:
        client.vjp("echo_bfloat16", np.float32([0.01]))
    assert (caught.value.code, caught.value.reason) == (Code.INVALID_ARGUMENT, "DTYPE_MISMATCH")


def test_B04_python_number_is_rounded_to_the_nearest_bfloat16(client: Client) -> None:
    assert client.forward("echo_bfloat16", 0.01).output.tobytes() == bytes.fromhex("243c")


def test_B04_every_bfloat16_comes_back_bit_for_bit(client: Client) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)
    result = client.vjp("echo_bfloat16", every, every)
    assert result.output.dtype == result.gradient.dtype == BFLOAT16
    assert result.output.tobytes() == every.tobytes()
    assert result.gradient.tobytes() == every.tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,), (2, 0)])
def test_B06_rank_0_and_shape_1_stay_apart(client: Client, shape: tuple[int, ...]) -> None:
    result = client.vjp("echo", np.full(shape, 2.5, np.float32))
    assert result.output.shape == result.gradient.shape == shape


@pytest.mark.parametrize(("op", "wrong"), [("echo_scalar", (1,)), ("echo_vector", ())])
def test_B06_one_for_the_other_is_refused(client: Client, op: str, wrong: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.vjp(op, {"x": np.full(wrong, 2.5, np.float32)})
    assert caught.value.reason == "SHAPE_MISMATCH"
    assert caught.value.facts["got"] == str(wrong)


def test_B06_unknown_rank_is_told_apart_from_rank_0(client: Client) -> None:
    shapes = [client.op(op).signatures["serving_default"].inputs["x"].shape for op in ("echo", "echo_scalar")]
    assert shapes == [None, ()]


def test_B06_shape_left_out_is_rank_0(server: RunningServer) -> None:
    answer = vjp_raw(server, "echo", dtype=F32, data=np.float32(2.5).tobytes())
    output = pb.VjpResponse.FromString(answer.response).outputs[0]
    assert (list(output.shape), output.data) == ([], np.float32(2.5).tobytes())


@pytest.mark.parametrize("shape", [[-1], [-1, 1], [1, -3], [-3], [-3, -1], [-1, 0], [-(2**63)]])
def test_B07_negative_dimension_is_refused_before_reshape(server: RunningServer, shape: list[int]) -> None:
    answer = vjp_raw(server, "echo", dtype=F32, shape=shape, data=bytes(12))
    assert (answer.code, answer.reason) == (Code.INVALID_ARGUMENT, "BAD_SHAPE")
    assert answer.text == f"input 'x': each dimension must be at least 0: got {tuple(shape)}"


def test_B09_strings_come_back_byte_for_byte(client: Client) -> None:
    assert client.forward("echo_strings", objects(AWKWARD)).output.tolist() == AWKWARD


@pytest.mark.parametrize("item", AWKWARD)
def test_B09_string_of_rank_0_comes_back_byte_for_byte(client: Client, item: bytes) -> None:
    output = client.forward("echo_strings", {"x": item}).output
    assert (output.shape, output[()]) == ((), item)


@pytest.mark.parametrize(
    ("shape", "count", "data"),
    [([3], 2, b""), ([], 0, b""), ([], 2, b""), ([0], 1, b""), ([1], 1, b"a"), ([1], 0, b"a")],
)
def test_B09_wrong_count_of_strings_is_refused(
    server: RunningServer, shape: list[int], count: int, data: bytes
) -> None:
    answer = vjp_raw(server, "echo_strings", dtype=STRING, shape=shape, strings=[b"a"] * count, data=data)
    assert (answer.code, answer.reason) == (Code.INVALID_ARGUMENT, "BYTE_COUNT_MISMATCH")


def test_B09_length_prefix_past_the_end_is_refused(server: RunningServer) -> None:
    good = pb.VjpRequest(op="echo_strings", inputs=[tensor_pb2.Tensor(name="x", dtype=STRING, strings=[b"abc"])])
    data = good.SerializeToString()
    with grpc.insecure_channel(server.target) as channel:
        answer = send(channel, "Vjp", data.replace(b"\x03abc", b"\x7fabc"))
    assert (answer.code, answer.reason) == (Code.INVALID_ARGUMENT, "MALFORMED_MESSAGE")


@pytest.mark.parametrize(
    ("inputs", "missing", "unknown"),
    [
        ({"images": 1, "angle": 1, "x": 1}, ["phase"], ["angle", "x"]),
        ({"images": 1}, ["phase"], []),
        ({"images": 1, "phase": 1, "extra": 1}, [], ["extra"]),
        ({}, ["images", "phase"], []),
    ],
)
def test_B22_missing_and_unknown_inputs_are_both_named(
    client: Client, inputs: dict[str, int], missing: list[str], unknown: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.vjp("modulate", {name: np.float32(value) for name, value in inputs.items()})
    assert (caught.value.code, caught.value.reason) == (Code.INVALID_ARGUMENT, "BAD_INPUT_NAMES")
    assert caught.value.facts["missing"] == ", ".join(map(repr, missing))
    assert caught.value.facts["unknown"] == ", ".join(map(repr, unknown))
    assert all(repr(name) in str(caught.value) for name in missing + unknown)


def test_B22_right_names_answer_in_any_order(client: Client) -> None:
    result = client.vjp("modulate", {"phase": np.float32(3), "images": np.float32([1, 2])})
    assert result.output.tolist() == [3, 6]


@pytest.mark.parametrize(("names", "named"), [(["phase", "angle"], "'angle'"), (["phase", "phase"], "'phase'")])
def test_B22_names_to_differentiate_are_checked(client: Client, names: list[str], named: str) -> None:
    inputs = {"images": np.float32([1, 2]), "phase": np.float32(3)}
    with pytest.raises(InvalidRequest, match=named) as caught:
        client.vjp("modulate", inputs, differentiate=names)
    assert caught.value.reason == "BAD_DIFFERENTIATE_NAMES"


@pytest.mark.parametrize(
    "shape",
    [
        [2**32, 2**32],
        [0, 2**62],
        [2**62],
        [2**62, 2**62],
        [2**63 - 1],
        [2**63 - 1] * 32,
        [0, 2**40],
        [2**31, 0],
        [1] * 33,
    ],
)
def test_B24_overflowing_dimensions_are_refused(server: RunningServer, client: Client, shape: list[int]) -> None:
    answer = vjp_raw(server, "echo", dtype=F32, shape=shape)
    assert (answer.code, answer.reason) == (Code.INVALID_ARGUMENT, "BAD_SHAPE")
    assert client.vjp("echo", 2.0).gradient == 1.0


@pytest.mark.parametrize("shape", [[2**40], [2**20, 2**20], [2**31, 2**29]])
def test_B24_dimensions_without_their_bytes_are_refused(server: RunningServer, shape: list[int]) -> None:
    answer = vjp_raw(server, "echo", dtype=F32, shape=shape)
    assert (answer.code, answer.reason) == (Code.INVALID_ARGUMENT, "BYTE_COUNT_MISMATCH")
    assert f"wanted {4 * np.prod(shape)}" in answer.text


@pytest.mark.parametrize("shapes", [((2**40, 1, 0), (1, 2**40, 0)), ((2**31, 1, 0), (1, 2**31, 0))])
def test_B24_empty_tensors_whose_broadcast_overflows_leave_the_server_alive(
    client: Client, shapes: tuple[tuple[int, ...], ...]
) -> None:
    inputs = {name: np.empty(shape, np.float32) for name, shape in zip(("x", "y"), shapes, strict=True)}
    with pytest.raises(InvalidRequest) as caught:
        client.vjp("product", inputs)
    assert caught.value.reason == "BAD_SHAPE"
    assert client.vjp("echo", 2.0).gradient == 1.0
