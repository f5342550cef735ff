"""Requests of both clients: arguments -> request message. No I/O."""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from google.protobuf import wrappers_pb2

from gradserve import binding
from gradserve.errors import InvalidRequest
from gradserve.gradient_check import Line
from gradserve.op_info import OpInfo
from gradserve.tensors import Array, encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2

SERVICE = "gradserve.v1.GradientService"
HEALTH_SERVICE = "grpc.health.v1.Health"
Unconnected = Literal["none", "zero"]
_UNCONNECTED = {"none": pb.UNCONNECTED_GRADIENTS_NONE, "zero": pb.UNCONNECTED_GRADIENTS_ZERO}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """What a method of the client was called with, before it is bound to names."""

    op: str
    """Name of the op."""
    inputs: binding.Tensors
    """Inputs in any of the forms of ``binding``."""
    output_gradients: binding.Tensors = None
    """Output gradients likewise, None for ones."""
    vectors: binding.Tensors = None
    """Tangents, or vectors to multiply, likewise; None for calls that take none."""
    version: int = 0
    """Version, 0 for the newest."""
    signature: str = ""
    """Signature key, empty for the one that fits."""
    seed: int | None = None
    """Seed, for ops that declare one."""
    stacked: bool = False
    """Whether output gradients have a leading axis of K gradients."""
    differentiate: Sequence[str] | None = None
    """Inputs whose gradients are wanted, None for all."""
    variable_gradients: bool = False
    """Whether gradients of the variables are wanted."""
    unconnected: Unconnected = "none"
    """What stands for a gradient that does not exist."""

    def needs_info(self) -> bool:
        """Whether the op's signatures are needed to name the tensors or to type Python numbers."""
        given = (self.inputs, self.output_gradients, self.vectors)
        return any(values is not None and binding.arrays_by_name(values) is None for values in given)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """How a gradient is to be checked. What is 0 takes the server's default."""

    points: int = 0
    """How many points to draw, if no inputs are given."""
    directions: int = 0
    """How many random directions to try at each point."""
    max_elements: int = 0
    """Inputs of up to this many elements are checked element by element."""
    max_seconds: float = 0.0
    """How long to go on."""
    draw_seed: int = 0
    """Seed of what is drawn."""
    line: Line | None = None
    """A line along which to evaluate the op."""


class _Bound(NamedTuple):
    """The tensors of a call, by name."""

    inputs: Mapping[str, Array]
    output_gradients: Mapping[str, Array]
    vectors: Mapping[str, Array]


def forward_request(call: OpCall, info: OpInfo | None) -> pb.ForwardRequest:
    """Builds the request; ``info`` may be None if the call does not need it."""
    return pb.ForwardRequest(**_common(call, _bind(call, info)))


def vjp_request(call: OpCall, info: OpInfo | None) -> pb.VjpRequest:
    """Builds the request; ``info`` may be None if the call does not need it.

    Raises:
        InvalidRequest: The inputs or output gradients cannot be bound, or an option is not one of its values.
    """
    bound = _bind(call, info)
    return pb.VjpRequest(
        **_common(call, bound),
        output_gradients=_encode_all(bound.output_gradients),
        stack=_stack_size(bound.output_gradients) if call.stacked else 0,
        differentiate=_differentiate(call),
        variable_gradients=call.variable_gradients,
        unconnected=_unconnected(call),
    )


def jvp_request(call: OpCall, info: OpInfo | None) -> pb.JvpRequest:
    """Builds the request, as ``vjp_request`` does."""
    bound = _bind(call, info, "tangents")
    return pb.JvpRequest(**_common(call, bound), tangents=_encode_all(bound.vectors), unconnected=_unconnected(call))


def hvp_request(call: OpCall, info: OpInfo | None) -> pb.HvpRequest:
    """Builds the request, as ``vjp_request`` does."""
    bound = _bind(call, info, "vectors")
    return pb.HvpRequest(
        **_common(call, bound),
        output_gradients=_encode_all(bound.output_gradients),
        vectors=_encode_all(bound.vectors),
        unconnected=_unconnected(call),
    )


def jacobian_request(call: OpCall, info: OpInfo | None) -> pb.JacobianRequest:
    """Builds the request, as ``vjp_request`` does."""
    return pb.JacobianRequest(
        **_common(call, _bind(call, info)), differentiate=_differentiate(call), unconnected=_unconnected(call)
    )


def check_gradient_request(call: OpCall, info: OpInfo | None, options: CheckOptions) -> pb.CheckGradientRequest:
    """Builds the request, as ``vjp_request`` does; a call without inputs lets the server draw them."""
    line = options.line
    return pb.CheckGradientRequest(
        **_common(call, _bind(call, info)),
        points=options.points,
        directions=options.directions,
        max_elements=options.max_elements,
        max_seconds=options.max_seconds,
        draw_seed=options.draw_seed,
        line=None if line is None else pb.Line(input=line.input, low=line.low, high=line.high, points=line.points),
    )


def _common(call: OpCall, bound: _Bound) -> dict[str, Any]:
    """Returns the fields that all requests have."""
    return {
        "op": call.op,
        "version": call.version,
        "signature": call.signature,
        "inputs": _encode_all(bound.inputs),
        "seed": call.seed,
    }


def _bind(call: OpCall, info: OpInfo | None, what: str = "") -> _Bound:
    """Names the tensors of a call; ``what`` says what its vectors are called."""
    if not call.needs_info():
        return _Bound(
            *[binding.arrays_by_name(v or {}) or {} for v in (call.inputs, call.output_gradients, call.vectors)]
        )
    if info is None:
        raise ValueError(f"op {call.op!r}: the call needs the op's signatures, but none were fetched")
    seeded = call.seed is not None
    signature, inputs = binding.bind_inputs(call.inputs, info, call.signature, seeded=seeded)
    gradients = (
        {} if call.output_gradients is None else binding.bind_output_gradients(call.output_gradients, info, signature)
    )
    vectors = {} if call.vectors is None else binding.bind_vectors(call.vectors, info, signature, what, seeded=seeded)
    return _Bound(inputs, gradients, vectors)


def _differentiate(call: OpCall) -> Sequence[str]:
    if isinstance(call.differentiate, str):
        raise InvalidRequest(f"differentiate: wanted a list of input names, got the string {call.differentiate!r}")
    return call.differentiate or ()


def _unconnected(call: OpCall) -> "pb.UnconnectedGradients":
    if call.unconnected not in _UNCONNECTED:
        raise InvalidRequest(f"unconnected: wanted 'none' or 'zero', got {call.unconnected!r}")
    return _UNCONNECTED[call.unconnected]


def _encode_all(arrays: Mapping[str, Array]) -> list[tensor_pb2.Tensor]:
    return [encode(array, name) for name, array in arrays.items()]


def _stack_size(output_gradients: Mapping[str, Array]) -> int:
    sizes = {array.shape[:1] for array in output_gradients.values()}
    if len(sizes) != 1 or sizes <= {(), (0,)}:
        raise InvalidRequest(
            f"stacked: output gradients must share one leading axis of at least 1: got shapes "
            f"{', '.join(str(array.shape) for array in output_gradients.values()) or 'of none'}",
            reason="SHAPE_MISMATCH",
        )
    return int(sizes.pop()[0])


def new_request_id() -> str:
    """Returns an id that no other call has."""
    return uuid.uuid4().hex


def health_request(service: str) -> wrappers_pb2.StringValue:
    """Asks for the health of one service, or of the whole server if the name is empty."""
    return wrappers_pb2.StringValue(value=service)
