"""The queue in front of a device: bounded, the oldest first; what can no longer be answered in time never runs."""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import math
import queue
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from gradserve.errors import DeadlineExceeded, ResourceExhausted
from gradserve_server.scheduling.estimates import Estimates
from gradserve_server.scheduling.gathering import Gathering
from gradserve_server.scheduling.joining import Share

_MOST_LIGHT_BYTES = 2**14
"""Calls of more bytes are never light: how long some ops take grows faster than the sizes of their tensors."""
Clock = Callable[[], float]
"""Returns seconds from any fixed point; handed in, so that tests can turn it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a call asks of a queue."""

    kind: Hashable = ""
    """Calls of one kind take about as long as each other."""
    size_bytes: int = 0
    """Bytes of the tensors that wait with it."""
    deadline: float = math.inf
    """When it is of no use any more, by the clock."""
    share: Share | None = None
    """Its form in which it can be joined with others; None if it runs alone."""
    is_bounded: bool = False
    """Whether calls of its kind cannot take much longer than they did, whatever values they bring."""


OWN_LOAD = Load()
"""The load of the server's own work."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may wait for one device."""

    max_requests: int = 1024
    """Most calls."""
    max_bytes: int = 2**30
    """Most bytes of their tensors."""
    max_joined: int = 64
    """Most calls that run as one; 1 joins none."""
    max_wait_seconds: float = 2e-3
    """Longest that the oldest call waits for others to join it."""
    light_seconds: float = 0.0
    """Calls that take up to so long are light: the event loop runs them, which saves the way to a thread and back."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """One call that waits for a device."""

    run: Callable[[], Any] | None
    """Does the work, on the device's thread; None once the caller no longer waits, so that its tensors can go."""
    loop: asyncio.AbstractEventLoop
    """Event loop of the caller."""
    future: "asyncio.Future[Any]"
    """Where the result goes; cancelled when the caller no longer waits."""
    load: Load
    """What it asks of the queue."""
    queued_at: float
    """When it was put in, by the clock."""
    expected_seconds: float = 0.0
    """How long it may run."""
    started_at: float = 0.0
    """When the device's thread took it."""
    finished_at: float = 0.0
    """When it was done."""

    @property
    def queue_seconds(self) -> float:
        """How long it waited."""
        return self.started_at - self.queued_at

    @property
    def compute_seconds(self) -> float:
        """How long it ran."""
        return self.finished_at - self.started_at


Outcome = tuple[Any, Exception | None]
"""A result, or the error in its place."""


def settle(works: Sequence[Work], outcomes: Sequence[Outcome], here: asyncio.AbstractEventLoop | None = None) -> None:
    """Hands results and errors to the callers; from any thread, or on the event loop ``here``."""
    for loop, pairs in itertools.groupby(zip(works, outcomes, strict=True), lambda pair: pair[0].loop):
        settled = [(work.future, outcome) for work, outcome in pairs]
        if loop is here:
            _hand_over(settled)
            continue
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_hand_over, settled)


class WorkQueue:
    """Hands work from the event loop to one thread."""

    def __init__(self, device: str, bounds: Bounds, clock: Clock) -> None:
        """Takes the name of the device, for errors, how much may wait, and the clock of the deadlines."""
        self._device = device
        self._bounds = bounds
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: collections.deque[Work] = collections.deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wake_at = math.inf
        self._is_closed = False
        self._is_running = False
        self._gathering = Gathering()
        self._estimates = Estimates(bounds.light_seconds)
        self._busy_until = -math.inf
        self._expected_seconds = 0.0
        self._by_key: collections.Counter[Hashable] = collections.Counter()
        self._bytes = 0

    @property
    def requests(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    @property
    def bytes(self) -> int:
        """Bytes of their tensors."""
        return self._bytes

    def put(self, work: Work) -> float | None:
        """Adds work at the end, and wakes the thread if that is to take it.

        Returns:
            After how many seconds the event loop is to take what is light; None if it is not to do so.

        Raises:
            ResourceExhausted: As much waits as may (QUEUE_FULL), or so much that this would wait beyond its deadline
                (DEADLINE_OUT_OF_REACH); with the seconds after which another try makes sense.
            DeadlineExceeded: Its deadline has passed already.
        """
        with self._lock:
            work.expected_seconds = self._expected_seconds_of(work.load)
            self._check_bounds(work.load)
            self._check_reach(work.load)
            self._waiting.append(work)
            self._count(work, 1)
            light = self._light_delay()
            if light is None:
                self._wake_up()
            return light

    def drop(self, work: Work) -> None:
        """Lets go of work that nobody waits for any more; it never runs if it has not begun."""
        with self._lock, contextlib.suppress(ValueError):  # it has begun
            self._waiting.remove(work)
            self._count(work, -1)
        work.run = None

    def close(self) -> None:
        """Lets ``take`` return None once all work before this has been taken."""
        with self._lock:
            self._is_closed = True
            self._wake_up()

    def take(self) -> list[Work]:
        """Waits for work that can still be answered in time: the oldest, and what can be joined with it; none if closed."""
        while True:
            with self._lock:
                wait_seconds = self._wait_seconds()
                while self._waiting and not wait_seconds and not self._is_running:
                    if taken := self._take_oldest():
                        return taken
                    wait_seconds = self._wait_seconds()
                if self._is_closed and not self._waiting:
                    return []
                self._wake_at = self._gathering.wanted if wait_seconds else 1
            with contextlib.suppress(queue.Empty):  # no others came meanwhile
                self._wake.get(timeout=wait_seconds)

    def take_light(self) -> list[Work]:
        """Returns work as ``take`` does, for the event loop, and without waiting: none if it is the thread's turn."""
        with self._lock:
            while self._light_delay() is not None:
                if taken := self._take_oldest():
                    return taken
            return []

    def light_delay(self) -> float | None:
        """Returns what ``put`` does, for what still waits once the event loop has run something."""
        with self._lock:
            light = self._light_delay()
            if light is None:
                self._wake_up()
            return light

    def _light_delay(self) -> float | None:
        is_thread_asleep = self._wake_at < math.inf
        if not self._waiting or self._is_closed or self._is_running or not is_thread_asleep:
            return None
        load = self._waiting[0].load
        is_light = load.is_bounded and load.size_bytes <= _MOST_LIGHT_BYTES and self._estimates.is_light(load.kind)
        return (self._wait_seconds() or 0.0) if is_light else None

    def _wait_seconds(self) -> float | None:
        """Returns how long to wait for more calls to join the oldest; None, or until there is one at all, if not at all.

        Of late so many callers were at work at once: if fewer calls wait now, the others are on their way.
        """
        if not self._waiting or self._is_closed:
            return None
        oldest, bounds = self._waiting[0], self._bounds
        if oldest.load.share is None or len(self._waiting) >= min(self._gathering.wanted, bounds.max_joined):
            return None
        left = oldest.queued_at + bounds.max_wait_seconds - self._clock()
        return left if left > 0 else None

    def _take_oldest(self) -> list[Work]:
        """Takes the oldest work, and what can be joined with it, out of what waits.

        Returns:
            What is left of it without what is too late, and what nobody waits for any more.
        """
        self._gathering.took(len(self._waiting))
        oldest = self._waiting.popleft()
        taken = [oldest, *self._joinable(oldest.load.share)]
        now = self._clock()
        for work in taken:
            self._count(work, -1)
            work.started_at = now
            if work.load.deadline <= now:
                _refuse(work)
        wanted = [work for work in taken if work.load.deadline > now and not work.future.cancelled()]
        if wanted:
            self._is_running = True
            self._busy_until = now + sum(work.expected_seconds for work in wanted)
        return wanted

    def _joinable(self, share: Share | None) -> Iterator[Work]:
        """Takes what can be joined with a call out of what waits, the oldest first."""
        if share is None or not self._waiting:
            return
        kept, room = collections.deque[Work](), self._bounds.max_joined - 1
        for work in self._waiting:
            if room and work.load.share is not None and work.load.share.key == share.key:
                room -= 1
                yield work
            else:
                kept.append(work)
        self._waiting = kept

    def finish(self, works: Sequence[Work]) -> None:
        """Takes note of how long work ran that was taken together."""
        now = self._clock()
        for work in works:
            work.finished_at = now
        self._busy_until = -math.inf
        self._estimates.add(works[0].load.kind, works[0].compute_seconds)
        with self._lock:
            self._is_running = False

    def expected_wait_seconds(self) -> float:
        """Returns how long what waits and what runs may still take."""
        return max(self._busy_until - self._clock(), 0.0) + self._expected_seconds

    def _check_bounds(self, load: Load) -> None:
        bounds = self._bounds
        for what, most, there, more in (
            ("calls", bounds.max_requests, len(self._waiting), 1),
            ("bytes", bounds.max_bytes, self._bytes, load.size_bytes),
        ):
            if there + more > most:
                raise ResourceExhausted(
                    f"device {self._device}: its queue is full: wanted at most {most} {what}, got {there} that wait and {more} "
                    "more; try again later",
                    reason="QUEUE_FULL",
                    facts={"device": self._device, "wanted": str(most), "got": str(there + more)},
                    retry_after_seconds=self.expected_wait_seconds(),
                )

    def _check_reach(self, load: Load) -> None:
        wait, left = self.expected_wait_seconds(), load.deadline - self._clock()
        if left <= 0:
            raise _deadline_passed(0.0)
        if wait > left:
            raise ResourceExhausted(
                f"device {self._device}: {len(self._waiting)} calls wait there for about {wait:.3g} s, and the deadline of this one is "
                f"in {left:.3g} s; try again later, or give it a longer timeout",
                reason="DEADLINE_OUT_OF_REACH",
                facts={"device": self._device, "wanted": f"{left:.6f}", "got": f"{wait:.6f}"},
                retry_after_seconds=wait - left,
            )

    def _expected_seconds_of(self, load: Load) -> float:
        """Returns how long a call may run by itself: not at all, if it can join one that waits."""
        joins = 0 if load.share is None else self._by_key[load.share.key] % self._bounds.max_joined
        return 0.0 if joins else self._estimates.of(load.kind)

    def _count(self, work: Work, change: int) -> None:
        if work.load.share is not None:
            self._by_key[work.load.share.key] += change
            if not self._by_key[work.load.share.key]:
                del self._by_key[work.load.share.key]
        self._bytes += change * work.load.size_bytes
        self._expected_seconds = (self._expected_seconds + change * work.expected_seconds) if self._waiting else 0.0

    def _wake_up(self) -> None:
        """Wakes the thread that takes, if as many calls wait as it wants, or the queue is closed."""
        if len(self._waiting) >= self._wake_at or (self._is_closed and self._wake_at < math.inf):
            self._wake_at = math.inf
            self._wake.put(None)


def _refuse(work: Work) -> None:
    """Tells the caller of work that its deadline passed while it waited."""
    work.run = None
    settle([work], [(None, _deadline_passed(work.queue_seconds))])


def _deadline_passed(waited_seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the deadline passed before the call was begun, after {waited_seconds:.3g} s in the queue of its device",
        reason="DEADLINE_PASSED_IN_QUEUE",
    )


def _hand_over(outcomes: Sequence[tuple["asyncio.Future[Any]", Outcome]]) -> None:
    """Sets results and errors, on the event loop, once for calls that ran as one: each such hand-over wakes it up."""
    for future, (result, error) in outcomes:
        if future.cancelled():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
