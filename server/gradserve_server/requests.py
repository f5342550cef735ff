"""Requests and responses of the evaluating RPCs: bytes -> ``EvaluationRequest``, ``Evaluation`` -> bytes."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from gradserve.errors import InvalidRequest, Unsupported, quote
from gradserve.signature import check_no_repeats
from gradserve.tensors import Array, decode, encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2

Item = TypeVar("Item")

_MAX_TENSORS = 4096
"""Most inputs, output gradients or names in a request: far more than any op has, few enough to look at each."""
_BROADCAST_LIMIT = 2**62
"""How many elements all inputs may have when they are broadcast together, whether or not an op does that."""
_EMPTY_LIMIT = 2**20
"""What the dimensions other than 0 of the empty tensors of a request may multiply to, all together."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What a caller asked for, decoded, not yet compared with any op."""

    op: str
    """Name of the op."""
    version: int
    """Version, 0 for the newest."""
    signature: str
    """Signature key, empty for the one that fits."""
    inputs: Mapping[str, Array]
    """Inputs by name."""
    output_gradients: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    """Output gradients by name of the output."""
    differentiate: Sequence[str] = ()
    """Inputs whose gradients are wanted, empty for all."""
    variable_gradients: bool = False
    """Whether gradients of the variables are wanted."""
    zero_unconnected: bool = False
    """Whether zeros stand for the gradient of an input that no output depends on."""


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


def decode_forward(data: bytes) -> EvaluationRequest:
    """Decodes a ``ForwardRequest``.

    Raises:
        DecodeError: The bytes are no such message.
        InvalidRequest: A tensor is malformed, or a name stands twice.
        Unsupported: A field is set whose capability is not served yet.
    """
    message = pb.ForwardRequest.FromString(data)
    _refuse_unserved(message)
    return EvaluationRequest(
        op=message.op,
        version=_version(message.version),
        signature=message.signature,
        inputs=_decode_all(message.inputs, "input"),
    )


def decode_vjp(data: bytes) -> EvaluationRequest:
    """Decodes a ``VjpRequest``; raises as ``decode_forward`` does."""
    message = pb.VjpRequest.FromString(data)
    _refuse_unserved(message)
    if message.unconnected not in pb.UnconnectedGradients.values():
        raise InvalidRequest(f"unconnected: no such value: got {message.unconnected}", reason="BAD_UNCONNECTED")
    return EvaluationRequest(
        op=message.op,
        version=_version(message.version),
        signature=message.signature,
        inputs=_decode_all(message.inputs, "input"),
        output_gradients=_decode_all(message.output_gradients, "output gradient"),
        differentiate=_check_length(list(message.differentiate), "differentiate"),
        variable_gradients=message.variable_gradients,
        zero_unconnected=message.unconnected == pb.UNCONNECTED_GRADIENTS_ZERO,
    )


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


def tensor_bytes(evaluation: Evaluation) -> int:
    """Returns how many bytes the tensors of a response have: the response itself is a little larger."""
    gradients = [*evaluation.input_gradients.values(), *evaluation.variable_gradients.values()]
    arrays = [*evaluation.outputs.values(), *(g.array for g in gradients if g.array is not None)]
    return sum(sum(map(len, array.flat)) if array.dtype == object else array.nbytes for array in arrays)


def _refuse_unserved(message: pb.ForwardRequest | pb.VjpRequest) -> None:
    unserved = ["seed"] if message.HasField("seed") else []
    if isinstance(message, pb.VjpRequest):
        unserved += [name for name in ("stack",) if getattr(message, name)]
    if unserved:
        raise Unsupported(
            f"{', '.join(unserved)}: not served by this version of the server; leave it unset",
            reason="CAPABILITY_NOT_SERVED",
            facts={"fields": ", ".join(unserved)},
        )


def _version(version: int) -> int:
    if version < 0:
        raise InvalidRequest(f"version: wanted at least 0, got {version}", reason="BAD_VERSION")
    return version


def _decode_all(tensors: Iterable[tensor_pb2.Tensor], what: str) -> dict[str, Array]:
    tensors = list(tensors)
    _check_length(tensors, f"{what}s")
    check_no_repeats([tensor.name for tensor in tensors], f"{what}s", "REPEATED_NAME")
    arrays = {tensor.name: decode(tensor, f"{what} {quote(tensor.name)}") for tensor in tensors}
    _check_combined([array.shape for array in arrays.values()], f"{what}s")
    return arrays


def _check_length(items: list[Item], place: str) -> list[Item]:
    if len(items) > _MAX_TENSORS:
        raise InvalidRequest(
            f"{place}: wanted at most {_MAX_TENSORS}, got {len(items)}",
            reason="TOO_MANY",
            facts={"place": place, "got": str(len(items))},
        )
    return items


def _check_combined(shapes: Sequence[tuple[int, ...]], place: str) -> None:
    """Refuses shapes whose sizes would overflow once an op combines them: TensorFlow then ends the process.

    Small messages can have them: (2^40, 1, 0) and (1, 2^40, 0) hold no byte, and broadcast to (2^40, 2^40, 0). Where
    nothing is empty, most ops run out of memory first, which is an error like any other; tf.where does not.
    """
    aligned = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    broadcast = math.prod(max(sizes) or 1 for sizes in aligned)
    empty = math.prod(size or 1 for shape in shapes if 0 in shape for size in shape)
    if broadcast > _BROADCAST_LIMIT or empty > _EMPTY_LIMIT:
        got = ", ".join(str(shape) for shape in shapes[:4])
        raise InvalidRequest(
            f"{place}: shapes must not overflow when they are combined: wanted at most {_BROADCAST_LIMIT} elements if all "
            f"are broadcast, and {_EMPTY_LIMIT} for the dimensions other than 0 of empty tensors in all; got {got}",
            reason="BAD_SHAPE",
            facts={"place": place, "got": got},
        )


def _encode_all(arrays: Mapping[str, Array]) -> list[tensor_pb2.Tensor]:
    return [encode(array, name) for name, array in arrays.items()]


def _encode_gradient(name: str, gradient: MaybeGradient) -> pb.Gradient:
    tensor = None if gradient.array is None else encode(gradient.array, name)
    return pb.Gradient(name=name, status=gradient.status, tensor=tensor)
