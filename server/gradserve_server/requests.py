"""Requests of the evaluating RPCs: bytes -> ``EvaluationRequest``."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from gradserve.errors import InvalidRequest, quote
from gradserve.gradient_check import Line
from gradserve.signature import check_no_repeats
from gradserve.tensors import Array, decode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.wire import Elements, parse

Items = TypeVar("Items", bound=Sequence[Any])
_Message = (
    pb.ForwardRequest | pb.VjpRequest | pb.JvpRequest | pb.HvpRequest | pb.JacobianRequest | pb.CheckGradientRequest
)

_MOST_OF_A_CHECK = {"points": 100, "directions": 1000, "max_elements": 4096, "max_seconds": 600}
_MOST_POINTS_OF_A_LINE = 4096

_UNCONNECTED = frozenset(pb.UnconnectedGradients.values())
_MAX_TENSORS = 4096
"""Most inputs, output gradients or names in a request: far more than any op has, few enough to look at each."""
_BROADCAST_LIMIT = 2**62
"""How many elements all inputs may have when they are broadcast together, whether or not an op does that."""
_SHAPES = 4096
"""How many sets of shapes are kept that were found to be good."""
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
    seed: int | None = None
    """Seed, for the input that takes it."""
    output_gradients: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    """Output gradients by name of the output."""
    differentiate: Sequence[str] = ()
    """Inputs whose gradients are wanted, empty for all."""
    stack: int = 0
    """Size of the leading axis of output gradients; 0 if they have none."""
    vectors: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    """Tangents, or vectors to multiply, by name of the input."""
    variable_gradients: bool = False
    """Whether gradients of the variables are wanted."""
    zero_unconnected: bool = False
    """Whether zeros stand for the gradient of an input that no output depends on."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """A request to check a gradient, decoded."""

    call: EvaluationRequest
    """The op, and the inputs at which to check; drawn if there are none."""
    options: Mapping[str, Any]
    """Those of points, directions, max_elements, max_seconds and draw_seed that were set."""
    line: Line | None
    """A line along which to evaluate the op."""


def decode_forward(data: bytes) -> EvaluationRequest:
    """Decodes a ``ForwardRequest``.

    Raises:
        DecodeError: The bytes are no such message.
        InvalidRequest: A tensor is malformed, or a name stands twice.
    """
    return EvaluationRequest(**_common(*parse(pb.ForwardRequest, data)))


def decode_vjp(data: bytes) -> EvaluationRequest:
    """Decodes a ``VjpRequest``; raises as ``decode_forward`` does."""
    message, elements = parse(pb.VjpRequest, data)
    return EvaluationRequest(
        **_common(message, elements),
        output_gradients=_decode_all(message, "output_gradients", elements),
        stack=message.stack,
        differentiate=_check_length(list(message.differentiate), "differentiate"),
        variable_gradients=message.variable_gradients,
        zero_unconnected=_zero_unconnected(message.unconnected),
    )


def decode_jvp(data: bytes) -> EvaluationRequest:
    """Decodes a ``JvpRequest``; raises as ``decode_forward`` does."""
    message, elements = parse(pb.JvpRequest, data)
    return EvaluationRequest(
        **_common(message, elements),
        vectors=_decode_all(message, "tangents", elements),
        zero_unconnected=_zero_unconnected(message.unconnected),
    )


def decode_hvp(data: bytes) -> EvaluationRequest:
    """Decodes an ``HvpRequest``; raises as ``decode_forward`` does."""
    message, elements = parse(pb.HvpRequest, data)
    return EvaluationRequest(
        **_common(message, elements),
        output_gradients=_decode_all(message, "output_gradients", elements),
        vectors=_decode_all(message, "vectors", elements),
        zero_unconnected=_zero_unconnected(message.unconnected),
    )


def decode_jacobian(data: bytes) -> EvaluationRequest:
    """Decodes a ``JacobianRequest``; raises as ``decode_forward`` does."""
    message, elements = parse(pb.JacobianRequest, data)
    return EvaluationRequest(
        **_common(message, elements),
        differentiate=_check_length(list(message.differentiate), "differentiate"),
        zero_unconnected=_zero_unconnected(message.unconnected),
    )


def decode_check_gradient(data: bytes) -> CheckRequest:
    """Decodes a ``CheckGradientRequest``; raises as ``decode_forward`` does, and for an option out of its range (BAD_OPTION)."""
    message, elements = parse(pb.CheckGradientRequest, data)
    options: dict[str, Any] = {"draw_seed": message.draw_seed}
    for name, most in _MOST_OF_A_CHECK.items():
        value = getattr(message, name)
        if not 0 <= value <= most:  # a NaN is in no range
            raise _bad_option(name, f"0 to {most}", value)
        if value:
            options[name] = value
    line = _decode_line(message.line) if message.HasField("line") else None
    return CheckRequest(call=EvaluationRequest(**_common(message, elements)), options=options, line=line)


def _decode_line(message: pb.Line) -> Line:
    if not -math.inf < message.low < message.high < math.inf:
        raise _bad_option("line", "a finite low below a finite high", f"{message.low} to {message.high}")
    if not 2 <= message.points <= _MOST_POINTS_OF_A_LINE:
        raise _bad_option("line.points", f"2 to {_MOST_POINTS_OF_A_LINE}", message.points)
    return Line(input=message.input, low=message.low, high=message.high, points=message.points)


def _bad_option(name: str, wanted: str, got: object) -> InvalidRequest:
    return InvalidRequest(
        f"{name}: wanted {wanted}, got {got}",
        reason="BAD_OPTION",
        facts={"option": name, "wanted": wanted, "got": str(got)},
    )


def _common(message: "_Message", elements: Elements) -> dict[str, Any]:
    """Returns what all these requests have."""
    if message.version < 0:
        raise InvalidRequest(f"version: wanted at least 0, got {message.version}", reason="BAD_VERSION")
    return {
        "op": message.op,
        "version": message.version,
        "signature": message.signature,
        "inputs": _decode_all(message, "inputs", elements),
        "seed": message.seed if message.HasField("seed") else None,
    }


def _zero_unconnected(value: "pb.UnconnectedGradients") -> bool:
    if value not in _UNCONNECTED:
        raise InvalidRequest(f"unconnected: no such value: got {value}", reason="BAD_UNCONNECTED")
    return value == pb.UNCONNECTED_GRADIENTS_ZERO


def _decode_all(message: "_Message", field: str, elements: Elements) -> dict[str, Array]:
    """Returns the tensors of a field by name; ``elements`` are those that ``parse`` left out of the message."""
    tensors = getattr(message, field)
    if not tensors:
        return {}
    place = field.replace("_", " ")
    _check_length(tensors, place)
    number = message.DESCRIPTOR.fields_by_name[field].number if elements else 0
    arrays = {}
    for index, tensor in enumerate(tensors):
        name = tensor.name
        arrays[name] = decode(tensor, f"{place[:-1]} {quote(name)}", elements.get((number, index)))
    if len(arrays) != len(tensors):
        check_no_repeats([tensor.name for tensor in tensors], place, "REPEATED_NAME")
    check_combined(tuple([array.shape for array in arrays.values()]), place)
    return arrays


def _check_length(items: Items, place: str) -> Items:
    if len(items) > _MAX_TENSORS:
        raise InvalidRequest(
            f"{place}: wanted at most {_MAX_TENSORS}, got {len(items)}",
            reason="TOO_MANY",
            facts={"place": place, "got": str(len(items))},
        )
    return items


@functools.lru_cache(_SHAPES)
def check_combined(shapes: tuple[tuple[int, ...], ...], place: str, *, rows: int = 1) -> None:
    """Refuses shapes whose sizes would overflow once an op combines them: TensorFlow then ends the process.

    Small messages can have them: (2^40, 1, 0) and (1, 2^40, 0) hold no byte, and broadcast to (2^40, 2^40, 0). Where
    nothing is empty, most ops run out of memory first, which is an error like any other; tf.where does not.

    Args:
        shapes: The shapes.
        place: What has them, for the error.
        rows: How many gradients at once are computed of what an op makes of them.

    Raises:
        InvalidRequest: Reason BAD_SHAPE.
    """
    aligned = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    broadcast = math.prod(max(sizes) or 1 for sizes in aligned) * rows
    empty = math.prod(size or 1 for shape in shapes if 0 in shape for size in shape)
    if broadcast > _BROADCAST_LIMIT or empty > _EMPTY_LIMIT:
        got = ", ".join(str(shape) for shape in shapes[:4]) + f", for {rows} rows" * (rows > 1)
        raise InvalidRequest(
            f"{place}: shapes must not overflow when they are combined: wanted at most {_BROADCAST_LIMIT} elements if all "
            f"are broadcast, and {_EMPTY_LIMIT} for the dimensions other than 0 of empty tensors in all; got {got}",
            reason="BAD_SHAPE",
            facts={"place": place, "got": got},
        )
