"""Evaluators of ops that a test defines, on a real device."""

import time
from collections.abc import Iterable

from gradserve_server.evaluation import Evaluator
from gradserve_server.ops import Op
from gradserve_server.registry import Registry
from gradserve_server.requests import EvaluationRequest
from gradserve_server.responses import Evaluation
from gradserve_server.rows import Limits
from gradserve_server.scheduling.device import Device
from gradserve_server.telemetry import Call, set_current_call
from gradserve_server.warmup import with_facts


def evaluator_of(ops: Iterable[Op], device: Device) -> Evaluator:
    """Returns an evaluator for ops about whose rules everything has been found out, with small limits."""
    limits = Limits(max_rows=64, max_response_bytes=2**14)
    registry = Registry([with_facts(op) for op in ops])
    return Evaluator(registry, lambda _, *work: device.submit(*work), limits)


async def call(
    evaluator: Evaluator, method: str, op: str, inputs: object, *, deadline: float | None = None, **options: object
) -> Evaluation:
    """Evaluates a request by one of the evaluator's methods; the deadline is by ``time.perf_counter``."""
    this = Call(method=method, request_id="id", clock=time.perf_counter, started_at=0.0)
    this.deadline = this.deadline if deadline is None else deadline
    set_current_call(this)
    given = {"op": op, "version": 0, "signature": "", "inputs": inputs, **options}
    return await getattr(evaluator, method)(EvaluationRequest(**given))
