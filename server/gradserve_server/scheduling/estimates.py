"""Estimates: how long calls of a kind take, from those that ran."""

from collections.abc import Hashable

_FALL, _RISE = 0.5, 0.2
"""Parts by which an estimate moves towards a shorter and a longer time. One slow call must not have others refused."""


class Estimates:
    """Seconds by kind, as one thread learns them. Kinds come from the registry, so that there are only so many."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._seconds: dict[Hashable, float] = {}

    def of(self, kind: Hashable) -> float:
        """Returns how long a call of a kind may take; 0 if none has run."""
        return self._seconds.get(kind, 0.0)

    def add(self, kind: Hashable, seconds: float) -> None:
        """Takes note of a call that ran."""
        before = self.of(kind)
        self._seconds[kind] = before + (_FALL if seconds < before else _RISE) * (seconds - before)
