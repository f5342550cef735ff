"""The gradient check: whether an op's rule is the derivative of its forward pass, judged by forward values alone.

    points -> for each input: random directions, and its elements -> comparison with the rule -> findings -> verdict

The derivative that the rule is compared with comes from ``differences``, never from the rule or a tape. A verdict of
"fail" or "departs" needs a departure that was measured twice, at a point where outputs and gradients are finite; whatever
cannot be measured well enough is "unchecked".
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gradserve.errors import quote
from gradserve.gradient_check import SEVERITY, Finding, GradientCheck
from gradserve.tensors import Array
from gradserve_server.checking import findings
from gradserve_server.checking.beside_own import of_own_derivative
from gradserve_server.checking.comparison import (
    Comparison,
    coarsest,
    compare_directions,
    compare_elements,
    is_roughened,
)
from gradserve_server.checking.diagnosis import diagnose
from gradserve_server.checking.differences import scheme_of, widened_scheme_of
from gradserve_server.checking.findings import VERDICT_OF_DEPARTURE, Measured
from gradserve_server.checking.points import draw_points
from gradserve_server.checking.sampling import Budget, Point, Sampler, Vjp, evaluate, float_outputs
from gradserve_server.checking.widening import is_narrow, widen, widen_point
from gradserve_server.ops import Op

_OUT_OF_TIME = "it could not be compared within"
_IN_FLOAT64 = ", in float64"
_ROUNDED = ", in 16-bit floats, where only gross faults show: float64 cannot stand in for them here"
_ROUGH = 2.0**-38
"""Noise of float64 forward values, relative to their size, from which a detour over float32 is looked for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """How much a check may cost."""

    points: int = 3
    """At how many points the op is looked at, if they are drawn."""
    directions: int = 4
    """How many random directions each input is moved in, at each point."""
    output_gradients: int = 4
    """How many output gradients are drawn, at each point."""
    max_elements: int = 64
    """How many elements of each input are moved by themselves, at each point; a larger input has some chosen."""
    max_seconds: float = 10.0
    """After how many seconds the check ends with what it has."""
    draw_seed: int = 0
    """Seed of all that is drawn."""


START_OPTIONS = CheckOptions(points=2, directions=1, output_gradients=2, max_elements=9, max_seconds=2.0)
"""What a server spends on each op at its start: some hundred forward calls."""


def check_gradient(
    op: Op,
    *,
    inputs: Sequence[Array] | None = None,
    options: CheckOptions | None = None,
    own_vjp: Vjp | None = None,
    linear: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> GradientCheck:
    """Checks the gradient of an op; to be called on the thread of the op's device.

    Args:
        op: The op.
        inputs: Inputs in the signature's order, where it is looked at; None to draw points.
        options: How much it may cost.
        own_vjp: TensorFlow's own derivative of the forward pass, to be shown beside the rule.
        linear: Whether the rule is linear in the output gradients, to be reported; None if that is not known.
        clock: Counts seconds.

    Returns:
        A finding for each test and input, and the worst verdict. Nothing is raised: what the op raises makes a point
        unusable.
    """
    why_not = _why_not(op)
    if why_not:
        return _unchecked(op, why_not, [])
    check = _Check(op, options or CheckOptions(), own_vjp, clock)
    check.run(inputs)
    return check.result(linear)


def _why_not(op: Op) -> str:
    if op.no_vjp:
        return f"there is no backward pass: {op.no_vjp}"
    if op.stateful:
        return "a call changes its state, so that forward values cannot be compared"
    if not any(spec.dtype.is_differentiable for spec in op.signature.inputs.values()):
        return "none of its inputs is of a floating-point or complex dtype"
    if not any(spec.differentiable for spec in op.signature.inputs.values()):
        return "its rule has no gradient for any input, so that there is nothing to compare"
    return ""


def _unchecked(op: Op, why: str, found: Sequence[Finding]) -> GradientCheck:
    text = f"op {quote(op.name)}: unchecked: {why}"
    return GradientCheck(
        verdict="unchecked",
        text=text,
        findings=found,
        points=0,
        signature=op.signature.key,
        version=op.version,
        fingerprint=op.fingerprint,
    )


class _Check:
    """One run."""

    def __init__(self, op: Op, options: CheckOptions, own_vjp: Vjp | None, clock: Callable[[], float]) -> None:
        self._op = op
        self._wide = widen(op)
        self._options = options
        self._own_vjp = own_vjp
        self._budget = Budget(options.max_seconds, clock)
        self._rng = np.random.default_rng(options.draw_seed)
        self._points: list[Point] = []
        self._unfit = ""
        self._how = ""
        self._rough: list[Finding] = []
        specs = list(op.signature.inputs.values())
        self._inputs = [i for i, spec in enumerate(specs) if spec.dtype.is_differentiable]
        self._elements: dict[int, list[Comparison]] = {i: [] for i in self._inputs}
        self._directions: dict[int, list[Comparison]] = {i: [] for i in self._inputs}

    def run(self, inputs: Sequence[Array] | None) -> None:
        """Measures at each point, while there is time."""
        for point in self._usable_points(inputs):
            self._points.append(point)
            wide = self._widened(point) if is_narrow(self._op) else None
            for position in self._inputs:
                self._measure(point, wide, position)
            if self._budget.spent():
                break

    def _widened(self, point: Point) -> Point | None:
        found = widen_point(self._op, point)
        self._how = _ROUNDED if found is None or self._how == _ROUNDED else _IN_FLOAT64
        return found

    def _usable_points(self, inputs: Sequence[Array] | None) -> Iterator[Point]:
        drawn = (
            [inputs]
            if inputs is not None
            else draw_points(self._op, self._options.points, self._rng, self._budget.spent)
        )
        for arrays in drawn:
            try:
                point = evaluate(
                    self._op, arrays, self._options.output_gradients, self._rng, self._options.max_elements
                )
                again = evaluate(self._op, arrays, 1, self._rng)
            except Exception as error:  # the op may raise anything
                self._unfit = f"it raises {type(error).__name__} at the given inputs"
                continue
            if not point.is_finite():
                self._unfit = "outputs or gradients are not finite at the given inputs"
            elif not _repeats(point, again):
                self._unfit = "the forward pass does not repeat: two calls with the same inputs differ"
            else:
                yield point

    def _measure(self, point: Point, wide: Point | None, position: int) -> None:
        outputs = float_outputs(self._op, self._op.program.forward(point.inputs))
        dtype = coarsest(position, point.inputs, outputs)
        if wide is None:
            sampler = Sampler(self._op, point, self._budget, scheme_of(dtype))
        else:
            sampler = Sampler(self._wide, wide, self._budget, widened_scheme_of(dtype))
        along = compare_directions(sampler, position, self._options.directions, self._rng)
        self._directions[position].append(along)
        if list(self._op.signature.inputs.values())[position].differentiable:
            most = self._options.max_elements
            self._elements[position].append(compare_elements(sampler, position, most, self._rng))
        if wide is None and sampler.scheme.unit < 1e-12 and not self._rough:
            self._look_for_roughness(sampler, along, position)

    def _look_for_roughness(self, sampler: Sampler, along: Comparison, position: int) -> None:
        rough = next((slope for slope in along.slopes if slope.roughness > _ROUGH), None)
        if rough is None or not is_roughened(sampler, rough):
            return
        name = list(self._op.signature.inputs)[position]
        text = (
            f"input {quote(name)}: the forward pass is of float32's precision and not float64's: it stands still for "
            "relative steps of 2e-10; look for a cast to float32 in it"
        )
        self._rough.append(
            Finding(test="adjoint", input=name, verdict=VERDICT_OF_DEPARTURE[self._op.gradient], text=text)
        )

    def result(self, linear: bool | None) -> GradientCheck:
        """Makes findings of what was measured."""
        found = [*self._rough, *self._findings()]
        if linear is not None:
            text = "the rule is linear in dy" if linear else "the rule is not linear in dy: it has no JVP"
            found.append(Finding(test="linearity", verdict="pass", text=text))
        if self._budget.spent():
            found = [_out_of_time(finding, self._options) for finding in found]
        if not self._points:
            late = f"{_OUT_OF_TIME} {self._options.max_seconds:g} s" if self._budget.spent() else ""
            why = (
                late or self._unfit or "at none of the drawn inputs were outputs and gradients finite; give an example"
            )
            return _unchecked(self._op, why, found)
        return self._conclude(found)

    def _findings(self) -> Iterator[Finding]:
        measured = {i: self._measured(i) for i in self._inputs} if self._points else {}
        evidence = {i: found.evidence() for i, found in measured.items()}
        for i, one in measured.items():
            others = [found for j, found in evidence.items() if j != i and found is not None]
            cause = diagnose(own, others) if (own := evidence[i]) is not None else ""
            forward = [findings.of_directions(one, cause)]
            if one.connected:
                yield findings.of_finite(one, tried=len(self._points))
                elements = [findings.of_elements(one, cause)] if self._options.max_elements else []
                forward = [*elements, *forward, findings.of_taylor(one)]
            yield from forward
            if self._own_vjp is not None and one.connected:
                yield of_own_derivative(one, self._own_vjp, forward)

    def _measured(self, position: int) -> Measured:
        return Measured(
            op=self._op,
            position=position,
            points=self._points,
            elements=self._elements[position],
            directions=self._directions[position],
        )

    def _conclude(self, found: Sequence[Finding]) -> GradientCheck:
        """The worst finding counts, of those that compare the rule with forward values."""
        judging = [finding for finding in found if finding.test not in ("finite", "linearity")]
        worst = max(judging, key=lambda finding: SEVERITY[finding.verdict])
        text, verdict = worst.text, worst.verdict
        if verdict == "pass":
            text = f"the rule agrees with forward values at {len(self._points)} points{self._how}"
            unmeasured = self._unmeasured(judging)
            if unmeasured:
                verdict, text = "unchecked", "; ".join(finding.text for finding in unmeasured)
        return GradientCheck(
            verdict=verdict,
            text=f"op {quote(self._op.name)}: {verdict}: {text}",
            findings=found,
            points=len(self._points),
            signature=self._op.signature.key,
            version=self._op.version,
            fingerprint=self._op.fingerprint,
        )

    def _unmeasured(self, judging: Sequence[Finding]) -> list[Finding]:
        """Returns a finding for each input with a gradient that no test could compare with forward values."""
        names = [spec.name for spec in self._op.signature.inputs.values() if spec.differentiable]
        of_forward = [finding for finding in judging if finding.test in ("elements", "adjoint")]
        by_input = [[finding for finding in of_forward if finding.input == name] for name in names]
        return [found[-1] for found in by_input if found and all(finding.verdict == "unchecked" for finding in found)]


def _out_of_time(finding: Finding, options: CheckOptions) -> Finding:
    """Returns a finding that says why it found nothing, if the time is over."""
    if finding.verdict != "unchecked":
        return finding
    text = f"input {quote(finding.input)}: {_OUT_OF_TIME} {options.max_seconds:g} s; allow more by max_seconds"
    return dataclasses.replace(finding, text=text)


def _repeats(point: Point, again: Point) -> bool:
    slack = 64 * point.units * np.maximum(np.abs(point.outputs), np.abs(point.outputs).max(initial=0.0))
    return bool((np.abs(point.outputs - again.outputs) <= slack).all())
