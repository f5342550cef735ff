"""Random calls by many callers at once, bad, cancelled and late ones among them, each compared with the same call alone.

``python -m tests.support.random_batches 10000`` makes so many, prints how they ended, and fails if one ended wrong.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
from tests.support.calls_of_rows import Call, Kind, draw_calls

from gradserve import aio
from gradserve.errors import Cancelled, DeadlineExceeded, ResourceExhausted
from gradserve.tensors import Array
from gradserve_server.scheduling.queue import WorkQueue
from gradserve_server.scheduling.work import Work
from gradserve_server.testing import RunningServer, running_server

OPS = "tests.support.ops_of_rows"
SETTINGS: dict[str, Any] = {"check_gradients": "off", "light_call_microseconds": 0, "slow_call_milliseconds": 0}
"""With these, all calls go to one thread, where ``recorded_batches`` sees them and lets them gather."""
CALLERS = 256
CROWD = 128
QUIET_SECONDS = 0.02
"""A device takes calls once so many wait, or no more have come for that time, as if it were busy with a slow one before."""
CUT_SHORT: dict[Kind, tuple[type[BaseException], ...]] = {
    "cancelled": (asyncio.CancelledError, Cancelled),
    "late": (DeadlineExceeded, ResourceExhausted),  # the queue refuses a call that it cannot reach in time
}
"""What a call may get that has not enough time."""
ULPS = 4
EPSILONS = 32
LEAST_MEDIAN = 8
Ending = dict[str, Array] | BaseException
"""Outputs and gradients, or an error."""


async def send_all(target: str, calls: Sequence[Call], callers: int = CALLERS) -> list[Ending]:
    """Makes calls over both transports, so many at once; returns how each ended."""
    endings: dict[int, Ending] = {}
    waiting = iter(enumerate(calls))

    async def keep_calling(client: aio.Client) -> None:
        for number, call in waiting:
            endings[number] = await _ending(client, call)

    async with aio.Client(target) as unary, aio.Client(target, transport="stream") as stream:
        await asyncio.gather(*(keep_calling(client) for client in [unary, stream] * (callers // 2)))
    return [endings[number] for number in range(len(calls))]


async def _ending(client: aio.Client, call: Call) -> Ending:
    task = asyncio.ensure_future(call.send(client, call.seconds) if call.kind == "late" else call.send(client))
    if call.kind == "cancelled":
        asyncio.get_running_loop().call_later(call.seconds, task.cancel)
    (ending,) = await asyncio.gather(task, return_exceptions=True)
    return ending


async def send_alone(target: str, calls: Sequence[Call]) -> list[dict[str, Array]]:
    """Makes the calls of a deterministic server; returns what each gets that is not bad."""
    patient = [dataclasses.replace(call, kind="good") for call in calls if call.refusal is None]
    answers = iter(await send_all(target, patient, callers=16))
    return [_answer(next(answers)) if call.refusal is None else {} for call in calls]


def _answer(ending: Ending) -> dict[str, Array]:
    if isinstance(ending, BaseException):
        raise ending
    return ending


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Calls that the thread of a device took out of its queue together."""

    calls: int
    """How many."""
    sizes: int
    """Of how many numbers of rows (elements, where the op is elementwise) its calls are; 0 if they cannot be joined."""
    is_flat: bool
    """Whether their op is elementwise."""


@contextlib.contextmanager
def recorded_batches() -> Iterator[list[Batch]]:
    """Records what the devices of this process take while the context lasts, and lets calls gather in front of them."""
    seen: list[Batch] = []
    take = WorkQueue.take

    def recording(queue: WorkQueue, *, slow: bool = False) -> list[Work]:
        _let_gather(queue)
        taken = take(queue, slow=slow)
        if taken:
            seen.append(_batch(taken))
        return taken

    with mock.patch.object(WorkQueue, "take", recording):
        yield seen


def _let_gather(queue: WorkQueue) -> None:
    before = -1
    while before < queue.requests < CROWD:
        before = queue.requests
        time.sleep(QUIET_SECONDS)


def _batch(works: Sequence[Work]) -> Batch:
    shares = [(work.load.share, work.load.calls) for work in works if work.load.share is not None]
    return Batch(
        calls=sum(work.load.calls for work in works),
        sizes=len({share.rows // calls for share, calls in shares}),
        is_flat=any(share.layout.is_flat for share, _ in shares),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How calls ended."""

    ended: collections.Counter[str]
    """How many of each kind ended how."""
    wrong: Sequence[str]
    """Each that ended as it should not, in one line."""
    batches: Sequence[Batch]
    """What ran together, single calls too."""

    @property
    def median_batch(self) -> float:
        """The median number of calls that were taken together, of those that can be joined."""
        return statistics.median(batch.calls for batch in self.batches if batch.sizes)

    @property
    def largest_batch(self) -> int:
        """The largest number of calls that were taken together."""
        return max(batch.calls for batch in self.batches)

    def flat_of_one_size(self, least: int = LEAST_MEDIAN) -> list[Batch]:
        """Returns the batches of an elementwise op that have so many calls, and all of one shape."""
        return [batch for batch in self.batches if batch.is_flat and batch.calls >= least and batch.sizes < 2]

    def shortfalls(self) -> list[str]:
        """Returns what is wrong with the answers, and what keeps them from saying much; empty if nothing does."""
        found = list(self.wrong)
        if self.median_batch < LEAST_MEDIAN:
            found.append(f"the median batch has {self.median_batch} calls, wanted {LEAST_MEDIAN}")
        if self.flat_of_one_size():
            found.append(f"{len(self.flat_of_one_size())} large batches of elementwise ops have but one shape")
        return found

    def __str__(self) -> str:
        flat = [batch.sizes for batch in self.batches if batch.is_flat]
        joinable = sum(batch.sizes > 0 for batch in self.batches)
        return "\n".join(
            [
                *(f"{how:30} {number}" for how, number in sorted(self.ended.items())),
                f"{joinable} batches, median {self.median_batch} calls, and {len(self.batches) - joinable} calls that join none",
                f"{len(flat)} batches of elementwise ops, median {statistics.median(flat)} sizes",
            ]
        )


def report(
    calls: Sequence[Call], endings: Sequence[Ending], alone: Sequence[dict[str, Array]], batches: Sequence[Batch]
) -> Report:
    """Compares how calls ended with what each gets alone."""
    ended: collections.Counter[str] = collections.Counter()
    wrong = []
    for call, ending, wanted in zip(calls, endings, alone, strict=True):
        how = type(ending).__name__ if isinstance(ending, BaseException) else "answered"
        ended[f"{call.kind}: {how}"] += 1
        fault = _fault(call, ending, wanted)
        if fault:
            wrong.append(f"{call}: {fault}")
    return Report(ended=ended, wrong=wrong, batches=batches)


def _fault(call: Call, ending: Ending, wanted: dict[str, Array]) -> str:
    """Returns what is wrong with how a call ended; empty if nothing is."""
    if call.refusal is not None:
        return "" if type(ending) is call.refusal else f"wanted {call.refusal.__name__}, got {ending!r}"
    if isinstance(ending, BaseException):
        return "" if isinstance(ending, CUT_SHORT.get(call.kind, ())) else f"got {ending!r}"
    if ending.keys() != wanted.keys():
        return f"wanted {list(wanted)}, got {list(ending)}"
    return "; ".join(
        f"{name}: wanted {wanted[name].ravel()[:8]}, got {ending[name].ravel()[:8]}"
        for name in wanted
        if not _is_near(call, ending[name], wanted[name])
    )


def _is_near(call: Call, got: Array, wanted: Array) -> bool:
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return False
    if call.op in ("weigh", "log"):
        slack = ULPS * np.spacing(np.abs(wanted))
    else:
        slack = EPSILONS * np.finfo(wanted.dtype).eps * np.abs(wanted).max(axis=-1, keepdims=True)
    return bool((np.abs(got - wanted) <= slack).all())


def storm(server: RunningServer, deterministic: RunningServer, calls: Sequence[Call]) -> Report:
    """Makes calls of a server, all at once, and each alone of a deterministic one; returns how they ended."""
    with recorded_batches() as batches:
        endings = asyncio.run(send_all(server.target, calls))
    return report(calls, endings, asyncio.run(send_alone(deterministic.target, calls)), batches)


def storm_of_equals(deterministic: RunningServer, calls: Sequence[Call], repeats: int = 10) -> Report:
    """Makes each call so often of a deterministic server; each that gets other bits than the first time ended wrong."""
    with recorded_batches() as batches:
        endings = asyncio.run(send_all(deterministic.target, [*calls] * repeats))
    wrong = [
        f"{call}: other bits the second time"
        for number, call in enumerate(calls)
        if len({_bits(ending) for ending in endings[number :: len(calls)]}) > 1
    ]
    return Report(ended=collections.Counter(good=len(endings)), wrong=wrong, batches=batches)


def _bits(ending: Ending) -> str:
    return repr([(name, array.shape, array.tobytes()) for name, array in _answer(ending).items()])


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes random calls at once, and compares each with the call alone.")
    parser.add_argument("count", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    calls = draw_calls(arguments.count, np.random.default_rng(arguments.seed))
    good = [call for call in calls if call.kind == "good"]
    with (
        running_server(OPS, **SETTINGS) as server,
        running_server(OPS, deterministic=True, **SETTINGS) as deterministic,
    ):
        found = storm(server, deterministic, calls)
        equals = storm_of_equals(deterministic, good[: arguments.count // 50])
    print(found)
    print(f"deterministic: {equals.ended['good']} calls, largest batch {equals.largest_batch}")
    faults = [*found.shortfalls(), *equals.wrong, *["a deterministic server joined calls"] * (equals.largest_batch > 1)]
    if faults:
        sys.exit("\n".join([f"{len(faults)} faults, of which the first are", *faults[:20]]))
    print("all good calls got what they get alone")


if __name__ == "__main__":
    main()
