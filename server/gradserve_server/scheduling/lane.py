"""A lane: the calls that wait for one thread of a device, the oldest first."""

import collections
import contextlib
import math
import queue
from collections.abc import Hashable, Iterator, Sequence

from gradserve.errors import DeadlineExceeded
from gradserve_server.scheduling.estimates import Estimates
from gradserve_server.scheduling.gathering import Gathering
from gradserve_server.scheduling.work import Bounds, Clock, Load, Work, settle

_QUIET_SECONDS = 2e-3
"""If none came for so long, no more are on their way."""
_TIMER_SECONDS = 5e-4
"""Less than this is not worth a wait: timers are no more exact."""


class Lane:
    """One lane of a ``WorkQueue``, which calls it under its lock, but for ``sleep``."""

    def __init__(self, bounds: Bounds, clock: Clock, estimates: Estimates) -> None:
        """Takes how many calls may be joined and how long they may wait for that, a clock, and how long calls may take."""
        self._bounds = bounds
        self._clock = clock
        self._estimates = estimates
        self.waiting: collections.deque[Work] = collections.deque()
        """What waits."""
        self.calls = 0
        """How many calls that is."""
        self.bytes = 0
        """Bytes of their tensors."""
        self.running: Sequence[Work] = ()
        """The calls that were taken last, until they are finished."""
        self._gathering = Gathering()
        self._busy_until = -math.inf
        self._expected_seconds = 0.0
        self._by_key: collections.Counter[Hashable] = collections.Counter()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wake_at = math.inf

    def add(self, work: Work) -> None:
        """Adds a call at the end."""
        work.expected_seconds = self._expected_seconds_of(work.load)
        self.waiting.append(work)
        self._count(work, 1)

    def remove(self, work: Work) -> None:
        """Removes a call, if it waits."""
        with contextlib.suppress(ValueError):  # it has begun
            self.waiting.remove(work)
            self._count(work, -1)

    def remove_all_of(self, group: Hashable) -> list[Work]:
        """Removes the calls of a group; returns them, the oldest first."""
        found = [work for work in self.waiting if work.load.group == group]
        for work in found:
            self.remove(work)
        return found

    def holds(self, group: Hashable) -> bool:
        """Whether a call of a group waits or runs."""
        return any(work.load.group == group for work in (*self.running, *self.waiting))

    def finish(self) -> None:
        """Takes note that what was taken has run."""
        self.running = ()
        self._busy_until = -math.inf

    def wait_seconds(self) -> float | None:
        """Returns how long to wait for more calls to join the oldest; None, or until there is one at all, if not at all.

        Of late so many callers were at work at once: if fewer calls wait now, the others are on their way, as long as some keep coming.
        """
        if not self.waiting:
            return None
        oldest, bounds = self.waiting[0], self._bounds
        if oldest.load.share is None or self.calls >= self._gathering.wanted or self._is_full:
            return None
        until = min(oldest.queued_at + bounds.max_wait_seconds, self.waiting[-1].queued_at + _QUIET_SECONDS)
        left = until - self._clock()
        return left if left > _TIMER_SECONDS else None

    @property
    def _is_full(self) -> bool:
        """Whether as many calls wait that can join the oldest as may run as one."""
        share = self.waiting[0].load.share if self.waiting else None
        return share is not None and self._by_key[share.key] >= self._bounds.max_joined

    def expected_wait_seconds(self) -> float:
        """Returns how long what waits and what runs may still take."""
        return max(self._busy_until - self._clock(), 0.0) + self._expected_seconds

    @property
    def is_asleep(self) -> bool:
        """Whether the thread sleeps."""
        return self._wake_at < math.inf

    def fall_asleep(self, wait_seconds: float | None) -> None:
        """Takes note that the thread is about to sleep, for so long if calls wait."""
        self._wake_at = self._gathering.wanted if wait_seconds else 1

    def sleep(self, seconds: float | None) -> None:
        """Sleeps until ``wake_up``, or for so long; to be called by the thread, without the lock."""
        with contextlib.suppress(queue.Empty):  # no others came meanwhile
            self._wake.get(timeout=seconds)

    def wake_up(self, *, is_closed: bool) -> None:
        """Wakes the thread, if as many calls wait as it wants, or the queue is closed."""
        if self.is_asleep and (is_closed or self.calls >= self._wake_at or self._is_full):
            self._wake_at = math.inf
            self._wake.put(None)

    def take_oldest(self) -> list[Work]:
        """Takes the oldest work, and what can be joined with it, out of what waits.

        Returns:
            What is left of it without what is too late, and what nobody waits for any more.
        """
        self._gathering.took(self.calls)
        oldest = self.waiting.popleft()
        taken = [oldest, *self._joinable(oldest.load)]
        now = self._clock()
        for work in taken:
            self._count(work, -1)
            work.started_at = now
            if work.load.deadline <= now:
                _refuse(work)
        wanted = [work for work in taken if work.load.deadline > now and not work.future.cancelled()]
        if wanted:
            self.running = wanted
            self._busy_until = now + sum(work.expected_seconds for work in wanted)
        return wanted

    def _joinable(self, load: Load) -> Iterator[Work]:
        """Takes what can be joined with a call out of what waits, the oldest first."""
        if load.share is None or not self.waiting:
            return
        kept, room = collections.deque[Work](), self._bounds.max_joined - load.calls
        for work in self.waiting:
            other = work.load.share
            if room >= work.load.calls and other is not None and other.key == load.share.key:
                room -= work.load.calls
                yield work
            else:
                kept.append(work)
        self.waiting = kept

    def _expected_seconds_of(self, load: Load) -> float:
        """Returns how long a call may run by itself: not at all, if it can join one that waits."""
        joins = 0 if load.share is None else self._by_key[load.share.key] % self._bounds.max_joined
        return 0.0 if joins else self._estimates.of(load.kind)

    def _count(self, work: Work, change: int) -> None:
        if work.load.share is not None:
            self._by_key[work.load.share.key] += change * work.load.calls
            if not self._by_key[work.load.share.key]:
                del self._by_key[work.load.share.key]
        self.calls += change * work.load.calls
        self.bytes += change * work.load.size_bytes
        self._expected_seconds = (self._expected_seconds + change * work.expected_seconds) if self.waiting else 0.0


def _refuse(work: Work) -> None:
    """Tells the caller of work that its deadline passed while it waited."""
    work.run = None
    settle([work], [(None, deadline_passed(work.queue_seconds))])


def deadline_passed(waited_seconds: float) -> DeadlineExceeded:
    """Returns the error for a call whose deadline passed before it was begun."""
    return DeadlineExceeded(
        f"the deadline passed before the call was begun, after {waited_seconds:.3g} s in the queue of its device",
        reason="DEADLINE_PASSED_IN_QUEUE",
    )
