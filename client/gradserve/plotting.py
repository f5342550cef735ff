"""Pictures of an op and its derivatives along a line; needs matplotlib, which ``pip install 'gradserve[plot]'`` brings."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradserve.gradient_check import GradientCheck, Profile
from gradserve.tensors import Array

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise ValueError("--plot: matplotlib is not installed; pip install 'gradserve[plot]'") from error

_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#999999"
"""Told apart by most people who see colours differently (Okabe and Ito, 2008)."""


def plot_profile(check: GradientCheck, title: str, path: str | Path) -> None:
    """Draws forward values above, and the rule, TensorFlow's own derivative and differences of forward values below.

    Args:
        check: A check that was asked for a line.
        title: Title of the picture.
        path: File to write; its suffix says in which format.

    Raises:
        ValueError: The check has no profile, or matplotlib does not know the suffix.
        OSError: The file cannot be written.
    """
    profile = check.profile
    if profile is None:
        raise ValueError("the check was not asked for a line")
    figure = Figure(figsize=(8, 7), layout="constrained")
    forward, derivatives, difference = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1))
    figure.suptitle(f"{title}: {check.verdict}", fontweight="bold")
    x = _real(profile.positions)
    forward.plot(x, _real(profile.outputs), color=_BLUE, label="forward")
    derivatives.plot(
        x, _real(profile.differences), color=_GREY, linewidth=5, alpha=0.5, label="differences of forward values"
    )
    if profile.own_derivative is not None:
        derivatives.plot(
            x, _real(profile.own_derivative), color=_GREEN, linestyle="--", label="TensorFlow's own derivative"
        )
    derivatives.plot(x, _real(profile.rule), color=_ORANGE, label="the op's gradient")
    low, high = _range([profile.rule, *([] if profile.own_derivative is None else [profile.own_derivative])])
    derivatives.set_ylim(low, high)  # at a step, differences shoot up without bound
    reference, name = _reference(profile)
    difference.plot(x, _real(profile.rule) - _real(reference), color=_ORANGE, label=f"the op's gradient - {name}")
    difference.set_xlabel(profile.input)
    for axes, label in ((forward, "output"), (derivatives, "derivative"), (difference, "departure")):
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, fontsize="small")
    figure.savefig(path, dpi=100)


def _reference(profile: Profile) -> tuple[Array, str]:
    if profile.own_derivative is None:
        return profile.differences, "differences"
    return profile.own_derivative, "TensorFlow's own"


def _range(arrays: Sequence[Array]) -> tuple[float, float]:
    """Returns a range that holds all finite values and 0, with some room."""
    values = np.concatenate([_real(array) for array in arrays])
    finite = np.append(values[np.isfinite(values)], 0.0)
    room = 0.15 * max(float(np.ptp(finite)), 1e-3)
    return float(finite.min()) - room, float(finite.max()) + room


def _real(array: Array) -> Array:
    return array.real.astype(float)
