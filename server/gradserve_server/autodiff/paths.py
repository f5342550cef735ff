"""Paths: which inputs of a function reach a tensor, and what stands in the way of a derivative, as sets of bits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Paths(NamedTuple):
    """The inputs of a function that reach one tensor; bit 3 stands for input 2, and bit 0 for what Python code keeps.

    The gradient of a ``tf.py_function`` finds the inputs of that function again outside the graph.
    """

    data: int
    """Those that reach it over any tensors."""
    smooth: int
    """Those that reach it over tensors of a floating-point or complex dtype, and through no operation that cuts."""
    blocked: Mapping[str, int]
    """Those of the latter on whose way stands an operation without a rule, by its type."""

    def blocked_by(self, kind: str) -> "Paths":
        """Returns the paths having passed an operation of a type that has no rule."""
        return Paths(self.data, self.smooth, {**self.blocked, kind: self.smooth}) if self.smooth else self

    def as_values(self) -> "Paths":
        """Returns the paths as those over which no derivative goes."""
        return Paths(self.data, 0, {})


Summary = list[Paths]
"""The paths to several tensors, as to each output of a function."""

NONE = Paths(0, 0, {})
"""No input reaches it."""
KEPT = Paths(1, 1, {})
"""What Python code keeps reaches it."""


def path_of(input_: int, *, smooth: bool) -> Paths:
    """Returns the paths to an input itself."""
    bit = 2 << input_
    return Paths(bit, bit if smooth else 0, {})


def join(all_paths: Sequence[Paths]) -> Paths:
    """Returns the paths to what depends on several tensors."""
    if len(all_paths) == 1:
        return all_paths[0]
    data = smooth = 0
    for paths in all_paths:
        data |= paths.data
        smooth |= paths.smooth
    return Paths(data, smooth, _union(paths.blocked for paths in all_paths if paths.blocked))


def compose(inner: Paths, given: Sequence[Paths]) -> Paths:
    """Returns the paths to a tensor inside a called function.

    Args:
        inner: Its paths from the inputs of that function.
        given: The paths to each of those inputs.
    """
    outer = [KEPT, *given]
    data = smooth = 0
    for index in _bits(inner.data):
        data |= outer[index].data
    crossed = [outer[index] for index in _bits(inner.smooth)]
    for paths in crossed:
        smooth |= paths.smooth
    inside = ({kind: outer[i].smooth} for kind, inputs in inner.blocked.items() for i in _bits(inputs))
    blocked = _union([*(paths.blocked for paths in crossed), *inside])
    return Paths(data, smooth, blocked)


def _union(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    union: dict[str, int] = {}
    for part in parts:
        for kind, inputs in part.items():
            if inputs:
                union[kind] = union.get(kind, 0) | inputs
    return union


def _bits(number: int) -> Iterator[int]:
    """Yields the positions of the bits that are set."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
