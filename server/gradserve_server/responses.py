"""Responses of the evaluating RPCs: ``Evaluation`` -> bytes."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

from gradserve.tensors import Array
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.wire import Piece, field_pieces, tensor_pieces

_Response: TypeAlias = pb.ForwardResponse | pb.VjpResponse | pb.JvpResponse | pb.HvpResponse | pb.JacobianResponse
_HEADS = 4096
"""How many heads of messages are kept: as many as the registry has ops, inputs and variables, unless those are more."""


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
    return _encode(pb.ForwardResponse, evaluation, [])


def encode_vjp(evaluation: Evaluation) -> bytes:
    """Encodes a ``VjpResponse``."""
    message = pb.VjpResponse
    gradients = _gradient_pieces(message.INPUT_GRADIENTS_FIELD_NUMBER, evaluation.input_gradients)
    if evaluation.variable_gradients:
        gradients += _gradient_pieces(message.VARIABLE_GRADIENTS_FIELD_NUMBER, evaluation.variable_gradients)
    return _encode(message, evaluation, gradients)


def encode_jvp(evaluation: Evaluation) -> bytes:
    """Encodes a ``JvpResponse``."""
    message = pb.JvpResponse
    return _encode(
        message, evaluation, _gradient_pieces(message.OUTPUT_TANGENTS_FIELD_NUMBER, evaluation.output_tangents)
    )


def encode_hvp(evaluation: Evaluation) -> bytes:
    """Encodes an ``HvpResponse``."""
    message = pb.HvpResponse
    return _encode(message, evaluation, _gradient_pieces(message.PRODUCTS_FIELD_NUMBER, evaluation.products))


def encode_jacobian(evaluation: Evaluation) -> bytes:
    """Encodes a ``JacobianResponse``."""
    message = pb.JacobianResponse
    jacobians: list[Piece] = []
    for (output, input_), found in evaluation.jacobians.items():
        head = pb.Jacobian(output=output, input=input_, status=found.status).SerializeToString()
        jacobians += field_pieces(
            message.JACOBIANS_FIELD_NUMBER, [head, *_maybe_pieces(pb.Jacobian.TENSOR_FIELD_NUMBER, found.array, "")]
        )
    return _encode(message, evaluation, jacobians)


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


def _encode(message: type[_Response], evaluation: Evaluation, derivatives: list[Piece]) -> bytes:
    """Returns a response: who answered, the outputs, and the fields of its derivatives.

    Fields of a message may come in any order, so that a message is the bytes of its fields, one after the other.
    """
    who = message(version=evaluation.version, fingerprint=evaluation.fingerprint).SerializeToString()
    pieces: list[Piece] = [who]
    for name, array in evaluation.outputs.items():
        pieces += field_pieces(message.OUTPUTS_FIELD_NUMBER, tensor_pieces(array, name))
    return b"".join(pieces + derivatives)


def _gradient_pieces(field: int, gradients: Mapping[str, MaybeGradient]) -> list[Piece]:
    pieces: list[Piece] = []
    for name, gradient in gradients.items():
        head = _gradient_head(name, gradient.status)
        pieces += field_pieces(field, [head, *_maybe_pieces(pb.Gradient.TENSOR_FIELD_NUMBER, gradient.array, name)])
    return pieces


@functools.lru_cache(_HEADS)
def _gradient_head(name: str, status: pb.GradientStatus) -> bytes:
    return pb.Gradient(name=name, status=status).SerializeToString()


def _maybe_pieces(field: int, array: Array | None, name: str) -> list[Piece]:
    return [] if array is None else field_pieces(field, tensor_pieces(array, name))
