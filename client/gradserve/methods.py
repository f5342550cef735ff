"""The RPCs: the path of each, and response message -> result. No I/O."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from google.protobuf import wrappers_pb2
from google.protobuf.message import Message

from gradserve.gradient_check import GradientCheck, check_from_message
from gradserve.messages import HEALTH_SERVICE, SERVICE
from gradserve.op_info import OpInfo, op_info_from_message
from gradserve.results import ForwardResult, HvpResult, JacobianResult, JvpResult, VjpResult
from gradserve.tensors import Array, decode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2

Trailer = Mapping[str, str]
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Result = TypeVar("Result")
AnyResult = TypeVar("AnyResult", bound=ForwardResult | GradientCheck)

_STATUS_NAMES = {number: name.removeprefix("GRADIENT_STATUS_").lower() for name, number in pb.GradientStatus.items()}
_TIMING = re.compile(r"(?:^|,)\s*([\w-]+);dur=(\d+(?:\.\d+)?)\s*(?=,|$)")


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


def forward_result(response: pb.ForwardResponse, trailer: Trailer) -> ForwardResult:
    """Decodes a response."""
    return ForwardResult(**_common(response, trailer))


def vjp_result(response: pb.VjpResponse, trailer: Trailer) -> VjpResult:
    """Decodes a response."""
    gradients = [*response.input_gradients, *response.variable_gradients]
    return VjpResult(
        **_common(response, trailer),
        input_gradients={gradient.name: _decode_gradient(gradient) for gradient in response.input_gradients},
        variable_gradients={gradient.name: _decode_gradient(gradient) for gradient in response.variable_gradients},
        status=_statuses(gradients),
    )


def jvp_result(response: pb.JvpResponse, trailer: Trailer) -> JvpResult:
    """Decodes a response."""
    return JvpResult(
        **_common(response, trailer),
        output_tangents={tangent.name: _decode_gradient(tangent) for tangent in response.output_tangents},
        status=_statuses(response.output_tangents),
    )


def hvp_result(response: pb.HvpResponse, trailer: Trailer) -> HvpResult:
    """Decodes a response."""
    return HvpResult(
        **_common(response, trailer),
        products={product.name: _decode_gradient(product) for product in response.products},
        status=_statuses(response.products),
    )


def jacobian_result(response: pb.JacobianResponse, trailer: Trailer) -> JacobianResult:
    """Decodes a response."""
    jacobians: dict[str, dict[str, Array | None]] = {}
    status: dict[str, dict[str, str]] = {}
    for found in response.jacobians:
        jacobians.setdefault(found.output, {})[found.input] = _decode_gradient(found)
        status.setdefault(found.output, {})[found.input] = _STATUS_NAMES.get(found.status, "unspecified")
    return JacobianResult(**_common(response, trailer), jacobians=jacobians, status=status)


def check_result(response: pb.CheckGradientResponse, trailer: Trailer) -> GradientCheck:
    """Decodes a response."""
    return check_from_message(response, trailer.get("x-request-id", ""))


def _common(
    response: "pb.ForwardResponse | pb.VjpResponse | pb.JvpResponse | pb.HvpResponse | pb.JacobianResponse",
    trailer: Trailer,
) -> dict[str, Any]:
    """Returns what all these results have."""
    return {
        "outputs": _decode_all(response.outputs),
        "version": response.version,
        "fingerprint": response.fingerprint,
        "request_id": trailer.get("x-request-id", ""),
        "timing": parse_timing(trailer.get("gradserve-timing", "")),
    }


def _statuses(gradients: Sequence[pb.Gradient]) -> dict[str, str]:
    return {gradient.name: _STATUS_NAMES.get(gradient.status, "unspecified") for gradient in gradients}


def _decode_all(tensors: Sequence[tensor_pb2.Tensor]) -> dict[str, Array]:
    return {tensor.name: decode(tensor).copy() for tensor in tensors}  # a copy, so that the caller can write to it


def _decode_gradient(gradient: pb.Gradient | pb.Jacobian) -> Array | None:
    return decode(gradient.tensor).copy() if gradient.status == pb.GRADIENT_STATUS_DENSE else None


def parse_timing(text: str) -> dict[str, float]:
    """Reads the trailer ``gradserve-timing``: milliseconds by stage. What is not of that form is passed over."""
    return {name: float(milliseconds) for name, milliseconds in _TIMING.findall(text)}


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
JVP: Method[pb.JvpRequest, pb.JvpResponse, JvpResult] = Method(
    name="Jvp", response_type=pb.JvpResponse, to_result=jvp_result
)
HVP: Method[pb.HvpRequest, pb.HvpResponse, HvpResult] = Method(
    name="Hvp", response_type=pb.HvpResponse, to_result=hvp_result
)
JACOBIAN: Method[pb.JacobianRequest, pb.JacobianResponse, JacobianResult] = Method(
    name="Jacobian", response_type=pb.JacobianResponse, to_result=jacobian_result
)
CHECK_GRADIENT: Method[pb.CheckGradientRequest, pb.CheckGradientResponse, GradientCheck] = Method(
    name="CheckGradient", response_type=pb.CheckGradientResponse, to_result=check_result
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
