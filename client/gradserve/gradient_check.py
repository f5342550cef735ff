"""What a check of a gradient found, and its form on the wire."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from gradserve.tensors import Array, decode, encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import op_pb2

Verdict = Literal["pass", "departs", "fail", "unchecked"]
"""Agrees; does not, and the op says that its gradient is a surrogate; does not; nothing could be compared."""
SEVERITY: Mapping[Verdict, int] = {"unchecked": 0, "pass": 1, "departs": 2, "fail": 3}
"""Of several findings, the one of the highest number counts."""

_ON_WIRE: Mapping[Verdict, "op_pb2.CheckVerdict"] = {
    "pass": op_pb2.CHECK_VERDICT_PASS,
    "departs": op_pb2.CHECK_VERDICT_DEPARTS,
    "fail": op_pb2.CHECK_VERDICT_FAIL,
    "unchecked": op_pb2.CHECK_VERDICT_UNCHECKED,
}
_FROM_WIRE = {number: verdict for verdict, number in _ON_WIRE.items()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one test of a gradient found for one input."""

    test: str
    """Name of the test: "finite", "elements", "adjoint", "taylor", "own_derivative" or "linearity"."""
    verdict: Verdict
    """What was found."""
    text: str
    """One line for a reader: what was compared, what was found, and what the cause may be."""
    input: str = ""
    """Name of the input; empty if the test is about all of them together."""
    index: tuple[int, ...] = ()
    """Place of the worst element in the input; empty if the test has none, and for a number."""
    wanted: float = float("nan")
    """What the gradient should be there; NaN if the test has no such number."""
    got: float = float("nan")
    """What the op's rule says; NaN if the test has no such number."""
    tolerance: float = 0.0
    """Largest difference that counts as none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line in the space of one input, along which to evaluate an op."""

    low: float
    """Where it begins."""
    high: float
    """Where it ends."""
    points: int = 201
    """How many points, at least 2, evenly spaced."""
    input: str = ""
    """Name of the input; empty for the first differentiable one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """An op and its derivatives along a line: each array has an element for each point."""

    input: str
    """The input that varies."""
    positions: Array
    """The values of that input."""
    outputs: Array
    """The sum of the outputs."""
    rule: Array
    """Its gradient by the op's rule."""
    own_derivative: Array | None
    """TensorFlow's own derivative of the forward pass; None if there is none."""
    differences: Array
    """Differences of forward values."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck:
    """What a check of an op's gradient found."""

    verdict: Verdict
    """The worst of the findings, or "unchecked" if none compared anything."""
    text: str
    """Why, in one line."""
    findings: Sequence[Finding]
    """A finding for each test and input."""
    points: int
    """At how many points outputs and gradients were finite and compared."""
    signature: str = ""
    """Key of the signature that was checked."""
    profile: Profile | None = None
    """The op along a line, if one was asked for."""
    version: int = 0
    """Version of the op that was checked."""
    fingerprint: str = ""
    """Digest of the graph that was checked."""
    request_id: str = ""
    """Id under which the server logged the call."""


def verdict_to_wire(verdict: Verdict | None) -> "op_pb2.CheckVerdict":
    """Returns the number of a verdict; UNSPECIFIED for none."""
    return _ON_WIRE[verdict] if verdict is not None else op_pb2.CHECK_VERDICT_UNSPECIFIED


def verdict_from_wire(number: int) -> Verdict | None:
    """Returns the verdict of a number; None for none, or one that only newer servers know."""
    return _FROM_WIRE.get(number)  # type: ignore[call-overload,no-any-return]  # the stubs make a type of each number


def check_to_message(check: GradientCheck) -> pb.CheckGradientResponse:
    """Inverse of ``check_from_message``, but for the request id."""
    return pb.CheckGradientResponse(
        verdict=verdict_to_wire(check.verdict),
        text=check.text,
        findings=[_finding_to_message(finding) for finding in check.findings],
        points=check.points,
        signature=check.signature,
        profile=None if check.profile is None else _profile_to_message(check.profile),
        version=check.version,
        fingerprint=check.fingerprint,
    )


def check_from_message(message: pb.CheckGradientResponse, request_id: str = "") -> GradientCheck:
    """Inverse of ``check_to_message``; a verdict that only newer servers know is "unchecked"."""
    return GradientCheck(
        verdict=verdict_from_wire(message.verdict) or "unchecked",
        text=message.text,
        findings=[_finding_from_message(finding) for finding in message.findings],
        points=message.points,
        signature=message.signature,
        profile=_profile_from_message(message.profile) if message.HasField("profile") else None,
        version=message.version,
        fingerprint=message.fingerprint,
        request_id=request_id,
    )


def _finding_to_message(finding: Finding) -> pb.Finding:
    return pb.Finding(
        test=finding.test,
        input=finding.input,
        verdict=verdict_to_wire(finding.verdict),
        index=finding.index,
        wanted=finding.wanted,
        got=finding.got,
        tolerance=finding.tolerance,
        text=finding.text,
    )


def _finding_from_message(message: pb.Finding) -> Finding:
    return Finding(
        test=message.test,
        input=message.input,
        verdict=verdict_from_wire(message.verdict) or "unchecked",
        index=tuple(message.index),
        wanted=message.wanted,
        got=message.got,
        tolerance=message.tolerance,
        text=message.text,
    )


def _profile_to_message(profile: Profile) -> pb.Profile:
    own = profile.own_derivative
    return pb.Profile(
        input=profile.input,
        positions=encode(profile.positions, "positions"),
        outputs=encode(profile.outputs, "outputs"),
        rule=encode(profile.rule, "rule"),
        own_derivative=None if own is None else encode(own, "own_derivative"),
        differences=encode(profile.differences, "differences"),
    )


def _profile_from_message(message: pb.Profile) -> Profile:
    return Profile(
        input=message.input,
        positions=decode(message.positions).copy(),
        outputs=decode(message.outputs).copy(),
        rule=decode(message.rule).copy(),
        own_derivative=decode(message.own_derivative).copy() if message.HasField("own_derivative") else None,
        differences=decode(message.differences).copy(),
    )
