"""The stream on the server's side: what is under way is bounded, and goes when the stream goes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.server.streams import Caller, MiB, settled

from gradserve_server.streaming import MAX_CALLS


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
