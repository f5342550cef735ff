"""The blocking client."""

import os
import threading
from collections.abc import Generator, Sequence
from typing import Any, cast

import grpc

from gradserve import messages
from gradserve.base import DEFAULT, BaseClient, Rpc, Timeout
from gradserve.binding import Tensors
from gradserve.errors import Cancelled, GradserveError
from gradserve.messages import (
    FORWARD,
    GET_OP,
    HEALTH_CHECK,
    LIST_OPS,
    VJP,
    Method,
    OpCall,
    Request,
    Response,
    Result,
    Unconnected,
)
from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult, VjpResult
from gradserve.transport import CHANNEL_OPTIONS, error_of_rpc, read_trailer, request_metadata
from gradserve.v1 import gradient_service_pb2 as pb


class Client(BaseClient):
    """Calls a Gradserve server; safe to share between threads, to pickle, and to use after a fork (it connects anew).

    After a fork it relies on gRPC's own support for forks, which is on unless GRPC_ENABLE_FORK_SUPPORT=0 turns it off.
    Every method raises a ``gradserve.errors.GradserveError`` of the class that says what went wrong; an argument of a wrong
    Python type is a ``TypeError`` or ``ValueError``.

    Example:
        >>> with Client("localhost:50051") as client:  # doctest: +SKIP
        ...     client.vjp("square_with_grad", 3.0, 2.0).gradient
        array(12., dtype=float32)
    """

    def _start(self) -> None:
        super()._start()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    def __enter__(self) -> "Client":
        """Returns the client itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes the connection."""
        self.close()

    def close(self) -> None:
        """Closes the connection, which fails the calls under way with ``Cancelled``; a later call connects anew."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = None

    def ops(self, *, timeout: Timeout = DEFAULT) -> list[OpInfo]:
        """Returns every version of every op of the server."""
        return self._call(LIST_OPS, pb.ListOpsRequest(), timeout)

    def op(self, name: str, *, version: int = 0, timeout: Timeout = DEFAULT) -> OpInfo:
        """Returns one op; ``version`` 0 is the newest."""
        return self._call(GET_OP, pb.GetOpRequest(name=name, version=version), timeout)

    def health(self, service: str = "", *, timeout: Timeout = DEFAULT) -> str:
        """Returns "SERVING", "NOT_SERVING" or "UNKNOWN", for the server as a whole or for one of its services.

        Raises:
            NotFound: There is no such service.
        """
        return self._call(HEALTH_CHECK, messages.health_request(service), timeout)

    def forward(
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
        """Evaluates an op.

        Args:
            op: Name of the op.
            inputs: A mapping of arrays by name (nested ones join their keys with "/"), a list or tuple of arrays by
                position, or one bare array or number. Python numbers take the signature's dtype; arrays never cast.
            seed: Seed, for ops that declare one.
            version: Version of the op, 0 for the newest.
            signature: Signature key, empty for the one whose dtypes the inputs have.
            timeout: Deadline in seconds for this call, None for none.
            request_id: Id for logs and errors; made up if absent.

        Returns:
            The outputs, in the shapes and dtypes of the op's signature.
        """
        call = OpCall(op=op, inputs=inputs, version=version, signature=signature, seed=seed)
        return self._run(self._evaluation(FORWARD, call, messages.forward_request, timeout, request_id))

    def vjp(
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
        """Evaluates an op and pulls output gradients back through it, in one call.

        Args:
            op: Name of the op.
            inputs: As for ``forward``.
            output_gradients: Upstream gradients (``dy``) in the same forms, one per output in its shape and dtype.
                One left out (or None) counts as zeros; all left out count as ones.
            stacked: Whether each output gradient has a leading axis of K gradients to pull back.
            differentiate: Names of the inputs whose gradients are wanted; None, or an empty list, for all.
            variable_gradients: Whether gradients of the op's trainable variables are wanted.
            unconnected: What stands for the gradient of an input that no output depends on: "none" or "zero".
            seed: As for ``forward``.
            version: As for ``forward``.
            signature: As for ``forward``.
            timeout: As for ``forward``.
            request_id: As for ``forward``.

        Returns:
            The outputs, and a gradient per input asked for, in that input's shape and dtype.
        """
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
        return self._run(self._evaluation(VJP, call, messages.vjp_request, timeout, request_id))

    def _run(self, steps: Generator[Rpc, Any, Result]) -> Result:
        """Sends the RPCs that a generator of the base class yields, and returns what it returns."""
        try:
            rpc = next(steps)
            while True:
                try:
                    result = self._call(*rpc)
                except GradserveError as error:
                    rpc = steps.throw(error)
                else:
                    rpc = steps.send(result)
        except StopIteration as end:
            return cast("Result", end.value)

    def _call(
        self,
        method: Method[Request, Response, Result],
        request: Request,
        timeout: Timeout = DEFAULT,
        request_id: str | None = None,
    ) -> Result:
        metadata = request_metadata(request_id)
        send = self._connect().unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=method.response_type.FromString,
        )
        try:
            response, rpc = send.with_call(request, timeout=self._seconds(timeout), metadata=metadata)
        except grpc.RpcError as error:
            raise error_of_rpc(error, metadata) from None
        except ValueError as error:  # gRPC's own, if another thread closed the channel before the call began
            raise Cancelled(f"the call could not begin: {error}", request_id=metadata[0][1]) from None
        return method.to_result(response, read_trailer(rpc.trailing_metadata()))

    def _connect(self) -> grpc.Channel:
        if self._pid != os.getpid():  # a fork copies the connection but not the threads that drive it
            self._start()
        with self._lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(self._target, options=CHANNEL_OPTIONS)
            return self._channel
