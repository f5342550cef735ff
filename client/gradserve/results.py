"""What calls return: frozen records of numpy arrays by name."""

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from gradserve.tensors import Array

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """The outputs of an op."""

    outputs: Mapping[str, Array]
    """Outputs by name, in the signature's order."""
    version: int
    """Version of the op that answered."""
    fingerprint: str
    """Digest of the graph that answered."""
    request_id: str
    """Id under which the server logged the call."""
    timing: Mapping[str, float]
    """Milliseconds that the server spent, by stage: decode, queue, compute, encode."""

    @property
    def output(self) -> Array:
        """The output, where there is exactly one.

        Raises:
            ValueError: There are several.
        """
        return _only("output", self.outputs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VjpResult(ForwardResult):
    """The outputs of an op and the gradients of its inputs."""

    input_gradients: Mapping[str, Array | None]
    """Gradient by input asked for, in the signature's order; None where there is none."""
    variable_gradients: Mapping[str, Array | None]
    """Gradient by variable, if asked for; None where there is none."""
    status: Mapping[str, str]
    """By input or variable: "dense", "unconnected" or "not_differentiable"."""

    @property
    def gradient(self) -> Array | None:
        """The input gradient, where exactly one was asked for.

        Raises:
            ValueError: There are several.
        """
        return _only("gradient", self.input_gradients)


def _only(what: str, values: Mapping[str, T]) -> T:
    if len(values) != 1:
        raise ValueError(f"there is not exactly one {what} but {len(values)}: {', '.join(values)}; take one by name")
    return next(iter(values.values()))
