"""Devices: the names of what TensorFlow can compute on, and a thread for each that owns it; two, where slow ops have their own."""

import asyncio
import functools
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from gradserve_server.scheduling.joining import run_together
from gradserve_server.scheduling.queue import WorkQueue
from gradserve_server.scheduling.work import OWN_LOAD, Bounds, Clock, Load, Outcome, Work, settle

_DEFAULT_BOUNDS = Bounds()
_NAME = re.compile(r"(cpu|gpu)(?::(\d+))?")


def configure_gpus(*, memory_limit_bytes: int | None) -> None:
    """Sets how GPU memory is taken; to be called before TensorFlow uses a GPU.

    Args:
        memory_limit_bytes: The most to take of each GPU, reserved at once; None to let it grow as needed.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        if memory_limit_bytes is None:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:
            limit = tf.config.LogicalDeviceConfiguration(memory_limit=memory_limit_bytes // 2**20)
            tf.config.set_logical_device_configuration(gpu, [limit])


def resolve(wanted: str) -> str:
    """Returns the device that a setting means, such as "cpu:0".

    Args:
        wanted: "auto" (the first GPU, else the first CPU), "cpu", "gpu", or either with a number.

    Raises:
        ValueError: It is no such name, or there is no such device.
    """
    there = [f"{d.device_type.lower()}:{d.name.rsplit(':', 1)[1]}" for d in tf.config.list_logical_devices()]
    if wanted == "auto":
        return "gpu:0" if "gpu:0" in there else "cpu:0"
    parts = _NAME.fullmatch(wanted)
    if parts is None:
        raise ValueError(f"device: wanted 'auto', 'cpu', 'gpu', 'cpu:N' or 'gpu:N', got {wanted!r}")
    name = f"{parts[1]}:{parts[2] or 0}"
    if name not in there:
        raise ValueError(f"device {wanted!r}: there is no such device; wanted one of {', '.join(there)}")
    return name


class _Turn(NamedTuple):
    """When an event loop is to run light work."""

    loop: asyncio.AbstractEventLoop
    handle: asyncio.Handle
    is_soon: bool
    """Whether nothing more is waited for."""


class Device:
    """One device, and what runs all work on it, in the order in which it came: threads, and event loops where it is light."""

    def __init__(self, name: str, clock: Clock, bounds: Bounds = _DEFAULT_BOUNDS) -> None:
        """Starts the threads.

        Args:
            name: Name such as "cpu:0".
            clock: Times the work.
            bounds: How much may wait.
        """
        self.name = name
        self._clock = clock
        self.queue = WorkQueue(name, bounds, clock)
        """What waits."""
        self._turn: _Turn | None = None
        self._threads = [self._start(f"device-{name}", slow=False)]
        if bounds.slow_seconds < math.inf:
            self._threads.append(self._start(f"device-{name}-slow", slow=True))

    def submit(self, function: Callable[[], Any], load: Load = OWN_LOAD) -> Work:
        """Queues work; awaiting its future gives the result, and cancelling that before it began drops the work.

        Raises:
            ResourceExhausted: It may not wait, or not in time.
        """
        loop = asyncio.get_running_loop()
        work = Work(run=function, loop=loop, future=loop.create_future(), load=load, queued_at=self._clock())
        self._plan_light(loop, self.queue.put(work))
        work.future.add_done_callback(functools.partial(self._drop_if_cancelled, work))
        return work

    def close(self, timeout_seconds: float) -> None:
        """Finishes the work that is queued and stops the threads; one that is stuck in an op ends with the process."""
        self.queue.close()
        for thread in self._threads:
            thread.join(timeout_seconds)

    def _start(self, name: str, *, slow: bool) -> threading.Thread:
        thread = threading.Thread(target=self._serve, args=[slow], name=name, daemon=True)
        thread.start()
        return thread

    def _serve(self, slow: bool) -> None:
        with tf.device(self.name):
            while works := self.queue.take(slow=slow):
                outcomes = _run_all(works)
                self.queue.finish(works)
                settle(works, outcomes)

    def _plan_light(self, loop: asyncio.AbstractEventLoop, delay: float | None) -> None:
        """Has the event loop run light work after some seconds; with 0 after all that is ready now, which may bring more."""
        if delay is None:
            return
        planned = self._turn
        if planned is not None and planned.loop is loop:
            if planned.is_soon or delay:
                return
            planned.handle.cancel()
        run = functools.partial(self._run_light, loop)
        handle = loop.call_later(delay, run) if delay else loop.call_soon(run)
        self._turn = _Turn(loop, handle, is_soon=not delay)

    def _run_light(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = None
        if works := self.queue.take_light():
            with tf.device(self.name):
                outcomes = _run_all(works)
            self.queue.finish(works)
            settle(works, outcomes, loop)
        self._plan_light(loop, self.queue.light_delay())

    def _drop_if_cancelled(self, work: Work, future: "asyncio.Future[Any]") -> None:
        if future.cancelled():
            self.queue.drop(work)


def _run_all(works: Sequence[Work]) -> list[Outcome]:
    share = works[0].load.share
    is_joined = len(works) > 1 or (share is not None and share.layout.is_padded)
    outcomes = _run_joined(works) if is_joined else None
    return [_run(work) for work in works] if outcomes is None else outcomes


def _run_joined(works: Sequence[Work]) -> list[Outcome] | None:
    """Runs calls as one; returns None if that fails, for which one of them may be to blame, or all of them together."""
    shares = [work.load.share for work in works if work.load.share is not None]
    try:
        return [(result, None) for result in run_together(shares)]
    except BaseException:  # whatever it is, it goes to the caller to whom it happens when each runs alone
        return None


def _run(work: Work) -> Outcome:
    run = work.run
    if run is None:  # cancelled since it was taken
        return None, None
    try:
        return run(), None
    except StopIteration as raised:  # no future takes it
        return None, RuntimeError(f"the op raised {type(raised).__name__}")
    except Exception as raised:  # an op may raise anything; it goes to the caller who sent the work
        return None, raised
    except BaseException as raised:  # SystemExit and the like would end the event loop that they are handed to
        error = RuntimeError(f"the op raised {type(raised).__name__}")
        error.__cause__ = raised
        return None, error
