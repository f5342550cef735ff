"""Evaluation: checks a decoded request against its op, has it computed, and checks what came back.

TensorFlow checks neither the output gradients that it is given nor the gradients that an op's rule returns, so both
are checked here, on every path.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradserve.errors import GradserveError, InvalidRequest, OpContractError, Unsupported, quote
from gradserve.signature import Shape, TensorSpec, shape_mismatch
from gradserve.tensors import Array
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.ops import Op
from gradserve_server.registry import OpVersion, Registry
from gradserve_server.requests import Evaluation, EvaluationRequest, MaybeGradient
from gradserve_server.scheduling.queue import Work
from gradserve_server.telemetry import current_call

Submit = Callable[[str, Callable[[], Any]], Work]
"""Queues a function on the device of that name."""


class Evaluator:
    """Evaluates requests with the ops of one registry."""

    def __init__(self, registry: Registry, submit: Submit) -> None:
        """Takes the registry, and the way to the devices."""
        self.registry = registry
        self._submit = submit

    async def forward(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates an op.

        Raises:
            GradserveError: The request is wrong, or the op refuses the values.
        """
        version, op = self._find(request)
        inputs = op.signature.inputs_in_order(request.inputs, op.name)
        outputs = await self._run(op, lambda: op.program.forward(inputs))
        return Evaluation(
            version=op.version,
            fingerprint=version.info.fingerprint,
            outputs=name_outputs(op, outputs),
        )

    async def vjp(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates an op and pulls the output gradients back through it.

        Raises:
            GradserveError: The request is wrong, the op refuses the values, or its gradients break its contract.
        """
        version, op = self._find(request)
        signature = op.signature
        inputs = signature.inputs_in_order(request.inputs, op.name)
        signature.check_differentiate(request.differentiate, op.name)
        given = signature.output_gradients_in_order(request.output_gradients, op.name)
        _check_has_vjp(op)
        upstream = fill_missing(given, signature.outputs)
        with_variables = request.variable_gradients and bool(op.connected_variables)
        try:
            run = functools.partial(op.program.vjp, inputs, upstream, with_variables=with_variables)
            outputs, gradients = await self._run(op, run)
        except (InvalidRequest, Unsupported) as error:
            await self._blame(op, inputs, request.output_gradients, error)
            raise
        named_outputs = name_outputs(op, outputs)
        check_output_gradient_shapes(request.output_gradients, named_outputs, op.name)
        return Evaluation(
            version=op.version,
            fingerprint=version.info.fingerprint,
            outputs=named_outputs,
            input_gradients=name_input_gradients(op, inputs, gradients, request),
            variable_gradients=name_variable_gradients(op, gradients, request) if request.variable_gradients else {},
        )

    def _find(self, request: EvaluationRequest) -> tuple[OpVersion, Op]:
        version = self.registry.find(request.op, request.version)
        current_call().found(version.info.name, version.info.version)
        version.check_loaded()
        return version, version.select(request.signature, request.inputs)

    async def _run(self, op: Op, function: Callable[[], Any]) -> Any:
        work = self._submit(op.device, function)
        try:
            return await work.future
        finally:
            if work.finished_at:
                stages = current_call().stages
                stages["queue"] = stages.get("queue", 0.0) + work.queue_seconds
                stages["compute"] = stages.get("compute", 0.0) + work.compute_seconds

    async def _blame(
        self, op: Op, inputs: Sequence[Array], output_gradients: Mapping[str, Array], error: GradserveError
    ) -> None:
        """Finds out whose fault it is that a kernel refused: the inputs', an output gradient's, or the op's rule's.

        The sizes that a signature leaves open are known only once the outputs are. A stateful op is not run again.

        Raises:
            InvalidRequest: The forward pass refuses the inputs, or an output gradient has another shape than its output.
            OpContractError: The inputs and output gradients are good, so the gradient function is not.
        """
        if op.stateful:
            return
        outputs = name_outputs(op, await self._run(op, lambda: op.program.forward(inputs)))
        check_output_gradient_shapes(output_gradients, outputs, op.name)
        raise OpContractError(
            f"op {quote(op.name)}: its gradient function fails where its forward pass does not: {error}",
            reason="GRADIENT_RULE_FAILED",
            facts={"op": op.name},
        ) from error


def name_outputs(op: Op, outputs: Sequence[Array]) -> dict[str, Array]:
    """Returns the outputs by name, having compared each with the signature.

    Raises:
        OpContractError: An output has another shape than the trace promised (OUTPUT_SHAPE_MISMATCH).
    """
    named = dict(zip(op.signature.outputs, outputs, strict=True))
    for name, spec in op.signature.outputs.items():
        if not spec.accepts_shape(named[name].shape):
            raise OpContractError(
                f"op {quote(op.name)}: output {quote(name)} must have the shape that the op promised when it was traced: "
                f"wanted {spec.shape}, got {named[name].shape}; the fault is in the op, not in the request",
                reason="OUTPUT_SHAPE_MISMATCH",
                facts={"op": op.name, "output": name, "wanted": str(spec.shape), "got": str(named[name].shape)},
            )
    return named


def fill_missing(given: Sequence[Array | None], outputs: Mapping[str, TensorSpec]) -> list[Array]:
    """Returns an array for each differentiable output: what was given, else zeros; ones if nothing was given.

    What was not given is a rank-0 array, which the trace spreads over the output.
    """
    value = 1 if all(array is None for array in given) else 0
    specs = [spec for spec in outputs.values() if spec.differentiable]
    return [
        np.asarray(value, dtype=spec.dtype.numpy) if array is None else array
        for array, spec in zip(given, specs, strict=True)
    ]


def check_output_gradient_shapes(
    output_gradients: Mapping[str, Array], outputs: Mapping[str, Array], op_name: str
) -> None:
    """Refuses output gradients of another shape than their outputs turned out to have.

    Raises:
        InvalidRequest: Reason SHAPE_MISMATCH.
    """
    for name, gradient in output_gradients.items():
        if gradient.shape != outputs[name].shape:
            place = f"op {quote(op_name)}, output gradient {quote(name)}"
            raise shape_mismatch(place, wanted=f"{outputs[name].shape}, the shape of the output", got=gradient.shape)


def name_input_gradients(
    op: Op, inputs: Sequence[Array], gradients: Sequence[Array], request: EvaluationRequest
) -> dict[str, MaybeGradient]:
    """Returns the gradient of each input asked for, having checked all of them against their inputs.

    Args:
        op: The op.
        inputs: Its inputs, in order.
        gradients: What its program returned: a gradient for each differentiable input, in order, and maybe more.
        request: What was asked for.

    Raises:
        OpContractError: A gradient has another shape or dtype than its input.
    """
    remaining = iter(gradients)
    named: dict[str, MaybeGradient] = {}
    for (name, spec), array in zip(op.signature.inputs.items(), inputs, strict=True):
        gradient = next(remaining) if spec.differentiable else None
        if gradient is not None:
            _check_gradient(op, ("input", name), gradient, array.shape, array.dtype)
        if not request.differentiate or name in request.differentiate:
            named[name] = _wrap(gradient, spec, array.shape, zero_unconnected=request.zero_unconnected)
    return named


def name_variable_gradients(op: Op, gradients: Sequence[Array], request: EvaluationRequest) -> dict[str, MaybeGradient]:
    """Returns the gradient of each trainable variable, having checked it against the variable.

    Args:
        op: The op.
        gradients: What its program returned: one for each differentiable input, then one for each connected variable.
        request: What was asked for.

    Raises:
        OpContractError: A gradient has another shape or dtype than its variable.
    """
    remaining = iter(gradients[sum(spec.differentiable for spec in op.signature.inputs.values()) :])
    named: dict[str, MaybeGradient] = {}
    for name, spec in op.variables.items():
        if not spec.differentiable:
            continue
        gradient = next(remaining) if name in op.connected_variables else None
        shape = tuple(size or 0 for size in spec.shape or ()) if gradient is None else gradient.shape
        if gradient is not None:
            wanted = shape if spec.accepts_shape(shape) else spec.shape
            _check_gradient(op, ("variable", name), gradient, wanted, spec.dtype.numpy)
        named[name] = _wrap(gradient, spec, shape, zero_unconnected=request.zero_unconnected)
    return named


def _wrap(gradient: Array | None, spec: TensorSpec, shape: tuple[int, ...], *, zero_unconnected: bool) -> MaybeGradient:
    if gradient is not None:
        return MaybeGradient(status=pb.GRADIENT_STATUS_DENSE, array=gradient)
    if not spec.dtype.is_differentiable:
        return MaybeGradient(status=pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE)
    if zero_unconnected:
        return MaybeGradient(status=pb.GRADIENT_STATUS_DENSE, array=np.zeros(shape, spec.dtype.numpy))
    return MaybeGradient(status=pb.GRADIENT_STATUS_UNCONNECTED)


def _check_gradient(op: Op, place: tuple[str, str], gradient: Array, shape: Shape, dtype: Any) -> None:
    kind, name = place
    for what, wanted, got in (("shape", shape, gradient.shape), ("dtype", dtype, gradient.dtype)):
        if got != wanted:
            raise OpContractError(
                f"op {quote(op.name)}: its gradient function must return a gradient of {kind} {quote(name)} in its {what}: "
                f"wanted {wanted}, got {got}; the fault is in the op, not in the request",
                reason=f"GRADIENT_{what.upper()}_MISMATCH",
                facts={"op": op.name, kind: name, "wanted": str(wanted), "got": str(got)},
            )


def _check_has_vjp(op: Op) -> None:
    if op.no_vjp:
        differentiable = any(spec.differentiable for spec in op.signature.outputs.values())
        raise OpContractError(
            f"op {quote(op.name)} has no backward pass: {op.no_vjp}; Forward still answers",
            reason="NO_GRADIENT_RULE" if differentiable else "NOT_DIFFERENTIABLE",
            facts={"op": op.name},
        )
