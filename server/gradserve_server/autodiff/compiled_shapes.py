"""Shapes that XLA compiled an op for: each costs some 70 ms and half a megabyte, for good, and no count of traces shows it."""

from collections.abc import Sequence

from gradserve.errors import ResourceExhausted, quote
from gradserve.tensors import Array

MOST_SHAPES = 64
"""How many an op may be compiled for, unless the operator says otherwise."""
_SHOWN = 3

Shapes = tuple[tuple[int, ...], ...]


class CompiledShapes:
    """The shapes that the traces of one op were called with, at most so many."""

    def __init__(self, op_name: str, most: int) -> None:
        """Takes the name of the op, for errors, and how many there may be."""
        self._op_name = op_name
        self._most = most
        self._seen: dict[object, set[Shapes]] = {}

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(map(len, self._seen.values()))

    def add(self, trace: object, arrays: Sequence[Array]) -> None:
        """Takes note of a call, before it is made.

        Raises:
            ResourceExhausted: It would be one shape too many (TOO_MANY_COMPILED_SHAPES).
        """
        seen, shapes = self._seen.setdefault(trace, set()), tuple(array.shape for array in arrays)
        if shapes in seen:
            return
        if self.count >= self._most:
            known = "; ".join(" ".join(map(str, one)) for one in sorted(seen)[:_SHOWN])
            raise ResourceExhausted(
                f"op {quote(self._op_name)}: XLA compiles it anew for each set of shapes, for at most {self._most} in all "
                f"(--max-compiled-shapes): got {' '.join(map(str, shapes))}, beside {known} and others; pad to one of those",
                reason="TOO_MANY_COMPILED_SHAPES",
                facts={"op": self._op_name, "wanted": str(self._most), "got": " ".join(map(str, shapes))},
            )
        seen.add(shapes)
