"""The queue in front of a device: bounded, the oldest first; what can no longer be answered in time never runs.

Slow ops have a lane of their own, with a thread of its own. An op is in one lane at a time, so that no two of its calls run at once;
so are, all together, the ops that run Python code or have variables, which may share what is not safe to share between threads.
"""

import collections
import threading
from collections.abc import Hashable, Sequence

from gradserve.errors import ResourceExhausted
from gradserve_server.scheduling.estimates import Estimates
from gradserve_server.scheduling.lane import Lane, deadline_passed
from gradserve_server.scheduling.work import Bounds, Clock, Load, Work

_MOST_LIGHT_BYTES = 2**14
"""Calls of more bytes are never light: how long some ops take grows faster than the sizes of their tensors."""
_SLOW_IN_A_ROW = 3
"""An op enters the lane of the slow ones after so many slow calls in a row: any one may be a hiccup of the machine."""
_QUICK_AGAIN = 0.5
"""An op leaves the lane of the slow ones when its calls take less than this part of what is slow."""


class WorkQueue:
    """Hands work from the event loop to one thread for each lane."""

    def __init__(self, device: str, bounds: Bounds, clock: Clock) -> None:
        """Takes the name of the device, for errors, how much may wait, and the clock of the deadlines."""
        self._device = device
        self._bounds = bounds
        self._clock = clock
        self._lock = threading.Lock()
        self._estimates = Estimates(bounds.light_seconds)
        self._quick, self._slow = (Lane(bounds, clock, self._estimates) for _ in range(2))
        self._slow_kinds: dict[Hashable, set[Hashable]] = {}
        self._slow_in_a_row: collections.Counter[Hashable] = collections.Counter()
        self._is_closed = False

    @property
    def requests(self) -> int:
        """How many calls wait."""
        return self._quick.calls + self._slow.calls

    @property
    def bytes(self) -> int:
        """Bytes of their tensors."""
        return self._quick.bytes + self._slow.bytes

    def put(self, work: Work) -> float | None:
        """Adds work at the end of its lane, and wakes the thread if that is to take it.

        Returns:
            After how many seconds the event loop is to take what is light; None if it is not to do so.

        Raises:
            ResourceExhausted: As much waits as may (QUEUE_FULL), or so much that this would wait beyond its deadline
                (DEADLINE_OUT_OF_REACH); with the seconds after which another try makes sense.
            DeadlineExceeded: Its deadline has passed already.
        """
        with self._lock:
            work.is_slow = self._is_slow(work.load.group)
            lane = self._lane(work)
            self._check_bounds(lane, work.load)
            self._check_reach(lane, work.load)
            lane.add(work)
            light = None if work.is_slow else self._light_delay()
            if light is None:
                lane.wake_up(is_closed=self._is_closed)
            return light

    def drop(self, work: Work) -> None:
        """Lets go of work that nobody waits for any more; it never runs if it has not begun."""
        with self._lock:
            self._lane(work).remove(work)
        work.run = None

    def close(self) -> None:
        """Lets ``take`` return none once all work before this has been taken."""
        with self._lock:
            self._is_closed = True
            for lane in (self._quick, self._slow):
                lane.wake_up(is_closed=True)

    def take(self, *, slow: bool = False) -> list[Work]:
        """Waits for work that can still be answered in time: the oldest, and what can be joined with it; none if closed.

        Args:
            slow: Whether it is the thread of the slow ops that asks.
        """
        lane = self._slow if slow else self._quick
        while True:
            with self._lock:
                wait_seconds = self._wait_seconds(lane)
                while lane.waiting and not wait_seconds and not lane.running:
                    if taken := lane.take_oldest():
                        return taken
                    wait_seconds = self._wait_seconds(lane)
                if self._is_closed and not lane.waiting:
                    return []
                lane.fall_asleep(wait_seconds)
            lane.sleep(wait_seconds)

    def take_light(self) -> list[Work]:
        """Returns work as ``take`` does, for the event loop, and without waiting: none if it is the thread's turn."""
        with self._lock:
            while self._light_delay() == 0:
                if taken := self._quick.take_oldest():
                    return taken
            return []

    def light_delay(self) -> float | None:
        """Returns what ``put`` does, for what still waits once the event loop has run something."""
        with self._lock:
            light = self._light_delay()
            if light is None:
                self._quick.wake_up(is_closed=self._is_closed)
            return light

    def finish(self, works: Sequence[Work]) -> None:
        """Takes note of how long work ran that was taken together."""
        now = self._clock()
        for work in works:
            work.finished_at = now
        first = works[0]
        self._estimates.add(first.load.kind, first.compute_seconds)
        with self._lock:
            self._lane(first).finish()
            if first.load.kind:
                self._note_speed(first)

    def expected_wait_seconds(self) -> float:
        """Returns how long what waits and what runs may still take, in the lane that takes longer."""
        return max(self._quick.expected_wait_seconds(), self._slow.expected_wait_seconds())

    def _lane(self, work: Work) -> Lane:
        return self._slow if work.is_slow else self._quick

    def _is_slow(self, group: Hashable) -> bool:
        kinds = self._slow_kinds.get(group)
        if kinds is None:
            return False
        if not kinds and not self._slow.holds(group):  # it is quick again, and nothing of it is left there
            del self._slow_kinds[group]
            return False
        return True

    def _note_speed(self, work: Work) -> None:
        """Moves a group of ops into the lane of the slow ones, or lets it leave, by how long its calls take of late."""
        group, kind, slow_seconds = work.load.group, work.load.kind, self._bounds.slow_seconds
        if work.compute_seconds <= slow_seconds:
            self._slow_in_a_row.pop(kind, None)
            if group in self._slow_kinds and self._estimates.of(kind) < _QUICK_AGAIN * slow_seconds:
                self._slow_kinds[group].discard(kind)
            return
        self._slow_in_a_row[kind] += 1
        if self._slow_in_a_row[kind] >= _SLOW_IN_A_ROW and not self._is_closed:
            self._slow_kinds.setdefault(group, set()).add(kind)
            for waiting in self._quick.remove_all_of(group):
                waiting.is_slow = True
                self._slow.add(waiting)
            self._slow.wake_up(is_closed=False)

    def _wait_seconds(self, lane: Lane) -> float | None:
        return None if self._is_closed else lane.wait_seconds()

    def _light_delay(self) -> float | None:
        lane = self._quick
        if not lane.waiting or self._is_closed or lane.running or not lane.is_asleep:
            return None
        load = lane.waiting[0].load
        is_small = load.size_bytes <= load.calls * _MOST_LIGHT_BYTES
        is_light = load.is_bounded and is_small and self._estimates.is_light(load.kind)
        return (lane.wait_seconds() or 0.0) if is_light else None

    def _check_bounds(self, lane: Lane, load: Load) -> None:
        bounds = self._bounds
        for what, most, there, more in (
            ("calls", bounds.max_requests, self.requests, load.calls),
            ("bytes", bounds.max_bytes, self.bytes, load.size_bytes),
        ):
            if there + more > most:
                raise ResourceExhausted(
                    f"device {self._device}: its queue is full: wanted at most {most} {what}, got {there} that wait and {more} "
                    "more; try again later",
                    reason="QUEUE_FULL",
                    facts={"device": self._device, "wanted": str(most), "got": str(there + more)},
                    retry_after_seconds=lane.expected_wait_seconds(),
                )

    def _check_reach(self, lane: Lane, load: Load) -> None:
        wait, left = lane.expected_wait_seconds(), load.deadline - self._clock()
        if left <= 0:
            raise deadline_passed(0.0)
        if wait > left:
            raise ResourceExhausted(
                f"device {self._device}: {lane.calls} calls wait there for about {wait:.3g} s, and the deadline of this one is "
                f"in {left:.3g} s; try again later, or give it a longer timeout",
                reason="DEADLINE_OUT_OF_REACH",
                facts={"device": self._device, "wanted": f"{left:.6f}", "got": f"{wait:.6f}"},
                retry_after_seconds=wait - left,
            )
