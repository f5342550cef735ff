"""The pure layer under both clients: arguments -> request message, response message -> result. No I/O."""

import dataclasses
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from google.protobuf import wrappers_pb2
from google.protobuf.message import Message

from gradserve import binding
from gradserve.errors import InvalidRequest
from gradserve.op_info import OpInfo, op_info_from_message
from gradserve.results import ForwardResult, VjpResult
from gradserve.tensors import Array, decode, encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2

SERVICE = "gradserve.v1.GradientService"
HEALTH_SERVICE = "grpc.health.v1.Health"
Unconnected = Literal["none", "zero"]
_UNCONNECTED = {"none": pb.UNCONNECTED_GRADIENTS_NONE, "zero": pb.UNCONNECTED_GRADIENTS_ZERO}
_STATUS_NAMES = {number: name.removeprefix("GRADIENT_STATUS_").lower() for name, number in pb.GradientStatus.items()}

_TIMING = re.compile(r"(?:^|,)\s*([\w-]+);dur=(\d+(?:\.\d+)?)\s*(?=,|$)")

Trailer = Mapping[str, str]
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Result = TypeVar("Result")
AnyForwardResult = TypeVar("AnyForwardResult", bound=ForwardResult)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Method(Generic[Request, Response, Result]):
    """One RPC: its path, how its messages are read and written, and how a response becomes a result."""

    name: str
    """Name in the service."""
    service: str = SERVICE
    """Full name of the service."""
    response_type: type[Response]
    """Message that comes back."""
    to_result: Callable[[Response, Trailer], Result]
    """Turns the response and the trailer into what the caller gets."""

    @property
    def path(self) -> str:
        """Path on the wire."""
        return f"/{self.service}/{self.name}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """What ``forward`` and ``vjp`` were called with, before it is bound to names."""

    op: str
    """Name of the op."""
    inputs: binding.Tensors
    """Inputs in any of the forms of ``binding``."""
    output_gradients: binding.Tensors = None
    """Output gradients likewise, None for ones."""
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
        bare_gradients = self.output_gradients is not None and binding.arrays_by_name(self.output_gradients) is None
        return bare_gradients or binding.arrays_by_name(self.inputs) is None


def forward_request(call: OpCall, info: OpInfo | None) -> pb.ForwardRequest:
    """Builds the request; ``info`` may be None if the call does not need it."""
    inputs, _ = _bind(call, info)
    return pb.ForwardRequest(
        op=call.op, version=call.version, signature=call.signature, inputs=_encode_all(inputs), seed=call.seed
    )


def vjp_request(call: OpCall, info: OpInfo | None) -> pb.VjpRequest:
    """Builds the request; ``info`` may be None if the call does not need it.

    Raises:
        InvalidRequest: The inputs or output gradients cannot be bound, or an option is not one of its values.
    """
    if call.unconnected not in _UNCONNECTED:
        raise InvalidRequest(f"unconnected: wanted 'none' or 'zero', got {call.unconnected!r}")
    if isinstance(call.differentiate, str):
        raise InvalidRequest(f"differentiate: wanted a list of input names, got the string {call.differentiate!r}")
    inputs, output_gradients = _bind(call, info)
    return pb.VjpRequest(
        op=call.op,
        version=call.version,
        signature=call.signature,
        inputs=_encode_all(inputs),
        seed=call.seed,
        output_gradients=_encode_all(output_gradients),
        stack=_stack_size(output_gradients) if call.stacked else 0,
        differentiate=call.differentiate or (),
        variable_gradients=call.variable_gradients,
        unconnected=_UNCONNECTED[call.unconnected],
    )


def _bind(call: OpCall, info: OpInfo | None) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    inputs = binding.arrays_by_name(call.inputs)
    gradients = {} if call.output_gradients is None else binding.arrays_by_name(call.output_gradients)
    if inputs is not None and gradients is not None:
        return inputs, gradients
    if info is None:
        raise ValueError(f"op {call.op!r}: the call needs the op's signatures, but none were fetched")
    signature, inputs = binding.bind_inputs(call.inputs, info, call.signature)
    if call.output_gradients is not None:
        gradients = binding.bind_output_gradients(call.output_gradients, info, signature)
    return inputs, gradients or {}


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


def forward_result(response: pb.ForwardResponse, trailer: Trailer) -> ForwardResult:
    """Decodes a response."""
    return ForwardResult(
        outputs=_decode_all(response.outputs),
        version=response.version,
        fingerprint=response.fingerprint,
        request_id=trailer.get("x-request-id", ""),
        timing=parse_timing(trailer.get("gradserve-timing", "")),
    )


def vjp_result(response: pb.VjpResponse, trailer: Trailer) -> VjpResult:
    """Decodes a response."""
    gradients = [*response.input_gradients, *response.variable_gradients]
    return VjpResult(
        outputs=_decode_all(response.outputs),
        input_gradients={gradient.name: _decode_gradient(gradient) for gradient in response.input_gradients},
        variable_gradients={gradient.name: _decode_gradient(gradient) for gradient in response.variable_gradients},
        status={gradient.name: _STATUS_NAMES.get(gradient.status, "unspecified") for gradient in gradients},
        version=response.version,
        fingerprint=response.fingerprint,
        request_id=trailer.get("x-request-id", ""),
        timing=parse_timing(trailer.get("gradserve-timing", "")),
    )


def _decode_all(tensors: Sequence[tensor_pb2.Tensor]) -> dict[str, Array]:
    return {tensor.name: decode(tensor).copy() for tensor in tensors}  # a copy, so that the caller can write to it


def _decode_gradient(gradient: pb.Gradient) -> Array | None:
    return decode(gradient.tensor).copy() if gradient.status == pb.GRADIENT_STATUS_DENSE else None


def parse_timing(text: str) -> dict[str, float]:
    """Reads the trailer ``gradserve-timing``: milliseconds by stage. What is not of that form is passed over."""
    return {name: float(milliseconds) for name, milliseconds in _TIMING.findall(text)}


def new_request_id() -> str:
    """Returns an id that no other call has."""
    return uuid.uuid4().hex


LIST_OPS: Method[pb.ListOpsRequest, pb.ListOpsResponse, list[OpInfo]] = Method(
    name="ListOps",
    response_type=pb.ListOpsResponse,
    to_result=lambda response, _: [op_info_from_message(op) for op in response.ops],
)
GET_OP: Method[pb.GetOpRequest, pb.GetOpResponse, OpInfo] = Method(
    name="GetOp", response_type=pb.GetOpResponse, to_result=lambda response, _: op_info_from_message(response.op)
)
FORWARD: Method[pb.ForwardRequest, pb.ForwardResponse, ForwardResult] = Method(
    name="Forward", response_type=pb.ForwardResponse, to_result=forward_result
)
VJP: Method[pb.VjpRequest, pb.VjpResponse, VjpResult] = Method(
    name="Vjp", response_type=pb.VjpResponse, to_result=vjp_result
)

# The messages of grpc.health.v1 are, byte for byte, a wrapped string and a wrapped number
# (https://github.com/grpc/grpc/blob/master/doc/health-checking.md), so no package beyond protobuf is needed for them.
_HEALTH_STATUS = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
HEALTH_CHECK: Method[wrappers_pb2.StringValue, wrappers_pb2.UInt32Value, str] = Method(
    name="Check",
    service=HEALTH_SERVICE,
    response_type=wrappers_pb2.UInt32Value,
    to_result=lambda response, _: _HEALTH_STATUS.get(response.value, "UNKNOWN"),
)


def health_request(service: str) -> wrappers_pb2.StringValue:
    """Asks for the health of one service, or of the whole server if the name is empty."""
    return wrappers_pb2.StringValue(value=service)
