"""Evaluation: checks a decoded request against its op, has it computed, and checks what came back.

TensorFlow checks neither the output gradients that it is given nor the gradients that an op's rule returns, so both
are checked here, on every path.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from gradserve.errors import GradserveError, OpContractError, quote
from gradserve.seeds import with_seed
from gradserve.tensors import Array
from gradserve_server.answers import (
    check_output_gradient_shapes,
    fill_missing,
    name_input_gradients,
    name_jacobians,
    name_output_tangents,
    name_outputs,
    name_products,
    name_variable_gradients,
)
from gradserve_server.ops import Op
from gradserve_server.plans import Answered, Plan
from gradserve_server.registry import OpVersion, Registry
from gradserve_server.requests import EvaluationRequest
from gradserve_server.responses import Evaluation
from gradserve_server.rows import Limits, Rows
from gradserve_server.rule_facts import is_linear
from gradserve_server.scheduling.joining import (
    MOST_BYTES,
    Results,
    Share,
    TraceCall,
    backward_call,
    forward_call,
    share_of,
    stacked_call,
)
from gradserve_server.scheduling.work import Load, Work
from gradserve_server.telemetry import Call, current_call

_BY_A_KERNEL = ("VALUES_REFUSED", "NO_KERNEL")
"""Reasons of errors that a kernel raised, which may be the fault of the request or of the op's rule."""


class Submit(Protocol):
    """The way to the devices."""

    def __call__(self, device: str, function: Callable[[], Any], load: Load) -> Work:
        """Queues a function on the device of that name.

        Raises:
            ResourceExhausted: It may not wait, or not in time.
        """
        ...


class Evaluator:
    """Evaluates requests with the ops of one registry."""

    def __init__(self, registry: Registry, submit: Submit, limits: Limits) -> None:
        """Takes the registry, the way to the devices, and what a call may ask for."""
        self._registry = registry
        self._submit = submit
        self._limits = limits

    async def forward(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates an op.

        Raises:
            GradserveError: The request is wrong, or the op refuses the values.
        """
        found = self._find(request)
        call = forward_call(found.op)
        outputs, _ = await self._run(found.op, functools.partial(call.run, found.inputs, []), found.share(call, [], []))
        return found.answer(outputs=name_outputs(found.op, outputs))

    async def vjp(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates an op and pulls output gradients back through it: one for each output, or a stack of them.

        Raises:
            GradserveError: The request is wrong, the op refuses the values, or its gradients break its contract.
        """
        found = self._find(request)
        op, inputs = found.op, found.inputs
        op.signature.check_differentiate(request.differentiate, op.name)
        upstream = self._output_gradients(found)
        check_has_vjp(op)
        with_variables = request.variable_gradients and bool(op.connected_variables)
        rows = found.rows(self._limits)
        if request.stack:
            rows.check_stack()
            call = stacked_call(op, request.stack, self._limits.max_computed_bytes, with_variables=with_variables)
        else:
            call = backward_call(op, with_variables=with_variables)
        wanted = request.differentiate or op.signature.inputs
        share = None if with_variables else found.share(call, upstream, wanted)
        outputs, gradients = await self._run_rule(found, functools.partial(call.run, inputs, upstream), share)
        named = self._name_outputs(found, outputs)
        if request.stack:
            rows.check_output_gradients(named)
        return found.answer(
            outputs=named,
            input_gradients=name_input_gradients(op, inputs, gradients, request),
            variable_gradients=name_variable_gradients(op, gradients, request) if request.variable_gradients else {},
        )

    async def by_plan(self, plan: Plan, share: Share) -> Results | None:
        """Returns what ``forward`` or ``vjp`` would compute; None if a kernel refuses, of which those find out more.

        Raises:
            GradserveError: The call can't be made in time.
        """
        current_call().found(plan.version.info.name, plan.version.info.version)
        try:
            run = functools.partial(share.call.run, share.inputs, share.output_gradients)
            results: Results = await self._run(plan.op, run, None if plan.is_alone else share)
        except GradserveError as error:
            if error.reason in _BY_A_KERNEL:
                return None
            raise
        return results

    async def by_plan_together(self, plan: Plan, share: Share, calls: Sequence[Call]) -> tuple[Results, Work]:
        """Returns what came out of several calls that are one share, and the work that it was.

        Raises:
            Exception: As for ``by_plan``, for any of the calls; and whatever a kernel refuses.
        """
        run = functools.partial(share.call.run, share.inputs, share.output_gradients)
        work = self._queue(plan.op, run, share, calls)
        return await work.future, work

    def answered(
        self, method: str, request: EvaluationRequest, evaluation: Evaluation, response: bytes
    ) -> Answered | None:
        """Returns what there is to know of a call to ``forward`` or ``vjp``; None if none like it, of any size, can be joined."""
        if request.stack or request.variable_gradients or request.zero_unconnected or request.seed is not None:
            return None
        found = self._find(request)
        if method == "Forward":
            share = found.share(forward_call(found.op), [], [], most_bytes=math.inf)
        else:
            upstream = self._output_gradients(found)
            wanted = request.differentiate or found.op.signature.inputs
            share = found.share(backward_call(found.op), upstream, wanted, most_bytes=math.inf)
        if share is None:
            return None
        return Answered(
            version=found.version, op=found.op, request=request, share=share, evaluation=evaluation, response=response
        )

    async def jvp(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates an op and pushes tangents forward through it.

        Raises:
            GradserveError: As for ``vjp``; or the op's rule is not linear in the output gradients (NOT_LINEAR_IN_DY), or
                TensorFlow cannot differentiate it (NO_SECOND_RULE).
        """
        found = self._find(request)
        op, inputs = found.op, found.inputs
        tangents = op.signature.vectors_in_order(request.vectors, inputs, op.name, "tangents")
        check_has_vjp(op)
        await self._check_linear(found)
        outputs, results = await self._run_rule(found, functools.partial(op.program.jvp, inputs, tangents))
        named = self._name_outputs(found, outputs)
        return found.answer(outputs=named, output_tangents=name_output_tangents(op, named, results, request))

    async def hvp(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates an op, its gradients, and the gradient of their inner product with the vectors of the request.

        Raises:
            GradserveError: As for ``vjp``; or TensorFlow cannot differentiate the op's rule (NO_SECOND_RULE).
        """
        found = self._find(request)
        op, inputs = found.op, found.inputs
        vectors = op.signature.vectors_in_order(request.vectors, inputs, op.name, "vectors")
        upstream = self._output_gradients(found)
        check_has_vjp(op)
        outputs, products = await self._run_rule(found, functools.partial(op.program.hvp, inputs, upstream, vectors))
        return found.answer(
            outputs=self._name_outputs(found, outputs), products=name_products(op, inputs, products, request)
        )

    async def jacobian(self, request: EvaluationRequest) -> Evaluation:
        """Evaluates an op and the Jacobians of its outputs.

        Raises:
            GradserveError: As for ``vjp``; or there would be more rows than a call may ask for (TOO_MANY_ROWS).
        """
        found = self._find(request)
        op, inputs = found.op, found.inputs
        op.signature.check_differentiate(request.differentiate, op.name)
        check_has_vjp(op)
        rows = found.rows(self._limits)
        run = functools.partial(op.program.jacobian, inputs, rows.most_of_jacobian())
        outputs, jacobians = await self._run_rule(found, run)
        named = self._name_outputs(found, outputs)
        rows.check_jacobian(named)
        return found.answer(outputs=named, jacobians=name_jacobians(op, inputs, named, jacobians, request))

    def _find(self, request: EvaluationRequest) -> "_Found":
        version, op = select(self._registry, request)
        arrays = with_seed(request.inputs, request.seed, op.signature, op.name)
        return _Found(request=request, version=version, op=op, inputs=op.signature.inputs_in_order(arrays, op.name))

    def _output_gradients(self, found: "_Found") -> list[Array]:
        """Returns an output gradient for each differentiable output, of rank 0 where it stands for all elements."""
        op, request = found.op, found.request
        given = op.signature.output_gradients_in_order(request.output_gradients, op.name, stack=request.stack)
        return fill_missing(given, op.signature.outputs)

    def _name_outputs(self, found: "_Found", outputs: Sequence[Array]) -> dict[str, Array]:
        named = name_outputs(found.op, outputs)
        check_output_gradient_shapes(found.request, named, found.op.name)
        return named

    async def _check_linear(self, found: "_Found") -> None:
        """Refuses a rule that is not linear in the output gradients, or of which that cannot be found out.

        What the start could not find out, for want of inputs, is found out at those of the request.

        Raises:
            OpContractError: Reason NOT_LINEAR_IN_DY.
        """
        op, linear = found.op, found.op.linear
        if linear is None and op.repeatable and not op.stateful:
            linear = await self._run(op, functools.partial(is_linear, op.program, [found.inputs]))
            if linear is None:  # the inputs may be to blame
                await self._run(op, functools.partial(op.program.forward, found.inputs))
        if not linear:
            why = "it is not" if linear is False else "which could not be found out"
            raise OpContractError(
                f"op {quote(op.name)}: a JVP needs a gradient function that is linear in the output gradients: {why}; a sign "
                "or clip of dy, say, has no JVP",
                reason="NOT_LINEAR_IN_DY",
                facts={"op": op.name},
            )

    async def _run(self, op: Op, function: Callable[[], Any], share: Share | None = None) -> Any:
        call = current_call()
        work = self._queue(op, function, share, [call])
        try:
            return await work.future
        finally:
            if work.finished_at:
                stages = call.stages
                stages["queue"] = stages.get("queue", 0.0) + work.queue_seconds
                stages["compute"] = stages.get("compute", 0.0) + work.compute_seconds

    def _queue(self, op: Op, function: Callable[[], Any], share: Share | None, calls: Sequence[Call]) -> Work:
        load = Load(
            group=op.group,
            kind=(*op.key, calls[0].method) if share is None else share.call.key,
            calls=len(calls),
            size_bytes=sum([call.request_bytes for call in calls]),
            deadline=min([call.deadline for call in calls]),
            share=share,
            is_bounded=share is not None and share.is_plain and op.program.is_bounded,
        )
        return self._submit(op.device, function, load)

    async def _run_rule(self, found: "_Found", function: Callable[[], Any], share: Share | None = None) -> Any:
        """Runs what calls the op's gradient function, and finds out whose fault it is if a kernel refuses."""
        try:
            return await self._run(found.op, function, share)
        except GradserveError as error:
            if error.reason in _BY_A_KERNEL:
                await self._blame(found, error)
            raise

    async def _blame(self, found: "_Found", error: GradserveError) -> None:
        """Finds out whose fault it is that a kernel refused: the inputs', an output gradient's, or the op's rule's.

        The sizes that a signature leaves open are known only once the outputs are. A stateful op is not run again.

        Raises:
            InvalidRequest: The forward pass refuses the inputs, or an output gradient has another shape than its output.
            OpContractError: The inputs and output gradients are good, so the gradient function is not.
        """
        op = found.op
        if op.stateful:
            return
        self._name_outputs(found, await self._run(op, functools.partial(op.program.forward, found.inputs)))
        raise OpContractError(
            f"op {quote(op.name)}: its gradient function fails where its forward pass does not: {error}",
            reason="GRADIENT_RULE_FAILED",
            facts={"op": op.name},
        ) from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A request, and the op that it means."""

    request: EvaluationRequest
    version: OpVersion
    op: Op
    inputs: list[Array]
    """The inputs, in the signature's order."""

    def share(
        self,
        call: TraceCall,
        output_gradients: Sequence[Array],
        wanted: Collection[str],
        *,
        most_bytes: float = MOST_BYTES,
    ) -> Share | None:
        """Returns the call in the form in which it can be joined with others; None if it has to run alone.

        Args:
            call: How to call the trace.
            output_gradients: An output gradient for each differentiable output, of rank 0 where it stands for all elements.
            wanted: Names of the inputs whose gradients are asked for.
            most_bytes: Bytes of tensors beyond which it runs alone.
        """
        if self.op.layout is None:
            return None
        asked = [name in wanted for name in self.op.signature.inputs]
        return share_of(
            self.op.layout, call, self.inputs, output_gradients, asked, stack=self.request.stack, most_bytes=most_bytes
        )

    def rows(self, limits: Limits) -> Rows:
        return Rows(op=self.op, inputs=self.inputs, request=self.request, limits=limits)

    def answer(self, **results: Any) -> Evaluation:
        return Evaluation(version=self.op.version, fingerprint=self.version.info.fingerprint, **results)


def select(registry: Registry, request: EvaluationRequest) -> tuple[OpVersion, Op]:
    """Returns the version and the signature of an op that a request means.

    Raises:
        NotFound: There is no such op, version or signature.
        OpContractError: The op could not be loaded (OP_NOT_LOADED).
    """
    version = registry.find(request.op, request.version)
    current_call().found(version.info.name, version.info.version)
    version.check_loaded()
    return version, version.select(request.signature, request.inputs)


def check_has_vjp(op: Op) -> None:
    """Refuses an op without a backward pass.

    Raises:
        OpContractError: Reason NO_GRADIENT_RULE, or NOT_DIFFERENTIABLE if it has no differentiable output.
    """
    if op.no_vjp:
        differentiable = any(spec.differentiable for spec in op.signature.outputs.values())
        raise OpContractError(
            f"op {quote(op.name)} has no backward pass: {op.no_vjp}; Forward still answers",
            reason="NO_GRADIENT_RULE" if differentiable else "NOT_DIFFERENTIABLE",
            facts={"op": op.name},
        )
