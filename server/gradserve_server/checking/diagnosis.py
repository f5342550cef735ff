"""Diagnosis: from how a rule departs from the derivative to what its author most likely did."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from gradserve.tensors import Array

_FLOAT32_AGREEMENT = 2e-6
"""Largest relative difference that a detour over float32 in a rule for float64 explains."""
_ALIKE = 0.02
"""How far measured factors may lie apart and still be one factor."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured of the gradient of one input, over all points and output gradients, as one row of elements."""

    name: str
    """Name of the input."""
    wanted: Array
    """The derivative, by forward values."""
    got: Array
    """What the rule says."""
    tolerance: Array
    """Largest difference that counts as none."""
    values: Array
    """The input's element."""
    places: Array
    """Number of the element in its input."""
    ignores_output_gradient: bool
    """Whether the rule gave the same for different output gradients."""
    is_double: bool
    """Whether everything is of 64-bit precision."""

    @property
    def off(self) -> Array:
        """Where they differ."""
        return np.asarray(np.abs(self.wanted - self.got) > self.tolerance)

    @property
    def clear(self) -> Array:
        """Where the derivative is well above its tolerance."""
        return np.abs(self.wanted) > 4 * self.tolerance


def diagnose(evidence: Evidence, others: Sequence[Evidence]) -> str:
    """Returns the likeliest cause, and where it holds; empty if the numbers point at none.

    Args:
        evidence: Of the input whose gradient departs.
        others: Of the other inputs.
    """
    if not evidence.off.any():
        return ""
    causes = (_zero, _ignores, _detour, _flat, _swapped, _factor, _branch, _offset, _shifted, _one_place)
    return next((text for cause in causes if (text := cause(evidence, others))), "")


def _zero(evidence: Evidence, _: Sequence[Evidence]) -> str:
    return "the rule gives zeros alone" if not evidence.got.any() else ""


def _ignores(evidence: Evidence, _: Sequence[Evidence]) -> str:
    if not evidence.ignores_output_gradient:
        return ""
    return "the rule's result does not depend on dy, which may have been forgotten: multiply it in"


def _detour(evidence: Evidence, _: Sequence[Evidence]) -> str:
    relative = np.abs(evidence.got - evidence.wanted) / np.maximum(np.abs(evidence.wanted), np.abs(evidence.got).max())
    if not evidence.is_double or relative.max() > _FLOAT32_AGREEMENT:
        return ""
    return (
        f"they agree to {relative.max():.1e} of their size, which is float32's precision and not float64's: "
        "look for a cast to float32 in the rule"
    )


def _flat(evidence: Evidence, _: Sequence[Evidence]) -> str:
    if (np.abs(evidence.wanted) > evidence.tolerance).any():
        return ""
    return "the forward pass is flat there, as that of a step function is"


def _swapped(evidence: Evidence, others: Sequence[Evidence]) -> str:
    for other in others:
        if other.got.shape == evidence.got.shape and _agree(evidence, other) and _agree(other, evidence):
            return f"the gradients of {evidence.name!r} and {other.name!r} are swapped"
    return ""


def _agree(one: Evidence, other: Evidence) -> bool:
    """Whether what the rule says of one input is the derivative of the other."""
    slack = one.tolerance + other.tolerance + _ALIKE * np.abs(other.wanted)
    return bool((np.abs(one.got - other.wanted) <= slack).all())


def _factor(evidence: Evidence, _: Sequence[Evidence]) -> str:
    factor = _common_factor(evidence, np.ones_like(evidence.off))
    return "" if factor is None else f"the rule gives {_say_factor(factor)}"


def _branch(evidence: Evidence, _: Sequence[Evidence]) -> str:
    """One factor where it departs, and agreement elsewhere."""
    factor = _common_factor(evidence, evidence.off)
    region = _region(evidence)
    if factor is None or not region:
        return ""
    return f"{region} the rule gives {_say_factor(factor)}; elsewhere it agrees"


def _offset(evidence: Evidence, _: Sequence[Evidence]) -> str:
    difference = evidence.got - evidence.wanted
    middle = float(np.median(difference))
    if len(difference) < 3 or (np.abs(difference - middle) > evidence.tolerance + _ALIKE * abs(middle)).any():
        return ""
    return f"the rule is off by the same amount everywhere: {middle:.4g}"


def _shifted(evidence: Evidence, _: Sequence[Evidence]) -> str:
    """The right numbers in other places, as after a forgotten reverse or a transpose."""
    count = len(np.unique(evidence.places))
    if count < 3 or len(evidence.got) % count:
        return ""
    wanted, got = (array.reshape(-1, count) for array in (evidence.wanted, evidence.got))
    slack = 2 * evidence.tolerance.reshape(-1, count).max(axis=1, keepdims=True) + _ALIKE * np.abs(got)
    moves = {"shifted by one": np.roll(wanted, 1, 1), "shifted back by one": np.roll(wanted, -1, 1)}
    moves["in reverse order"] = wanted[:, ::-1]
    told = [text for text, moved in moves.items() if (np.abs(got - moved) <= slack).all()]
    return f"the rule gives the right numbers {told[0]}" if told else ""


def _one_place(evidence: Evidence, _: Sequence[Evidence]) -> str:
    off = np.unique(evidence.places[evidence.off])
    if len(off) > 1 or len(np.unique(evidence.places)) < 2:
        return ""
    return "the other elements agree"


def _common_factor(evidence: Evidence, where: Array) -> float | None:
    """Returns the factor by which the rule is off everywhere there, if there is one."""
    clear = where & evidence.clear
    if not clear.any():
        return None
    strongest = np.argmax(np.where(clear, np.abs(evidence.wanted) / np.maximum(evidence.tolerance, 1e-300), 0))
    factor = float(evidence.got[strongest] / evidence.wanted[strongest])
    slack = evidence.tolerance * (1 + abs(factor)) + _ALIKE * np.abs(evidence.got)
    alike = (np.abs(evidence.got - factor * evidence.wanted) <= slack)[where].all()
    return factor if alike and factor and abs(factor - 1) > 1.5 * _ALIKE else None


def _say_factor(factor: float) -> str:
    if abs(factor + 1) <= _ALIKE:
        return "the wrong sign"
    size = f"{abs(factor):.3g} times" if abs(factor) >= 1 else f"only {abs(factor):.3g} of"
    sign = ", with the wrong sign" if factor < 0 else ""
    return f"{size} the derivative{', too large' if abs(factor) > 1 else ''}{sign}"


def _region(evidence: Evidence) -> str:
    """Says for which values of the input the rule departs, if a bound parts them from those where it agrees."""
    off, fine = evidence.values[evidence.off], evidence.values[~evidence.off & evidence.clear]
    if not len(fine):
        return ""
    for sign, less, more in ((1, off.max(), fine.min()), (-1, fine.max(), off.min())):
        if less < more:
            bound = 0.0 if less <= 0 <= more else (less if sign > 0 else more)
            return f"where {evidence.name} {'<' if sign > 0 else '>'}{'' if bound == 0 else '='} {bound:.4g}"
    return ""
