"""Estimates: how long calls of a kind take, from those that ran."""

from collections.abc import Hashable

_FALL, _RISE = 0.5, 0.2
"""Parts by which an estimate moves towards a shorter and a longer time. One slow call must not have others refused."""
_LONG = 10
"""A call that takes so many times what is light is remembered,"""
_CALLS_TO_FORGET = 64
"""until so many after it did not."""


class Estimates:
    """Seconds by kind, as one thread at a time learns them. Kinds come from the registry, so that there are only so many."""

    def __init__(self, light_seconds: float = 0.0) -> None:
        """Knows nothing yet but how long a light call takes at most."""
        self._light_seconds = light_seconds
        self._seconds: dict[Hashable, float] = {}
        self._calls_to_forget: dict[Hashable, int] = {}

    def of(self, kind: Hashable) -> float:
        """Returns how long a call of a kind may take; 0 if none has run."""
        return self._seconds.get(kind, 0.0)

    def is_light(self, kind: Hashable) -> bool:
        """Returns whether calls of a kind are light, and not one of late was far from it."""
        return 0 < self.of(kind) <= self._light_seconds and kind not in self._calls_to_forget

    def add(self, kind: Hashable, seconds: float) -> None:
        """Takes note of a call that ran."""
        before = self.of(kind)
        self._seconds[kind] = before + (_FALL if seconds < before else _RISE) * (seconds - before)
        left = _CALLS_TO_FORGET if seconds > _LONG * self._light_seconds else self._calls_to_forget.pop(kind, 0) - 1
        if left > 0:
            self._calls_to_forget[kind] = left
