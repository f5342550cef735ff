"""The asyncio twin of ``gradserve.Client``: the same surface, awaited."""

import asyncio
import functools
import os
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, cast

import grpc

from gradserve import messages
from gradserve.aio_stream import AioStream
from gradserve.base import DEFAULT, BaseClient, Rpc, Timeout, result_of_answer
from gradserve.binding import Tensors
from gradserve.errors import Cancelled, GradserveError, Unavailable
from gradserve.gradient_check import GradientCheck, Line
from gradserve.messages import CheckOptions, OpCall, Unconnected
from gradserve.methods import (
    CHECK_GRADIENT,
    FORWARD,
    GET_OP,
    HEALTH_CHECK,
    HVP,
    JACOBIAN,
    JVP,
    LIST_OPS,
    VJP,
    Method,
    Request,
    Response,
    Result,
)
from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult, HvpResult, JacobianResult, JvpResult, VjpResult
from gradserve.streamed_calls import NotSent
from gradserve.transport import CHANNEL_OPTIONS, error_of_rpc, read_trailer, request_metadata
from gradserve.v1 import gradient_service_pb2 as pb


class Client(BaseClient):
    """Calls a Gradserve server from asyncio; see ``gradserve.Client`` for arguments, results and errors.

    A client may be made anywhere; it connects in the event loop that makes the first call, and belongs to it.
    Once any asyncio client has connected, a forked child can use none: gRPC's asyncio part has a thread that a fork does
    not copy. A call there raises ``Unavailable`` (reason FORKED): start processes by spawn, or use the blocking client.
    """

    _connected_pid: ClassVar[int | None] = None
    """The process whose asyncio part of gRPC has started, or the parent that a fork copied it from."""

    def _start(self) -> None:
        super()._start()
        self._channel: grpc.aio.Channel | None = None
        self._stream: AioStream | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> "Client":
        """Returns the client itself."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Closes the connection."""
        await self.close()

    async def close(self) -> None:
        """Closes the connection, which fails the calls under way with ``Cancelled``; a later call connects anew."""
        stream, self._stream = self._stream, None
        channel, self._channel = self._channel, None
        if stream is not None:
            await stream.close()
        if channel is not None:
            await channel.close()

    async def ops(self, *, timeout: Timeout = DEFAULT) -> list[OpInfo]:
        """Returns every version of every op of the server."""
        return await self._call(LIST_OPS, pb.ListOpsRequest(), timeout)

    async def op(self, name: str, *, version: int = 0, timeout: Timeout = DEFAULT) -> OpInfo:
        """Returns one op; ``version`` 0 is the newest."""
        return await self._call(GET_OP, pb.GetOpRequest(name=name, version=version), timeout)

    async def health(self, service: str = "", *, timeout: Timeout = DEFAULT) -> str:
        """Returns "SERVING", "NOT_SERVING" or "UNKNOWN", for the server as a whole or for one of its services."""
        return await self._call(HEALTH_CHECK, messages.health_request(service), timeout)

    async def forward(
        self,
        op: str,
        inputs: Tensors,
        *,
        seed: int | None = None,
        version: int = 0,
        signature: str = "",
        timeout: Timeout = DEFAULT,
        request_id: str | None = None,
    ) -> ForwardResult:
        """Evaluates an op, as ``gradserve.Client.forward`` does."""
        call = OpCall(op=op, inputs=inputs, version=version, signature=signature, seed=seed)
        return await self._run(self._evaluation(FORWARD, call, messages.forward_request, timeout, request_id))

    async def vjp(
        self,
        op: str,
        inputs: Tensors,
        output_gradients: Tensors = None,
        *,
        stacked: bool = False,
        differentiate: Sequence[str] | None = None,
        variable_gradients: bool = False,
        unconnected: Unconnected = "none",
        seed: int | None = None,
        version: int = 0,
        signature: str = "",
        timeout: Timeout = DEFAULT,
        request_id: str | None = None,
    ) -> VjpResult:
        """Evaluates an op and pulls output gradients back through it, as ``gradserve.Client.vjp`` does."""
        call = OpCall(
            op=op,
            inputs=inputs,
            output_gradients=output_gradients,
            version=version,
            signature=signature,
            seed=seed,
            stacked=stacked,
            differentiate=differentiate,
            variable_gradients=variable_gradients,
            unconnected=unconnected,
        )
        return await self._run(self._evaluation(VJP, call, messages.vjp_request, timeout, request_id))

    async def jvp(
        self,
        op: str,
        inputs: Tensors,
        tangents: Tensors,
        *,
        unconnected: Unconnected = "none",
        seed: int | None = None,
        version: int = 0,
        signature: str = "",
        timeout: Timeout = DEFAULT,
        request_id: str | None = None,
    ) -> JvpResult:
        """Evaluates an op and pushes tangents of its inputs forward through it, as ``gradserve.Client.jvp`` does."""
        call = OpCall(
            op=op,
            inputs=inputs,
            vectors=tangents,
            unconnected=unconnected,
            seed=seed,
            version=version,
            signature=signature,
        )
        return await self._run(self._evaluation(JVP, call, messages.jvp_request, timeout, request_id))

    async def hvp(
        self,
        op: str,
        inputs: Tensors,
        vectors: Tensors,
        output_gradients: Tensors = None,
        *,
        unconnected: Unconnected = "none",
        seed: int | None = None,
        version: int = 0,
        signature: str = "",
        timeout: Timeout = DEFAULT,
        request_id: str | None = None,
    ) -> HvpResult:
        """Evaluates an op, and its second derivative times a vector, as ``gradserve.Client.hvp`` does."""
        call = OpCall(
            op=op,
            inputs=inputs,
            vectors=vectors,
            output_gradients=output_gradients,
            unconnected=unconnected,
            seed=seed,
            version=version,
            signature=signature,
        )
        return await self._run(self._evaluation(HVP, call, messages.hvp_request, timeout, request_id))

    async def jacobian(
        self,
        op: str,
        inputs: Tensors,
        *,
        differentiate: Sequence[str] | None = None,
        unconnected: Unconnected = "none",
        seed: int | None = None,
        version: int = 0,
        signature: str = "",
        timeout: Timeout = DEFAULT,
        request_id: str | None = None,
    ) -> JacobianResult:
        """Evaluates an op and its Jacobians, as ``gradserve.Client.jacobian`` does."""
        call = OpCall(
            op=op,
            inputs=inputs,
            differentiate=differentiate,
            unconnected=unconnected,
            seed=seed,
            version=version,
            signature=signature,
        )
        return await self._run(self._evaluation(JACOBIAN, call, messages.jacobian_request, timeout, request_id))

    async def check_gradient(
        self,
        op: str,
        inputs: Tensors = None,
        *,
        points: int = 0,
        directions: int = 0,
        max_elements: int = 0,
        max_seconds: float = 0.0,
        draw_seed: int = 0,
        line: Line | None = None,
        seed: int | None = None,
        version: int = 0,
        signature: str = "",
        timeout: Timeout = DEFAULT,
        request_id: str | None = None,
    ) -> GradientCheck:
        """Compares an op's gradient with forward values, as ``gradserve.Client.check_gradient`` does."""
        options = CheckOptions(
            points=points,
            directions=directions,
            max_elements=max_elements,
            max_seconds=max_seconds,
            draw_seed=draw_seed,
            line=line,
        )
        build = functools.partial(messages.check_gradient_request, options=options)
        call = OpCall(op=op, inputs={} if inputs is None else inputs, seed=seed, version=version, signature=signature)
        return await self._run(self._evaluation(CHECK_GRADIENT, call, build, timeout, request_id))

    async def _run(self, steps: Generator[Rpc, Any, Result]) -> Result:
        """Sends the RPCs that a generator of the base class yields, and returns what it returns."""
        try:
            rpc = next(steps)
            while True:
                try:
                    result = await self._call(*rpc)
                except GradserveError as error:
                    rpc = steps.throw(error)
                else:
                    rpc = steps.send(result)
        except StopIteration as end:
            return cast("Result", end.value)

    async def _call(
        self,
        method: Method[Request, Response, Result],
        request: Request,
        timeout: Timeout = DEFAULT,
        request_id: str | None = None,
    ) -> Result:
        metadata = request_metadata(request_id)
        channel = self._connect()
        data = self._to_stream(method, request)
        if data is not None:
            return await self._call_in_stream(method, data, self._seconds(timeout), metadata[0][1])
        send = channel.unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=method.response_type.FromString,
        )
        rpc = send(request, timeout=self._seconds(timeout), metadata=metadata)
        try:
            response = await rpc
        except grpc.RpcError as error:
            raise error_of_rpc(error, metadata) from None
        except asyncio.CancelledError:
            if self._channel is channel or _task_is_cancelling():
                raise
            raise Cancelled("the client was closed while the call was under way", request_id=metadata[0][1]) from None
        return method.to_result(response, read_trailer(await rpc.trailing_metadata()))

    async def _call_in_stream(
        self, method: Method[Request, Response, Result], data: bytes, timeout: float | None, request_id: str
    ) -> Result:
        while True:
            channel = self._connect()
            if self._stream is None or self._stream.is_over:
                self._stream = AioStream(channel)
            try:
                answer = await self._stream.call(method.name, data, timeout, request_id)
            except NotSent:
                continue
            return result_of_answer(method, answer)

    def _connect(self) -> grpc.aio.Channel:
        if Client._connected_pid not in (None, os.getpid()):
            raise Unavailable(
                "an asyncio client cannot be used after a fork of a process that used one, where it would hang; "
                "start the process by spawn, or use the blocking client",
                reason="FORKED",
            )
        loop = asyncio.get_running_loop()
        if self._channel is None or self._loop is not loop:
            Client._connected_pid = os.getpid()
            self._channel = grpc.aio.insecure_channel(self._target, options=CHANNEL_OPTIONS)
            self._loop, self._stream = loop, None
        return self._channel


def _task_is_cancelling() -> bool:
    """Whether the caller's task was cancelled; Python 3.10 cannot tell, and there it counts as not."""
    return bool(getattr(asyncio.current_task(), "cancelling", lambda: 0)())
