"""Responses of the evaluating RPCs: ``Evaluation`` -> bytes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gradserve.tensors import Array, encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MaybeGradient:
    """The gradient of one input or variable, or why there is none."""

    status: pb.GradientStatus
    """Whether there is one."""
    array: Array | None = None
    """The gradient, if the status is DENSE."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What came out of a call."""

    version: int
    """Version of the op that answered."""
    fingerprint: str
    """Fingerprint of that version."""
    outputs: Mapping[str, Array]
    """Outputs by name, in order."""
    input_gradients: Mapping[str, MaybeGradient] = dataclasses.field(default_factory=dict)
    """Gradients by name of the input, in order."""
    variable_gradients: Mapping[str, MaybeGradient] = dataclasses.field(default_factory=dict)
    """Gradients by name of the variable, in order; empty if they were not asked for."""
    output_tangents: Mapping[str, MaybeGradient] = dataclasses.field(default_factory=dict)
    """Tangents by name of the output, in order."""
    products: Mapping[str, MaybeGradient] = dataclasses.field(default_factory=dict)
    """Hessian-vector products by name of the input, in order."""
    jacobians: Mapping[tuple[str, str], MaybeGradient] = dataclasses.field(default_factory=dict)
    """Jacobians by names of the output and the input, in order."""


def encode_forward(evaluation: Evaluation) -> bytes:
    """Encodes a ``ForwardResponse``."""
    return pb.ForwardResponse(
        outputs=_encode_all(evaluation.outputs), version=evaluation.version, fingerprint=evaluation.fingerprint
    ).SerializeToString()


def encode_vjp(evaluation: Evaluation) -> bytes:
    """Encodes a ``VjpResponse``."""
    return pb.VjpResponse(
        outputs=_encode_all(evaluation.outputs),
        input_gradients=[_encode_gradient(name, g) for name, g in evaluation.input_gradients.items()],
        variable_gradients=[_encode_gradient(name, g) for name, g in evaluation.variable_gradients.items()],
        version=evaluation.version,
        fingerprint=evaluation.fingerprint,
    ).SerializeToString()


def encode_jvp(evaluation: Evaluation) -> bytes:
    """Encodes a ``JvpResponse``."""
    return pb.JvpResponse(
        outputs=_encode_all(evaluation.outputs),
        output_tangents=[_encode_gradient(name, g) for name, g in evaluation.output_tangents.items()],
        version=evaluation.version,
        fingerprint=evaluation.fingerprint,
    ).SerializeToString()


def encode_hvp(evaluation: Evaluation) -> bytes:
    """Encodes an ``HvpResponse``."""
    return pb.HvpResponse(
        outputs=_encode_all(evaluation.outputs),
        products=[_encode_gradient(name, g) for name, g in evaluation.products.items()],
        version=evaluation.version,
        fingerprint=evaluation.fingerprint,
    ).SerializeToString()


def encode_jacobian(evaluation: Evaluation) -> bytes:
    """Encodes a ``JacobianResponse``."""
    return pb.JacobianResponse(
        outputs=_encode_all(evaluation.outputs),
        jacobians=[
            pb.Jacobian(output=output, input=input_, status=found.status, tensor=_encode_maybe(found.array, ""))
            for (output, input_), found in evaluation.jacobians.items()
        ],
        version=evaluation.version,
        fingerprint=evaluation.fingerprint,
    ).SerializeToString()


def tensor_bytes(evaluation: Evaluation) -> int:
    """Returns how many bytes the tensors of a response have: the response itself is a little larger."""
    groups: tuple[Mapping[Any, MaybeGradient], ...] = (
        evaluation.input_gradients,
        evaluation.variable_gradients,
        evaluation.output_tangents,
        evaluation.products,
        evaluation.jacobians,
    )
    gradients = [gradient for group in groups for gradient in group.values()]
    arrays = [*evaluation.outputs.values(), *(g.array for g in gradients if g.array is not None)]
    return sum(sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in arrays)


def _encode_all(arrays: Mapping[str, Array]) -> list[tensor_pb2.Tensor]:
    return [encode(array, name) for name, array in arrays.items()]


def _encode_gradient(name: str, gradient: MaybeGradient) -> pb.Gradient:
    return pb.Gradient(name=name, status=gradient.status, tensor=_encode_maybe(gradient.array, name))


def _encode_maybe(array: Array | None, name: str) -> tensor_pb2.Tensor | None:
    return None if array is None else encode(array, name)
