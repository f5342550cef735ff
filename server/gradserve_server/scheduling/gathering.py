"""Gathering: how many calls to wait for before they run together, learned from how many came."""

_FEWER = 0.9
"""What is left, at each time that work is taken, of the number of callers that were seen at work at once."""
_MORE = 2
"""Now and then, so many times as many are waited for: whether there are more callers shows only if one waits for them."""
_OFTEN, _SELDOM = 4, 64
"""After how many takes that is tried again, after a try that found more, and after many that did not."""


class Gathering:
    """Knows how many callers are at work at once. It never waits where one caller is alone."""

    def __init__(self) -> None:
        """Begins with one caller."""
        self._callers = 1.0
        self._since_two = _SELDOM
        self._until_try = self._interval = _OFTEN

    @property
    def wanted(self) -> int:
        """How many calls to wait for."""
        is_alone = self._since_two >= _SELDOM
        return max(int(self._callers), 1) * (_MORE if self._until_try <= 0 and not is_alone else 1)

    def took(self, waiting: int) -> None:
        """Takes note that work is taken, and of how many calls waited then."""
        self._since_two = 0 if waiting > 1 else self._since_two + 1
        if self._until_try <= 0:
            self._interval = _OFTEN if waiting > self._callers else min(_MORE * self._interval, _SELDOM)
            self._until_try = self._interval
        self._until_try -= 1
        self._callers = max(float(waiting), _FEWER * self._callers)
