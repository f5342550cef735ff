"""What calls return: frozen records of numpy arrays by name."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from gradserve.tensors import Array

T = TypeVar("T")


class Derivative(NamedTuple):
    """A gradient, tangent, product or Jacobian, or why there is none."""

    array: Array | None
    """The derivative."""
    status: str
    """"dense", "unconnected" or "not_differentiable"."""


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

    def derivatives(self) -> Mapping[str, Mapping[str, Derivative]]:
        """Returns everything in the result that is no output, by kind, such as "gradient", and name."""
        return {}


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
        """The input gradient, where exactly one was asked for, apart from inputs that can have none by their dtype.

        Raises:
            ValueError: There are several.
        """
        return _only("gradient", _differentiable(self.input_gradients, self.status))

    def derivatives(self) -> Mapping[str, Mapping[str, Derivative]]:
        """Returns the gradients, by kind and name."""
        kinds = {"gradient": self.input_gradients, "variable gradient": self.variable_gradients}
        return {kind: _join(gradients, self.status) for kind, gradients in kinds.items()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JvpResult(ForwardResult):
    """The outputs of an op and their tangents."""

    output_tangents: Mapping[str, Array | None]
    """Tangent by output, in the signature's order; None where there is none."""
    status: Mapping[str, str]
    """By output: "dense", "unconnected" or "not_differentiable"."""

    @property
    def tangent(self) -> Array | None:
        """The tangent of the output, where there is exactly one, apart from those that can have none by their dtype.

        Raises:
            ValueError: There are several.
        """
        return _only("tangent", _differentiable(self.output_tangents, self.status))

    def derivatives(self) -> Mapping[str, Mapping[str, Derivative]]:
        """Returns the tangents."""
        return {"tangent": _join(self.output_tangents, self.status)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HvpResult(ForwardResult):
    """The outputs of an op, and its second derivative multiplied by a vector."""

    products: Mapping[str, Array | None]
    """Product by input, in the signature's order; None where there is none."""
    status: Mapping[str, str]
    """By input: "dense", "unconnected" or "not_differentiable"."""

    @property
    def product(self) -> Array | None:
        """The product, where the op has exactly one input, apart from those that can have none by their dtype.

        Raises:
            ValueError: There are several.
        """
        return _only("product", _differentiable(self.products, self.status))

    def derivatives(self) -> Mapping[str, Mapping[str, Derivative]]:
        """Returns the products."""
        return {"product": _join(self.products, self.status)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JacobianResult(ForwardResult):
    """The outputs of an op and its Jacobians."""

    jacobians: Mapping[str, Mapping[str, Array | None]]
    """By differentiable output and then by input asked for; each has the shape of the output followed by that of the input."""
    status: Mapping[str, Mapping[str, str]]
    """Likewise: "dense", "unconnected" or "not_differentiable"."""

    @property
    def jacobian(self) -> Array | None:
        """The Jacobian, where there is exactly one, apart from those by inputs that can have none by their dtype.

        Raises:
            ValueError: There are several.
        """
        by_input = _only("differentiable output", self.jacobians)
        return _only("Jacobian", _differentiable(by_input, _only("differentiable output", self.status)))

    def derivatives(self) -> Mapping[str, Mapping[str, Derivative]]:
        """Returns the Jacobians, named "OUTPUT by INPUT"."""
        named = {
            f"{output} by {name}": derivative
            for output, by_input in self.jacobians.items()
            for name, derivative in _join(by_input, self.status[output]).items()
        }
        return {"jacobian": named}


def _join(arrays: Mapping[str, Array | None], status: Mapping[str, str]) -> dict[str, Derivative]:
    return {name: Derivative(array, status.get(name, "")) for name, array in arrays.items()}


def _differentiable(values: Mapping[str, T], status: Mapping[str, str]) -> Mapping[str, T]:
    """Returns the values without those of an integer, bool or string dtype, if there are others."""
    found = {name: value for name, value in values.items() if status.get(name) != "not_differentiable"}
    return found or values


def _only(what: str, values: Mapping[str, T]) -> T:
    if len(values) != 1:
        raise ValueError(f"there is not exactly one {what} but {len(values)}: {', '.join(values)}; take one by name")
    return next(iter(values.values()))
