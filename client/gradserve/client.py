"""The blocking client."""

import functools
from collections.abc import Sequence

from gradserve import messages
from gradserve.base import DEFAULT, Timeout
from gradserve.binding import Tensors
from gradserve.blocking import BlockingClient
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
)
from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult, HvpResult, JacobianResult, JvpResult, VjpResult
from gradserve.v1 import gradient_service_pb2 as pb


class Client(BlockingClient):
    """Calls a Gradserve server; safe to share between threads, to pickle, and to use after a fork (it connects anew).

    After a fork it relies on gRPC's own support for forks, which is on unless GRPC_ENABLE_FORK_SUPPORT=0 turns it off.
    Every method raises a ``gradserve.errors.GradserveError`` of the class that says what went wrong; an argument of a wrong
    Python type is a ``TypeError`` or ``ValueError``.

    Example:
        >>> with Client("localhost:50051") as client:  # doctest: +SKIP
        ...     client.vjp("square_with_grad", 3.0, 2.0).gradient
        array(12., dtype=float32)
    """

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

    def jvp(
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
        """Evaluates an op and pushes tangents of its inputs forward through it: the Jacobian times a vector.

        It is taken from the op's own rule, so a surrogate gradient gives a surrogate product.

        Args:
            op: Name of the op.
            inputs: As for ``forward``.
            tangents: In the same forms, each in its input's shape and dtype; None, or left out of a mapping, for zeros.
            unconnected: What stands for the tangent of an output that no input with a tangent reaches: "none" or "zero".
            seed: As for ``forward``.
            version: As for ``forward``.
            signature: As for ``forward``.
            timeout: As for ``forward``.
            request_id: As for ``forward``.

        Returns:
            The outputs, and a tangent per output, in that output's shape and dtype.

        Raises:
            OpContractError: The op's rule is not linear in the output gradients (NOT_LINEAR_IN_DY).
            Unsupported: TensorFlow cannot differentiate the op's rule (NO_SECOND_RULE).
        """
        call = OpCall(
            op=op,
            inputs=inputs,
            vectors=tangents,
            unconnected=unconnected,
            seed=seed,
            version=version,
            signature=signature,
        )
        return self._run(self._evaluation(JVP, call, messages.jvp_request, timeout, request_id))

    def hvp(
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
        """Evaluates an op, and the gradient of <input gradients, vectors>: its second derivative times a vector.

        Args:
            op: Name of the op.
            inputs: As for ``forward``.
            vectors: In the same forms, each in its input's shape and dtype; None, or left out of a mapping, for zeros.
            output_gradients: As for ``vjp``.
            unconnected: What stands for the product of an input that the gradients do not depend on: "none" or "zero".
            seed: As for ``forward``.
            version: As for ``forward``.
            signature: As for ``forward``.
            timeout: As for ``forward``.
            request_id: As for ``forward``.

        Returns:
            The outputs, and a product per input, in that input's shape and dtype.

        Raises:
            Unsupported: TensorFlow cannot differentiate the op's rule (NO_SECOND_RULE).
        """
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
        return self._run(self._evaluation(HVP, call, messages.hvp_request, timeout, request_id))

    def jacobian(
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
        """Evaluates an op and the Jacobian of each output by each input: a row, by the op's rule, for each element of an output.

        Args:
            op: Name of the op.
            inputs: As for ``forward``.
            differentiate: Names of the inputs to differentiate by; None, or an empty list, for all.
            unconnected: What stands for the Jacobian of an output that does not depend on an input: "none" or "zero".
            seed: As for ``forward``.
            version: As for ``forward``.
            signature: As for ``forward``.
            timeout: As for ``forward``.
            request_id: As for ``forward``.

        Returns:
            The outputs, and Jacobians by output and input, in the output's shape followed by the input's.

        Raises:
            ResourceExhausted: There would be more rows than the server's limit (TOO_MANY_ROWS).
        """
        call = OpCall(
            op=op,
            inputs=inputs,
            differentiate=differentiate,
            unconnected=unconnected,
            seed=seed,
            version=version,
            signature=signature,
        )
        return self._run(self._evaluation(JACOBIAN, call, messages.jacobian_request, timeout, request_id))

    def check_gradient(
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
        """Compares an op's gradient with forward values, and with TensorFlow's own derivative of its forward pass.

        Args:
            op: Name of the op.
            inputs: As for ``forward``; None to let the server draw some.
            points: How many points to draw; 0 for the server's default, here and below.
            directions: How many random directions to try at each point.
            max_elements: Inputs of up to this many elements are checked element by element.
            max_seconds: How long to go on; what is found by then is the answer.
            draw_seed: Seed of what is drawn.
            line: A line along which to evaluate the op, for a picture.
            seed: As for ``forward``.
            version: As for ``forward``.
            signature: As for ``forward``.
            timeout: As for ``forward``.
            request_id: As for ``forward``.

        Returns:
            A verdict, and what each test found for each input.

        Raises:
            OpContractError: The op has no gradient to check (NO_GRADIENT_RULE, NOT_DIFFERENTIABLE), or its answers to equal
                requests differ (NOT_REPEATABLE).
        """
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
        return self._run(self._evaluation(CHECK_GRADIENT, call, build, timeout, request_id))
