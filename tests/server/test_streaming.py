"""The stream on the server's side: what is under way is bounded, and goes when the stream goes."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.calls import Calls
from gradserve_server.streaming import MAX_CALLS, Streams

MiB = 2**20


class Caller:
    """Sends frames to a stream whose calls end when they are told to, and reads its answers."""

    def __init__(self, *, max_bytes: int = 64 * MiB) -> None:
        self.begun = 0
        self.ended = 0
        self.may_end = asyncio.Event()
        self.answers: list[int] = []
        self.frame_sizes: list[int] = []
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        calls = Calls([], time.perf_counter, max_call_seconds=60)
        frames = Streams(calls, {"Vjp": self._answer}, max_bytes).serve(self._sent(), None)
        self.reading = asyncio.ensure_future(self._read(frames))

    async def _answer(self, request: bytes) -> bytes:
        self.begun += 1
        try:
            await self.may_end.wait()
        finally:
            self.ended += 1
        return request

    async def _sent(self) -> AsyncIterator[bytes]:
        while (frame := await self._frames.get()) is not None:
            yield frame

    async def _read(self, frames: AsyncIterator[bytes]) -> None:
        async for frame in frames:
            self.frame_sizes.append(len(frame))
            self.answers += [answer.id for answer in pb.StreamVjpResponse.FromString(frame).answers]

    def send(self, ids: range, *, request: bytes = b"", cancelled: tuple[int, ...] = ()) -> None:
        calls = [pb.StreamedCall(id=call_id, method="Vjp", request=request) for call_id in ids]
        self._frames.put_nowait(pb.StreamVjpRequest(calls=calls, cancelled_ids=cancelled).SerializeToString())

    async def finish(self) -> None:
        self._frames.put_nowait(None)
        await self.reading


async def settled() -> None:
    """Lets everything happen that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def run(steps: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(steps())


def test_no_more_calls_begin_while_the_most_are_under_way() -> None:
    async def steps() -> None:
        caller = Caller()
        caller.send(range(MAX_CALLS + 10))
        caller.send(range(5000, 5010))
        await settled()
        assert caller.begun == MAX_CALLS
        caller.may_end.set()
        await caller.finish()
        assert sorted(caller.answers) == [*range(MAX_CALLS + 10), *range(5000, 5010)]

    run(steps)


def test_no_more_calls_begin_while_too_many_bytes_are_under_way() -> None:
    async def steps() -> None:
        caller = Caller(max_bytes=MiB)
        caller.send(range(10), request=bytes(MiB // 2))
        await settled()
        assert caller.begun == 3
        caller.may_end.set()
        await caller.finish()
        assert len(caller.answers) == 10

    run(steps)


def test_a_frame_of_answers_has_all_that_wait() -> None:
    async def steps() -> None:
        caller = Caller()
        caller.send(range(100))
        await settled()
        caller.may_end.set()
        await caller.finish()
        assert (len(caller.answers), len(caller.frame_sizes)) == (100, 1)

    run(steps)


def test_large_answers_have_frames_of_their_own() -> None:
    async def steps() -> None:
        caller = Caller()
        caller.send(range(3), request=bytes(5 * MiB))
        caller.may_end.set()
        await caller.finish()
        assert len(caller.frame_sizes) == 3

    run(steps)


def test_a_cancelled_call_ends_without_an_answer_and_leaves_room() -> None:
    async def steps() -> None:
        caller = Caller()
        caller.send(range(MAX_CALLS))
        await settled()
        caller.send(range(0), cancelled=(3, 999_999))
        await settled()
        assert caller.ended == 1
        caller.send(range(3, 4))
        await settled()
        assert caller.begun == MAX_CALLS + 1
        caller.may_end.set()
        await caller.finish()
        assert sorted(caller.answers) == list(range(MAX_CALLS))

    run(steps)


def test_calls_end_when_their_stream_does() -> None:
    async def steps() -> None:
        caller = Caller()
        caller.send(range(10))
        await settled()
        caller.reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller.reading
        await settled()
        assert (caller.begun, caller.ended) == (10, 10)

    run(steps)
