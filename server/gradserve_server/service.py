"""The servicer: each RPC decodes, calls, encodes. Handlers take raw bytes, so that a malformed message is our error."""

from collections.abc import Awaitable, Callable

import grpc

from gradserve.errors import Unavailable
from gradserve.messages import SERVICE
from gradserve.op_info import op_info_to_message
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.evaluation import Evaluator
from gradserve_server.grpc_types import Context, Handler
from gradserve_server.requests import decode_forward, decode_vjp, encode_forward, encode_vjp
from gradserve_server.telemetry import current_call


class GradientService:
    """Answers the RPCs of ``gradserve.v1.GradientService``, once ``evaluator`` is set."""

    def __init__(self) -> None:
        self.evaluator: Evaluator | None = None
        self.is_draining = False
        """Whether new calls are refused, since the server stops."""

    def _ready(self) -> Evaluator:
        if self.is_draining:
            raise Unavailable("the server is stopping; call again, which reaches another one", reason="DRAINING")
        if self.evaluator is None:
            raise Unavailable("the server is warming up; wait until its health is SERVING", reason="WARMING_UP")
        return self.evaluator

    async def list_ops(self, data: bytes) -> bytes:
        """Answers ``ListOps``."""
        pb.ListOpsRequest.FromString(data)
        infos = self._ready().registry.infos()
        return pb.ListOpsResponse(ops=[op_info_to_message(info) for info in infos]).SerializeToString()

    async def get_op(self, data: bytes) -> bytes:
        """Answers ``GetOp``."""
        request = pb.GetOpRequest.FromString(data)
        found = self._ready().registry.find(request.name, request.version)
        current_call().found(found.info.name, found.info.version)
        return pb.GetOpResponse(op=op_info_to_message(found.info)).SerializeToString()

    async def forward(self, data: bytes) -> bytes:
        """Answers ``Forward``."""
        evaluator, call = self._ready(), current_call()
        with call.stage("decode"):
            request = decode_forward(data)
        evaluation = await evaluator.forward(request)
        with call.stage("encode"):
            return encode_forward(evaluation)

    async def vjp(self, data: bytes) -> bytes:
        """Answers ``Vjp``."""
        evaluator, call = self._ready(), current_call()
        with call.stage("decode"):
            request = decode_vjp(data)
        evaluation = await evaluator.vjp(request)
        with call.stage("encode"):
            return encode_vjp(evaluation)


def handlers_of(service: GradientService) -> grpc.GenericRpcHandler:
    """Returns the service's RPCs for ``grpc.aio.Server.add_generic_rpc_handlers``."""
    methods = {
        "ListOps": service.list_ops,
        "GetOp": service.get_op,
        "Forward": service.forward,
        "Vjp": service.vjp,
    }
    return grpc.method_handlers_generic_handler(SERVICE, {name: _raw(method) for name, method in methods.items()})


def _raw(method: Callable[[bytes], Awaitable[bytes]]) -> Handler:
    async def behaviour(data: bytes, _: Context) -> bytes:
        return await method(data)

    return grpc.unary_unary_rpc_method_handler(behaviour)  # no serializers: bytes in, bytes out
