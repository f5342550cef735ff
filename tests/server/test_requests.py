"""Requests: bytes to ``EvaluationRequest``, and what is refused before any op is looked at."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from gradserve.errors import InvalidRequest
from gradserve.tensors import encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2 as pb_tensor
from gradserve_server.requests import (
    check_combined,
    decode_forward,
    decode_hvp,
    decode_jacobian,
    decode_jvp,
    decode_vjp,
)

X = encode(np.arange(3, dtype=np.float32), "x")
DECODERS = {
    pb.ForwardRequest: decode_forward,
    pb.VjpRequest: decode_vjp,
    pb.JvpRequest: decode_jvp,
    pb.HvpRequest: decode_hvp,
    pb.JacobianRequest: decode_jacobian,
}
EVERY_MESSAGE = pytest.mark.parametrize("message", DECODERS)
VECTORS = [(pb.JvpRequest, "tangents"), (pb.HvpRequest, "vectors")]


def test_decode_vjp_reads_every_served_field() -> None:
    message = pb.VjpRequest(
        op="square", version=2, signature="float64", inputs=[X], output_gradients=[encode(np.float32(2), "output")]
    )
    message.differentiate.append("x")
    message.unconnected = pb.UNCONNECTED_GRADIENTS_ZERO
    request = decode_vjp(message.SerializeToString())
    assert (request.op, request.version, request.signature) == ("square", 2, "float64")
    assert (request.differentiate, request.zero_unconnected) == (["x"], True)
    np.testing.assert_array_equal(request.inputs["x"], np.arange(3, dtype=np.float32), strict=True)
    assert float(request.output_gradients["output"]) == 2.0


@pytest.mark.parametrize("value", [pb.UNCONNECTED_GRADIENTS_UNSPECIFIED, pb.UNCONNECTED_GRADIENTS_NONE])
def test_decode_vjp_without_zeros_asked_for_gives_none(value) -> None:
    assert not decode_vjp(pb.VjpRequest(op="square", unconnected=value).SerializeToString()).zero_unconnected


def test_decode_vjp_without_seed_and_stack_has_neither() -> None:
    request = decode_vjp(pb.VjpRequest(op="square", stack=0).SerializeToString())
    assert (request.seed, request.stack) == (None, 0)


def test_decode_forward_keeps_a_seed_of_zero() -> None:
    assert decode_forward(pb.ForwardRequest(op="square", seed=0).SerializeToString()).seed == 0


@pytest.mark.parametrize(("message", "field"), VECTORS)
def test_decode_jvp_and_hvp_read_their_vectors(message, field: str) -> None:
    sent = message(op="square", inputs=[X], unconnected=pb.UNCONNECTED_GRADIENTS_ZERO, seed=-5, **{field: [X]})
    request = DECODERS[message](sent.SerializeToString())
    assert (request.op, request.seed, request.zero_unconnected, request.stack) == ("square", -5, True, 0)
    np.testing.assert_array_equal(request.vectors["x"], np.arange(3, dtype=np.float32), strict=True)


def test_decode_hvp_reads_output_gradients() -> None:
    sent = pb.HvpRequest(op="square", output_gradients=[encode(np.float32(2), "output")])
    assert float(decode_hvp(sent.SerializeToString()).output_gradients["output"]) == 2.0


def test_decode_jacobian_reads_what_to_differentiate_by() -> None:
    sent = pb.JacobianRequest(op="square", version=2, signature="float64", differentiate=["y", "x"], unconnected=2)
    request = decode_jacobian(sent.SerializeToString())
    assert (request.version, request.signature, request.differentiate) == (2, "float64", ["y", "x"])
    assert request.zero_unconnected


def test_decode_vjp_reads_the_stack_up_to_its_largest() -> None:
    assert decode_vjp(pb.VjpRequest(op="square", stack=2**32 - 1).SerializeToString()).stack == 2**32 - 1


@EVERY_MESSAGE
@pytest.mark.parametrize("seed", [None, 0, 7, -1, 2**63 - 1, -(2**63)])
def test_decode_tells_no_seed_from_any_seed(message, seed: int | None) -> None:
    assert DECODERS[message](message(op="square", seed=seed).SerializeToString()).seed == seed


@EVERY_MESSAGE
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x10short", b"\x0a\x02\xff\xff"])
def test_decode_of_bytes_that_are_no_message_is_a_decode_error(message, data: bytes) -> None:
    with pytest.raises(DecodeError):
        DECODERS[message](data)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        *((message(op="square", inputs=[X, X]), "REPEATED_NAME") for message in DECODERS),
        *((message(op="square", version=-1), "BAD_VERSION") for message in DECODERS),
        *((message(op="square", unconnected=7), "BAD_UNCONNECTED") for message in list(DECODERS)[1:]),
        *((message(op="square", **{field: [X, X]}), "REPEATED_NAME") for message, field in VECTORS),
        (pb.VjpRequest(op="square", output_gradients=[X, X]), "REPEATED_NAME"),
        (pb.HvpRequest(op="square", output_gradients=[X, X]), "REPEATED_NAME"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_decode_of_a_wrong_request_is_refused(message, reason: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        DECODERS[type(message)](message.SerializeToString())
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("message", "field", "place"),
    [
        *((message, "inputs", "input 'x': ") for message in DECODERS),
        (pb.VjpRequest, "output_gradients", "output gradient 'x': "),
        (pb.HvpRequest, "output_gradients", "output gradient 'x': "),
        (pb.JvpRequest, "tangents", "tangent 'x': "),
        (pb.HvpRequest, "vectors", "vector 'x': "),
    ],
)
def test_decode_of_a_malformed_tensor_names_its_place(message, field: str, place: str) -> None:
    bad = encode(np.zeros(2, np.float32), "x")
    bad.data = b"123"
    with pytest.raises(InvalidRequest, match=f"^{place}") as raised:
        DECODERS[message](message(op="square", **{field: [bad]}).SerializeToString())
    assert raised.value.reason == "BYTE_COUNT_MISMATCH"


def test_decode_of_more_tensors_than_any_op_has_is_refused_at_once() -> None:
    message = pb.VjpRequest(op="square", inputs=[pb_tensor.Tensor()] * 400_000)
    with pytest.raises(InvalidRequest, match="inputs: wanted at most 4096, got 400000") as raised:
        decode_vjp(message.SerializeToString())
    assert raised.value.reason == "TOO_MANY"


def test_decode_of_too_many_names_to_differentiate_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="differentiate: wanted at most 4096, got 5000"):
        decode_vjp(pb.VjpRequest(op="square", differentiate=["x"] * 5000).SerializeToString())


@pytest.mark.parametrize("shapes", [[(2**22, 1, 1), (1, 2**22, 1), (1, 1, 2**22)], [(2**31, 0), (1,)]])
def test_shapes_that_overflow_when_they_are_combined_are_refused(shapes: list) -> None:
    with pytest.raises(InvalidRequest, match="shapes must not overflow when they are combined"):
        check_combined(tuple(shapes), "inputs")


@pytest.mark.parametrize("rows", [1, 2])
def test_shapes_that_overflow_for_each_of_many_rows_are_refused(rows: int) -> None:
    shapes = [(2**20, 1, 0), (1, 2**42, 1)]  # of exactly as many elements as may be
    if rows == 1:
        check_combined(tuple(shapes), "inputs")
    else:
        with pytest.raises(InvalidRequest, match="for 2 rows") as raised:
            check_combined(tuple(shapes), "inputs", rows=rows)
        assert raised.value.reason == "BAD_SHAPE"


@pytest.mark.parametrize("shapes", [[(4096, 4096)] * 10, [(2**20, 0), ()], [(0, 0, 0)], []])
def test_usual_shapes_are_not_refused(shapes: list) -> None:
    check_combined(tuple(shapes), "inputs")


def test_decode_vjp_reads_whether_variable_gradients_are_wanted() -> None:
    for wanted in (False, True):
        message = pb.VjpRequest(op="square", variable_gradients=wanted)
        assert decode_vjp(message.SerializeToString()).variable_gradients is wanted
