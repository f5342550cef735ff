"""The servicer: each RPC decodes, calls, encodes. Handlers take raw bytes, so that a malformed message is our error."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc

from gradserve.errors import Unavailable
from gradserve.gradient_check import check_to_message
from gradserve.messages import SERVICE
from gradserve.op_info import op_info_to_message
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.calls import Calls
from gradserve_server.checking.checker import Checker
from gradserve_server.evaluation import Evaluator
from gradserve_server.grpc_types import Context, Handler
from gradserve_server.plans import Plan, Plans
from gradserve_server.registry import Registry
from gradserve_server.requests import (
    EvaluationRequest,
    decode_check_gradient,
    decode_forward,
    decode_hvp,
    decode_jacobian,
    decode_jvp,
    decode_vjp,
)
from gradserve_server.responses import (
    Evaluation,
    encode_forward,
    encode_hvp,
    encode_jacobian,
    encode_jvp,
    encode_vjp,
    tensor_bytes,
)
from gradserve_server.rows import response_too_large
from gradserve_server.streaming import Streams
from gradserve_server.telemetry import Call, current_call

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_LARGE_BYTES = 2**22
"""Messages above this are decoded and encoded beside the event loop, where they would hold up all other calls for over a
millisecond; for smaller ones the way to another thread and back takes longer than the work."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What answers calls, once the ops are loaded."""

    registry: Registry
    """The ops."""
    evaluator: Evaluator
    """Evaluates and differentiates them."""
    checker: Checker
    """Checks their gradients."""
    plans: Plans
    """How to answer what has been asked before."""


class GradientService:
    """Answers the RPCs of ``gradserve.v1.GradientService``, once ``parts`` is set."""

    def __init__(self, max_message_bytes: int, max_together: int = 1) -> None:
        """Takes the size of the largest response, and how many calls may be answered together."""
        self.max_message_bytes = max_message_bytes
        """Size of the largest message."""
        self.max_together = max_together
        """Most calls that are answered together."""
        self.parts: Parts | None = None
        self.is_draining = False
        """Whether new calls are refused, since the server stops."""

    def _ready(self) -> Parts:
        if self.is_draining:
            raise Unavailable(
                "the server is stopping; call another one, or this one once it is back", reason="DRAINING"
            )
        if self.parts is None:
            raise Unavailable("the server is warming up; wait until its health is SERVING", reason="WARMING_UP")
        return self.parts

    async def list_ops(self, data: bytes) -> bytes:
        """Answers ``ListOps``."""
        pb.ListOpsRequest.FromString(data)
        parts = self._ready()
        infos = map(parts.checker.describe, parts.registry.versions())
        return pb.ListOpsResponse(ops=[op_info_to_message(info) for info in infos]).SerializeToString()

    async def get_op(self, data: bytes) -> bytes:
        """Answers ``GetOp``."""
        request = pb.GetOpRequest.FromString(data)
        parts = self._ready()
        found = parts.registry.find(request.name, request.version)
        current_call().found(found.info.name, found.info.version)
        return pb.GetOpResponse(op=op_info_to_message(parts.checker.describe(found))).SerializeToString()

    async def forward(self, data: bytes) -> bytes:
        """Answers ``Forward``."""
        return await self._evaluate(data, decode_forward, Evaluator.forward, encode_forward)

    async def vjp(self, data: bytes) -> bytes:
        """Answers ``Vjp``."""
        return await self._evaluate(data, decode_vjp, Evaluator.vjp, encode_vjp)

    async def jvp(self, data: bytes) -> bytes:
        """Answers ``Jvp``."""
        return await self._evaluate(data, decode_jvp, Evaluator.jvp, encode_jvp)

    async def hvp(self, data: bytes) -> bytes:
        """Answers ``Hvp``."""
        return await self._evaluate(data, decode_hvp, Evaluator.hvp, encode_hvp)

    async def jacobian(self, data: bytes) -> bytes:
        """Answers ``Jacobian``."""
        return await self._evaluate(data, decode_jacobian, Evaluator.jacobian, encode_jacobian)

    async def check_gradient(self, data: bytes) -> bytes:
        """Answers ``CheckGradient``."""
        parts, call = self._ready(), current_call()
        with call.stage("decode"):
            request = decode_check_gradient(data)
        with call.stage("compute"):
            found = await parts.checker.answer(parts.registry, request)
        with call.stage("encode"):
            return check_to_message(found).SerializeToString()

    async def _evaluate(
        self,
        data: bytes,
        decode: Callable[[bytes], EvaluationRequest],
        evaluate: Callable[[Evaluator, EvaluationRequest], Awaitable[Evaluation]],
        encode: Callable[[Evaluation], bytes],
    ) -> bytes:
        parts, call = self._ready(), current_call()
        plan = parts.plans.find(call.method, data)
        if plan is not None and (response := await self._by_plan(parts, plan, data)) is not None:
            return response
        with call.stage("decode"):
            request = await _beside_loop(len(data), decode, data)
        evaluation = await evaluate(parts.evaluator, request)
        with call.stage("encode"):
            response = await _beside_loop(self._checked_bytes(evaluation), encode, evaluation)
        if parts.plans.wants(call.method, data):
            parts.plans.add(call.method, data, parts.evaluator.answered(call.method, request, evaluation, response))
        return response

    async def _by_plan(self, parts: Parts, plan: Plan, data: bytes) -> bytes | None:
        """Answers a request by its plan; returns None if it has to go the long way after all."""
        call = current_call()
        with call.stage("decode"):
            share = await _beside_loop(len(data), plan.share, data)
        if share is None or (results := await parts.evaluator.by_plan(plan, share)) is None:
            return None
        with call.stage("encode"):
            return await _beside_loop(plan.response_bytes, plan.encode, results)

    def plan_of(self, method: str, request: bytes) -> Plan | None:
        """Returns the plan by which a request can be answered together with others; None if it is answered alone."""
        if self.parts is None or self.is_draining or self.max_together == 1:
            return None
        plan = self.parts.plans.find(method, request)
        return plan if plan is not None and plan.is_contiguous else None

    async def answer_together(
        self, plan: Plan, calls: Sequence[Call], requests: Sequence[bytes]
    ) -> Sequence[bytes] | None:
        """Returns the responses to requests of one plan, which run as one; None if each has to be answered alone."""
        parts = self.parts
        if parts is None or self.is_draining:
            return None
        for call in calls:
            call.found(plan.version.info.name, plan.version.info.version)
        clock = calls[0].clock
        began_at = clock()
        share = plan.share_of_all(requests)
        decoded_at = clock()
        try:
            results, work = await parts.evaluator.by_plan_together(plan, share, calls)
        except Exception:  # whatever it is, it goes to the caller to whom it happens when each is answered alone
            return None
        computed_at = clock()
        responses = plan.encode_all(results, len(requests))
        stages = {
            "decode": decoded_at - began_at,
            "queue": work.queue_seconds,
            "compute": work.compute_seconds,
            "encode": clock() - computed_at,
        }
        for call in calls if responses is not None else ():
            call.stages = stages
        return responses

    def _checked_bytes(self, evaluation: Evaluation) -> int:
        """Returns the bytes of a response's tensors.

        Raises:
            ResourceExhausted: They are more than a message may have. gRPC would refuse them after the call has ended well.
        """
        size = tensor_bytes(evaluation)
        if size > self.max_message_bytes:
            raise response_too_large(self.max_message_bytes, size)
        return size


async def _beside_loop(size_bytes: int, function: Callable[[Argument], Result], argument: Argument) -> Result:
    return await asyncio.to_thread(function, argument) if size_bytes > _LARGE_BYTES else function(argument)


def handlers_of(service: GradientService, calls: Calls) -> grpc.GenericRpcHandler:
    """Returns the service's RPCs for ``grpc.aio.Server.add_generic_rpc_handlers``."""
    evaluating = {
        "Forward": service.forward,
        "Vjp": service.vjp,
        "Jvp": service.jvp,
        "Hvp": service.hvp,
        "Jacobian": service.jacobian,
    }
    others = {"ListOps": service.list_ops, "GetOp": service.get_op, "CheckGradient": service.check_gradient}
    streams = Streams(calls, evaluating, service.max_message_bytes, service)
    handlers = {name: _raw(method) for name, method in {**evaluating, **others}.items()}
    handlers["StreamVjp"] = grpc.stream_stream_rpc_method_handler(streams.serve)
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _raw(method: Callable[[bytes], Awaitable[bytes]]) -> Handler:
    async def behaviour(data: bytes, _: Context) -> bytes:
        return await method(data)

    return grpc.unary_unary_rpc_method_handler(behaviour)  # no serializers: bytes in, bytes out
