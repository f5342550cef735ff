"""Requests: bytes to ``EvaluationRequest``, ``Evaluation`` to bytes, and what is refused before any op is looked at."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from gradserve.errors import InvalidRequest
from gradserve.tensors import decode, encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2 as pb_tensor
from gradserve_server.requests import _check_combined, decode_forward, decode_vjp
from gradserve_server.responses import Evaluation, MaybeGradient, encode_forward, encode_vjp

X = encode(np.arange(3, dtype=np.float32), "x")


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


@pytest.mark.parametrize("decode_message", [decode_forward, decode_vjp])
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x10short", b"\x0a\x02\xff\xff"])
def test_decode_of_bytes_that_are_no_message_is_a_decode_error(decode_message, data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_message(data)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.VjpRequest(op="square", inputs=[X, X]), "REPEATED_NAME"),
        (pb.VjpRequest(op="square", output_gradients=[X, X]), "REPEATED_NAME"),
        (pb.VjpRequest(op="square", version=-1), "BAD_VERSION"),
        (pb.VjpRequest(op="square", unconnected=7), "BAD_UNCONNECTED"),
    ],
)
def test_decode_vjp_of_a_wrong_request_is_refused(message: pb.VjpRequest, reason: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode_vjp(message.SerializeToString())
    assert raised.value.reason == reason


def test_decode_of_a_malformed_tensor_names_the_input() -> None:
    bad = encode(np.zeros(2, np.float32), "x")
    bad.data = b"123"
    with pytest.raises(InvalidRequest, match=r"^input 'x': ") as raised:
        decode_forward(pb.ForwardRequest(op="square", inputs=[bad]).SerializeToString())
    assert raised.value.reason == "BYTE_COUNT_MISMATCH"


def test_encode_forward_gives_the_outputs_in_order() -> None:
    outputs = {"b": np.float32(1)[...], "a": np.array([True])}
    evaluation = Evaluation(version=3, fingerprint="f", outputs=outputs)
    message = pb.ForwardResponse.FromString(encode_forward(evaluation))
    assert ([tensor.name for tensor in message.outputs], message.version, message.fingerprint) == (["b", "a"], 3, "f")
    np.testing.assert_array_equal(decode(message.outputs[1]), outputs["a"], strict=True)


def test_encode_vjp_sends_a_tensor_with_a_dense_gradient_alone() -> None:
    gradients = {
        "x": MaybeGradient(status=pb.GRADIENT_STATUS_DENSE, array=np.float32(6)[...]),
        "unused": MaybeGradient(status=pb.GRADIENT_STATUS_UNCONNECTED),
        "i": MaybeGradient(status=pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE),
    }
    evaluation = Evaluation(version=1, fingerprint="f", outputs={}, input_gradients=gradients)
    sent = pb.VjpResponse.FromString(encode_vjp(evaluation)).input_gradients
    assert [(g.name, g.status, g.HasField("tensor")) for g in sent] == [
        ("x", 1, True),
        ("unused", 2, False),
        ("i", 3, False),
    ]
    assert float(decode(sent[0].tensor)) == 6.0


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
        _check_combined(shapes, "inputs")


@pytest.mark.parametrize("shapes", [[(4096, 4096)] * 10, [(2**20, 0), ()], [(0, 0, 0)], []])
def test_usual_shapes_are_not_refused(shapes: list) -> None:
    _check_combined(shapes, "inputs")


def test_decode_vjp_reads_whether_variable_gradients_are_wanted() -> None:
    for wanted in (False, True):
        message = pb.VjpRequest(op="square", variable_gradients=wanted)
        assert decode_vjp(message.SerializeToString()).variable_gradients is wanted
