"""``OpInfo`` and its form on the wire."""

import dataclasses

import pytest

from gradserve.dtypes import dtype_named
from gradserve.op_info import OpInfo, op_info_from_message, op_info_to_message
from gradserve.signature import Signature, TensorSpec
from gradserve.v1 import op_pb2


def signature(key: str, dtype: str) -> Signature:
    x, output = (
        TensorSpec(name=name, dtype=dtype_named(dtype), shape=None, differentiable=True) for name in ("x", "output")
    )
    return Signature(key=key, inputs={"x": x}, outputs={"output": output}, batch_axes={"x": 0})


INFO = OpInfo(
    name="square_with_grad",
    version=3,
    documentation="Square.\n\nWith more.",
    signatures={"serving_default": signature("serving_default", "float32"), "float64": signature("float64", "float64")},
    gradient="exact",
    elementwise=True,
    stateful=False,
    device="cpu:0",
    fingerprint="0123abcd",
)
FAILED = dataclasses.replace(INFO, signatures={}, device="", fingerprint="", failure="IMPORT_FAILED: no such module")


@pytest.mark.parametrize("info", [INFO, FAILED, dataclasses.replace(INFO, stateful=True, elementwise=False)])
def test_op_info_to_message_and_back_is_the_same(info: OpInfo) -> None:
    message = op_pb2.Op.FromString(op_info_to_message(info).SerializeToString())
    assert op_info_from_message(message) == info
    assert op_info_to_message(op_info_from_message(message)) == message


def test_op_info_from_message_keeps_the_order_of_signatures() -> None:
    assert list(op_info_from_message(op_info_to_message(INFO)).signatures) == ["serving_default", "float64"]


@pytest.mark.parametrize("kind", ["exact", "surrogate", "unchecked", "unspecified"])
def test_op_info_gradient_kind_survives_the_wire(kind: str) -> None:
    info = dataclasses.replace(INFO, gradient=kind)
    message = op_info_to_message(info)
    assert op_pb2.GradientKind.Name(message.gradient) == f"GRADIENT_KIND_{kind.upper()}"
    assert op_info_from_message(message).gradient == kind


@pytest.mark.parametrize(("info", "state"), [(INFO, op_pb2.OP_STATE_READY), (FAILED, op_pb2.OP_STATE_FAILED)])
def test_op_info_state_says_whether_it_failed(info: OpInfo, state: int) -> None:
    assert op_info_to_message(info).state == state


def test_op_info_from_message_with_a_gradient_kind_of_the_future_is_unspecified() -> None:
    message = op_info_to_message(INFO)
    message.gradient = 99
    assert op_info_from_message(message).gradient == "unspecified"


def test_op_info_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        INFO.name = "other"
