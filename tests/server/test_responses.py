"""Responses: ``Evaluation`` to bytes, for each of the evaluating RPCs."""

import numpy as np
import pytest

from gradserve.tensors import decode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.responses import (
    Evaluation,
    MaybeGradient,
    encode_forward,
    encode_hvp,
    encode_jacobian,
    encode_jvp,
    encode_vjp,
    tensor_bytes,
)

SIX = MaybeGradient(status=pb.GRADIENT_STATUS_DENSE, array=np.float32(6)[...])
UNCONNECTED = MaybeGradient(status=pb.GRADIENT_STATUS_UNCONNECTED)
INTEGER = MaybeGradient(status=pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE)
GRADIENTS = {"x": SIX, "unused": UNCONNECTED, "i": INTEGER}
ENCODERS = {
    "input_gradients": (encode_vjp, pb.VjpResponse),
    "variable_gradients": (encode_vjp, pb.VjpResponse),
    "output_tangents": (encode_jvp, pb.JvpResponse),
    "products": (encode_hvp, pb.HvpResponse),
}


def evaluation(**fields: object) -> Evaluation:
    return Evaluation(**{"version": 3, "fingerprint": "f", "outputs": {}, **fields})


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (encode_forward, pb.ForwardResponse),
        (encode_vjp, pb.VjpResponse),
        (encode_jvp, pb.JvpResponse),
        (encode_hvp, pb.HvpResponse),
        (encode_jacobian, pb.JacobianResponse),
    ],
)
def test_encode_gives_the_outputs_in_order_and_who_answered(encode, message) -> None:
    outputs = {"b": np.float32(1)[...], "a": np.array([True])}
    sent = message.FromString(encode(evaluation(outputs=outputs)))
    assert ([tensor.name for tensor in sent.outputs], sent.version, sent.fingerprint) == (["b", "a"], 3, "f")
    np.testing.assert_array_equal(decode(sent.outputs[1]), outputs["a"], strict=True)


@pytest.mark.parametrize("field", ENCODERS)
def test_encode_sends_a_tensor_with_a_dense_gradient_alone(field: str) -> None:
    encode, message = ENCODERS[field]
    sent = getattr(message.FromString(encode(evaluation(**{field: GRADIENTS}))), field)
    assert [(g.name, g.status, g.HasField("tensor")) for g in sent] == [
        ("x", pb.GRADIENT_STATUS_DENSE, True),
        ("unused", pb.GRADIENT_STATUS_UNCONNECTED, False),
        ("i", pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE, False),
    ]
    assert (float(decode(sent[0].tensor)), sent[0].tensor.name) == (6.0, "x")


def test_encode_jacobian_names_output_and_input_of_each() -> None:
    rows = MaybeGradient(status=pb.GRADIENT_STATUS_DENSE, array=np.arange(6, dtype=np.float32).reshape(2, 3))
    jacobians = {("y", "x"): rows, ("y", "i"): INTEGER, ("z", "x"): UNCONNECTED}
    sent = pb.JacobianResponse.FromString(encode_jacobian(evaluation(jacobians=jacobians))).jacobians
    assert [(j.output, j.input, j.status, j.HasField("tensor")) for j in sent] == [
        ("y", "x", pb.GRADIENT_STATUS_DENSE, True),
        ("y", "i", pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE, False),
        ("z", "x", pb.GRADIENT_STATUS_UNCONNECTED, False),
    ]
    np.testing.assert_array_equal(decode(sent[0].tensor), rows.array, strict=True)


@pytest.mark.parametrize("field", [*ENCODERS, "jacobians"])
def test_tensor_bytes_counts_outputs_and_every_kind_of_gradient(field: str) -> None:
    outputs = {"y": np.zeros(10, np.float64), "s": np.array([b"abc", b""], object)}
    rows = MaybeGradient(status=pb.GRADIENT_STATUS_DENSE, array=np.zeros((2, 3), np.float16))
    assert tensor_bytes(evaluation(outputs=outputs, **{field: {"x": rows, "u": UNCONNECTED}})) == 80 + 3 + 12
