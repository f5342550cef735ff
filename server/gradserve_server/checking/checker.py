"""Checks of gradients beside other calls: each forward and backward pass that a check needs queues like a caller's own.

A check runs on a thread of its own and takes seconds; the device's thread it has only call by call.
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from gradserve.errors import Cancelled, OpContractError, quote
from gradserve.gradient_check import SEVERITY, GradientCheck, Line
from gradserve.op_info import OpInfo
from gradserve.seeds import with_seed
from gradserve.tensors import Array
from gradserve_server.checking.gradient_check import CheckOptions, check_gradient
from gradserve_server.checking.profile import profile
from gradserve_server.evaluation import Submit, check_has_vjp, select
from gradserve_server.ops import Op
from gradserve_server.program import Program
from gradserve_server.registry import OpVersion, Registry
from gradserve_server.requests import CheckRequest
from gradserve_server.scheduling.work import Load
from gradserve_server.threads import in_daemon_thread


class Checker:
    """Checks gradients, one op at a time, so that checks cannot crowd out other calls; remembers the last one of each."""

    def __init__(self, submit: Submit) -> None:
        """Takes the way to the devices."""
        self._submit = submit
        self._turn = asyncio.Lock()
        self._found: dict[tuple[str, int, str], GradientCheck] = {}

    async def answer(self, registry: Registry, request: CheckRequest) -> GradientCheck:
        """Checks the gradient of the op that a request names.

        Raises:
            GradserveError: The request is wrong, the op has no gradient, or its answers to equal requests may differ
                (NOT_REPEATABLE).
        """
        version, op = select(registry, request.call)
        arrays = with_seed(request.call.inputs, request.call.seed, op.signature, op.name)
        inputs = op.signature.inputs_in_order(arrays, op.name) if request.call.inputs else None
        if inputs is None and arrays:  # a seed alone: all else is drawn
            op = dataclasses.replace(
                op, example=[arrays.get(n, x) for n, x in zip(op.signature.inputs, op.example, strict=True)]
            )
        if request.line is not None:
            op.signature.check_differentiate(filter(None, [request.line.input]), op.name)
        check_has_vjp(op)
        _check_repeatable(op)
        found = await self.check(op, inputs, dataclasses.replace(CheckOptions(), **request.options), request.line)
        return dataclasses.replace(found, version=op.version, fingerprint=version.info.fingerprint)

    def describe(self, version: OpVersion) -> OpInfo:
        """Returns what callers are told of a version of an op at this time: with its traces, and the worst of its last checks."""
        ops = version.ops.values()
        checks = [self._found[op.key] for op in ops if op.key in self._found]
        worst = max(checks, key=lambda check: SEVERITY[check.verdict], default=None)
        return dataclasses.replace(
            version.info,
            traces=sum(op.program.trace_count for op in ops),
            check=None if worst is None else worst.verdict,
            check_text="" if worst is None else worst.text,
        )

    async def check(
        self, op: Op, inputs: Sequence[Array] | None, options: CheckOptions, line: Line | None = None
    ) -> GradientCheck:
        """Checks the gradient of an op.

        Args:
            op: The op.
            inputs: Inputs at which to check, in the signature's order; None to draw some.
            options: How much it may cost.
            line: A line along which to evaluate the op too.
        """
        async with self._turn:
            program = _QueuedProgram(op, self._submit, asyncio.get_running_loop())
            try:
                queued = dataclasses.replace(op, program=cast("Program", program))
                run = functools.partial(_check, queued, inputs, options, line)
                found = await in_daemon_thread(run, name="check")
            finally:
                program.stopped.set()  # if the caller went away, the thread is not worth its next call
        self._found[op.key] = found
        return found


def _check_repeatable(op: Op) -> None:
    if op.stateful or not op.repeatable:
        why = "a call changes its state" if op.stateful else "it draws random numbers that depend on no input"
        raise OpContractError(
            f"op {quote(op.name)}: its gradient cannot be checked, since equal requests may have different answers: {why}; "
            "an input named 'seed', given to tf.random.stateless_*, makes it repeatable",
            reason="NOT_REPEATABLE",
            facts={"op": op.name},
        )


def _check(op: Op, inputs: Sequence[Array] | None, options: CheckOptions, line: Line | None) -> GradientCheck:
    own_vjp = op.program.own_vjp
    found = check_gradient(op, inputs=inputs, options=options, own_vjp=own_vjp, linear=op.linear)
    return found if line is None else dataclasses.replace(found, profile=profile(op, line, own_vjp))


class _QueuedProgram:
    """A program that is called on another thread than its device's; see ``gradserve_server.ops.Program``."""

    def __init__(self, op: Op, submit: Submit, loop: asyncio.AbstractEventLoop) -> None:
        self._op = op
        self._submit = submit
        self._loop = loop
        self.stopped = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Returns a method of the program that queues itself and waits."""
        return functools.partial(self._call, getattr(self._op.program, name))

    def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.stopped.is_set():
            raise Cancelled("nobody waits for the check any more")
        queued: concurrent.futures.Future[Any] = asyncio.run_coroutine_threadsafe(
            self._queue(functools.partial(method, *args, **options)), self._loop
        )
        return queued.result()

    async def _queue(self, function: Callable[[], Any]) -> Any:
        return await self._submit(self._op.device, function, Load(group=self._op.group)).future
