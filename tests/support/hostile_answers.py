"""Right answers to hostile requests: what numpy makes of the ops that it can compute, and the shapes of all others."""

from typing import Any

import numpy as np
from google.protobuf.message import Message
from tests.support.hostile import REQUESTS, tensor_fields

from gradserve.tensors import decode
from gradserve.v1 import gradient_service_pb2 as pb

Arrays = dict[str, np.ndarray]
RESPONSES: dict[str, type[Message]] = {
    "Forward": pb.ForwardResponse,
    "Vjp": pb.VjpResponse,
    "Jvp": pb.JvpResponse,
    "Hvp": pb.HvpResponse,
    "Jacobian": pb.JacobianResponse,
    "GetOp": pb.GetOpResponse,
    "ListOps": pb.ListOpsResponse,
}
_DENSE = pb.GRADIENT_STATUS_DENSE
_LARGEST = 1e6  # of larger numbers, sums depend on their order


def check_answer(method: str, request: bytes, response: bytes) -> None:
    """Compares an answer with its request; raises an AssertionError where it is not right."""
    if method in ("GetOp", "ListOps"):
        RESPONSES[method].FromString(response)
        return
    asked: Any = REQUESTS[method].FromString(request)
    answer: Any = RESPONSES[method].FromString(response)
    inputs = _arrays(asked.inputs)
    outputs = _arrays(answer.outputs)
    with np.errstate(all="ignore"):
        if asked.op == "multiply_with_grad":
            assert_equal(outputs["output"], inputs["x"] * inputs["y"])
        elif asked.op == "pick":
            _check_pick(inputs, outputs)
    _check_shapes(method, asked, answer, {**inputs, "seed": inputs.get("seed", np.zeros(2))}, outputs)
    everything = [array for field in tensor_fields(asked) for array in _arrays(field).values()]
    if asked.op == "multiply_with_grad" and all((np.abs(array) < _LARGEST).all() for array in everything):
        _MULTIPLIED[method](asked, answer, inputs, outputs["output"])


def _check_pick(inputs: Arrays, outputs: Arrays) -> None:
    sign = -1 if inputs["mode"][()] == b"minus" else 1
    picked = inputs["x"][inputs["rows"]] * np.float32(sign if inputs["keep"] else 0)
    assert outputs["mode"][()] == inputs["mode"][()]
    assert_equal(outputs["picked"], picked if inputs["keep"] else np.zeros_like(picked))
    assert_equal(outputs["state/h"], inputs["state/h"] + inputs["state/steps/0"])


def _check_shapes(method: str, asked: Any, answer: Any, inputs: Arrays, outputs: Arrays) -> None:
    """Compares the shape of each gradient with that of its place."""
    stack = (asked.stack,) if method == "Vjp" and asked.stack else ()
    if method == "Vjp":
        found = [(g, stack + inputs[g.name].shape) for g in answer.input_gradients]
    elif method == "Jvp":
        found = [(g, outputs[g.name].shape) for g in answer.output_tangents]
    elif method == "Hvp":
        found = [(g, inputs[g.name].shape) for g in answer.products]
    elif method == "Jacobian":
        found = [(g, outputs[g.output].shape + inputs[g.input].shape) for g in answer.jacobians]
    else:
        found = []
    assert found or method == "Forward"
    for gradient, shape in found:
        assert gradient.status != pb.GRADIENT_STATUS_UNSPECIFIED
        assert gradient.HasField("tensor") is (gradient.status == _DENSE)
        if gradient.status == _DENSE:
            assert decode(gradient.tensor).shape == shape


def _vjp(asked: Any, answer: Any, inputs: Arrays, output: np.ndarray) -> None:
    given = _arrays(asked.output_gradients).get("output", np.ones_like(output))
    rows = (
        given.reshape(asked.stack, *output.shape)
        if asked.stack and asked.output_gradients
        else [given] * max(1, asked.stack)
    )
    for gradient in answer.input_gradients:
        other = inputs["y" if gradient.name == "x" else "x"]
        wanted = [_sum_to(row * other, inputs[gradient.name].shape) for row in rows]
        assert_close(decode(gradient.tensor), np.stack(wanted) if asked.stack else wanted[0])


def _jvp(asked: Any, answer: Any, inputs: Arrays, output: np.ndarray) -> None:
    tangents = _arrays(asked.tangents)
    terms = [tangent * inputs["y" if name == "x" else "x"] for name, tangent in tangents.items()]
    assert_close(decode(answer.output_tangents[0].tensor), sum(terms, np.zeros_like(output)))


def _hvp(asked: Any, answer: Any, inputs: Arrays, output: np.ndarray) -> None:
    """Of x y the gradient of x depends on y alone, and the other way around."""
    dy, vectors = _arrays(asked.output_gradients).get("output", np.ones_like(output)), _arrays(asked.vectors)
    for product in answer.products:
        vector = vectors.get("y" if product.name == "x" else "x")
        zeros = asked.unconnected == pb.UNCONNECTED_GRADIENTS_ZERO
        assert (product.status == _DENSE) is (vector is not None or zeros)
        if product.status == _DENSE:
            wanted = np.zeros_like(output) if vector is None else dy * vector
            assert_close(decode(product.tensor), _sum_to(wanted, inputs[product.name].shape))


def _jacobian(_: Any, answer: Any, inputs: Arrays, output: np.ndarray) -> None:
    units = np.eye(output.size, dtype=output.dtype).reshape(output.size, *output.shape)
    for jacobian in answer.jacobians:
        of_input, other = inputs[jacobian.input], inputs["y" if jacobian.input == "x" else "x"]
        rows = [_sum_to(unit * other, of_input.shape) for unit in units]
        assert_close(decode(jacobian.tensor), np.reshape(rows, output.shape + of_input.shape))


def _sum_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sums an array over the axes along which a shape was broadcast."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and array.shape[axis] != 1)
    return array.sum(axis=axes, keepdims=True)


_MULTIPLIED: dict[str, Any] = {
    "Forward": lambda *_: None,
    "Vjp": _vjp,
    "Jvp": _jvp,
    "Hvp": _hvp,
    "Jacobian": _jacobian,
}


def assert_equal(got: np.ndarray, wanted: np.ndarray) -> None:
    """Compares arrays by value, NaNs included."""
    np.testing.assert_array_equal(_flushed(got), _flushed(wanted))


def assert_close(got: np.ndarray, wanted: Any) -> None:
    """Compares arrays in shape and dtype, and in value up to rounding."""
    assert got.shape == np.shape(wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def _arrays(tensors: Any) -> Arrays:
    return {tensor.name: _flushed(decode(tensor)) for tensor in tensors}


def _flushed(array: np.ndarray) -> np.ndarray:
    """Returns an array with zeros for denormal numbers, which is what TensorFlow's kernels take them for."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.abs(array) < np.finfo(array.dtype).tiny, array.dtype.type(0), array)
