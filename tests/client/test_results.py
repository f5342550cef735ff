"""Results of each call: what a response says, and the shortcuts where there is exactly one of something."""

import dataclasses

import numpy as np
import pytest

from gradserve.methods import hvp_result, jacobian_result, jvp_result, vjp_result
from gradserve.tensors import encode
from gradserve.v1 import gradient_service_pb2 as pb

X = np.arange(3, dtype=np.float32)
DENSE, UNCONNECTED = pb.GRADIENT_STATUS_DENSE, pb.GRADIENT_STATUS_UNCONNECTED
INTEGER = pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE
READ = {
    "gradient": (pb.VjpResponse, "input_gradients", vjp_result),
    "tangent": (pb.JvpResponse, "output_tangents", jvp_result),
    "product": (pb.HvpResponse, "products", hvp_result),
}
EVERY_KIND = pytest.mark.parametrize("kind", READ)


def result_of(kind: str, **statuses: int):
    """Returns the result of a response with a gradient of each name and status."""
    message, field, read = READ[kind]
    gradients = [
        pb.Gradient(name=name, status=status, tensor=encode(X, name) if status == DENSE else None)
        for name, status in statuses.items()
    ]
    return read(message(outputs=[encode(X, "y")], version=3, fingerprint="f", **{field: gradients}), {})


def jacobian_result_of(**statuses: int):
    """Returns the result of a response with a Jacobian for each "output__input" and status."""
    jacobians = [
        pb.Jacobian(
            output=name.split("__")[0],
            input=name.split("__")[1],
            status=status,
            tensor=encode(X) if status == DENSE else None,
        )
        for name, status in statuses.items()
    ]
    return jacobian_result(pb.JacobianResponse(outputs=[encode(X, "y")], version=3, jacobians=jacobians), {})


@EVERY_KIND
def test_result_holds_arrays_by_name_and_why_there_is_none(kind: str) -> None:
    result = result_of(kind, a=DENSE, b=UNCONNECTED, n=INTEGER)
    by_name = getattr(result, READ[kind][1])
    assert {name: value is None for name, value in by_name.items()} == {"a": False, "b": True, "n": True}
    assert result.status == {"a": "dense", "b": "unconnected", "n": "not_differentiable"}
    assert (result.version, result.fingerprint, list(result.outputs)) == (3, "f", ["y"])
    np.testing.assert_array_equal(by_name["a"], X, strict=True)


@EVERY_KIND
def test_result_shortcut_is_the_only_one(kind: str) -> None:
    np.testing.assert_array_equal(getattr(result_of(kind, a=DENSE), kind), X, strict=True)
    assert getattr(result_of(kind, a=UNCONNECTED), kind) is None


@EVERY_KIND
@pytest.mark.parametrize("status", [DENSE, UNCONNECTED])
def test_result_shortcut_passes_over_integers_such_as_a_seed(kind: str, status: int) -> None:
    shortcut = getattr(result_of(kind, seed=INTEGER, a=status, mode=INTEGER), kind)
    assert (shortcut is None) is (status == UNCONNECTED)


@EVERY_KIND
def test_result_shortcut_of_integers_alone_is_none_if_there_is_one(kind: str) -> None:
    assert getattr(result_of(kind, n=INTEGER), kind) is None
    with pytest.raises(ValueError, match=f"not exactly one {kind} but 2: n, m"):
        getattr(result_of(kind, n=INTEGER, m=INTEGER), kind)


@EVERY_KIND
def test_result_shortcut_of_several_or_none_raises_value_error_naming_them(kind: str) -> None:
    with pytest.raises(ValueError, match=f"not exactly one {kind} but 2: a, b; take one by name"):
        getattr(result_of(kind, a=DENSE, n=INTEGER, b=UNCONNECTED), kind)
    with pytest.raises(ValueError, match=f"not exactly one {kind} but 0: "):
        getattr(result_of(kind), kind)


def test_jacobian_result_holds_jacobians_by_output_and_then_by_input() -> None:
    result = jacobian_result_of(y__x=DENSE, y__u=UNCONNECTED, z__x=DENSE, z__u=INTEGER)
    assert {output: list(by_input) for output, by_input in result.jacobians.items()} == {
        "y": ["x", "u"],
        "z": ["x", "u"],
    }
    assert result.status["y"] == {"x": "dense", "u": "unconnected"}
    assert result.status["z"] == {"x": "dense", "u": "not_differentiable"}
    np.testing.assert_array_equal(result.jacobians["z"]["x"], X, strict=True)
    assert result.jacobians["y"]["u"] is None


def test_jacobian_shortcut_is_the_only_one_apart_from_those_by_integers() -> None:
    assert jacobian_result_of(y__x=UNCONNECTED).jacobian is None
    np.testing.assert_array_equal(jacobian_result_of(y__x=DENSE, y__seed=INTEGER).jacobian, X, strict=True)


@pytest.mark.parametrize(
    ("statuses", "text"),
    [
        ({}, "not exactly one differentiable output but 0: "),
        ({"y__x": DENSE, "z__x": DENSE}, "not exactly one differentiable output but 2: y, z"),
        ({"y__x": DENSE, "y__u": UNCONNECTED, "y__n": INTEGER}, "not exactly one Jacobian but 2: x, u"),
    ],
)
def test_jacobian_shortcut_of_several_or_none_raises_value_error(statuses: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _ = jacobian_result_of(**statuses).jacobian


@pytest.mark.parametrize("shortcut", [*READ, "jacobian"])
def test_results_are_frozen_and_their_arrays_the_callers_to_write(shortcut: str) -> None:
    result = jacobian_result_of(y__x=DENSE) if shortcut == "jacobian" else result_of(shortcut, a=DENSE)
    for field in dataclasses.fields(result):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, field.name, None)
    result.output[0] = 7.0
    getattr(result, shortcut)[0] = 7.0


@EVERY_KIND
def test_status_that_only_newer_servers_know_is_unspecified(kind: str) -> None:
    result = result_of(kind, a=99)
    assert (result.status, getattr(result, kind)) == ({"a": "unspecified"}, None)
