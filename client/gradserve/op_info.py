"""``OpInfo``: what a server tells about an op, and its form on the wire."""

import dataclasses
from collections.abc import Mapping

from gradserve.gradient_check import Verdict, verdict_from_wire, verdict_to_wire
from gradserve.signature import (
    Signature,
    TensorSpec,
    signature_from_message,
    signature_to_message,
    spec_from_message,
    spec_to_message,
)
from gradserve.v1 import op_pb2

_KIND_NAMES = {number: name.removeprefix("GRADIENT_KIND_").lower() for name, number in op_pb2.GradientKind.items()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpInfo:
    """One version of an op."""

    name: str
    """Name, unique with the version."""
    version: int
    """Version, at least 1."""
    documentation: str
    """Documentation, as its author wrote it."""
    signatures: Mapping[str, Signature]
    """Signatures by key, the default one first."""
    gradient: str
    """What the gradient claims to be: "exact", "surrogate" or "unchecked"."""
    elementwise: bool
    """Whether each output element depends on the input elements at the same index alone."""
    stateful: bool
    """Whether a call changes the op's state, so that it must not be repeated."""
    device: str
    """Device that computes it, such as "cpu:0"; empty if it could not be loaded."""
    fingerprint: str
    """Hexadecimal digest of graph, signatures and the values of variables; empty if it could not be loaded."""
    variables: Mapping[str, TensorSpec] = dataclasses.field(default_factory=dict)
    """Variables that it reads, by name; the differentiable ones are the trainable ones."""
    failure: str = ""
    """Why it could not be loaded; empty if it is ready."""
    repeatable: bool = True
    """Whether equal requests have equal answers; not so where it draws random numbers that depend on no input."""
    linear: bool | None = None
    """Whether its gradient is linear in the output gradients, which ``Client.jvp`` needs; None if that is not known."""
    traces: int = 0
    """How many concrete functions have been traced for it so far."""
    check: Verdict | None = None
    """What the last check of its gradient found; None if none has run."""
    check_text: str = ""
    """What that check said."""


def op_info_to_message(info: OpInfo) -> op_pb2.Op:
    """Inverse of ``op_info_from_message``."""
    return op_pb2.Op(
        name=info.name,
        version=info.version,
        documentation=info.documentation,
        signatures=[signature_to_message(signature) for signature in info.signatures.values()],
        gradient=f"GRADIENT_KIND_{info.gradient.upper()}",
        elementwise=info.elementwise,
        stateful=info.stateful,
        device=info.device,
        fingerprint=info.fingerprint,
        state=op_pb2.OP_STATE_FAILED if info.failure else op_pb2.OP_STATE_READY,
        failure=info.failure,
        variables=[spec_to_message(spec) for spec in info.variables.values()],
        unrepeatable=not info.repeatable,
        linear_in_output_gradients=info.linear,  # type: ignore[arg-type]  # None leaves it unset
        traces=info.traces,
        check=verdict_to_wire(info.check),
        check_text=info.check_text,
    )


def op_info_from_message(message: op_pb2.Op) -> OpInfo:
    """Inverse of ``op_info_to_message``; a kind of gradient that only newer servers know is "unspecified"."""
    return OpInfo(
        name=message.name,
        version=message.version,
        documentation=message.documentation,
        signatures={signature.key: signature_from_message(signature) for signature in message.signatures},
        gradient=_KIND_NAMES.get(message.gradient, "unspecified"),
        elementwise=message.elementwise,
        stateful=message.stateful,
        device=message.device,
        fingerprint=message.fingerprint,
        failure=message.failure,
        variables={spec.name: spec_from_message(spec) for spec in message.variables},
        repeatable=not message.unrepeatable,
        linear=message.linear_in_output_gradients if message.HasField("linear_in_output_gradients") else None,
        traces=message.traces,
        check=verdict_from_wire(message.check),
        check_text=message.check_text,
    )
