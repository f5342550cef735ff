"""A caller of a stream within the test's own event loop, and what answers its calls alone or together."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.calls import Calls
from gradserve_server.plans import Plan
from gradserve_server.streaming import Streams
from gradserve_server.telemetry import Call, Ended

MiB = 2**20


class Together:
    """Answers calls together whose requests begin with a letter that it knows: with what it is told to, or with the requests."""

    def __init__(self, plans: str = "", max_together: int = 64) -> None:
        self.max_together = max_together
        self.plans: dict[str, Any] = {letter: object() for letter in plans}
        self.batches: list[list[bytes]] = []
        self.outcome: Callable[[], Awaitable[Any]] | None = None

    def plan_of(self, method: str, request: bytes) -> Plan | None:
        return self.plans.get(request[:1].decode())

    async def answer_together(
        self, plan: Plan, calls: Sequence[Call], requests: Sequence[bytes]
    ) -> Sequence[bytes] | None:
        self.batches.append(list(requests))
        if self.outcome is not None:
            return await self.outcome()
        for call in calls:
            call.stages = {"compute": 0.001}
        return [b"together " + request for request in requests]


class Caller:
    """Sends frames to a stream whose calls end when they are told to, and reads its answers."""

    def __init__(self, *, max_bytes: int = 64 * MiB, together: Together | None = None) -> None:
        self.begun = 0
        self.ended = 0
        self.may_end = asyncio.Event()
        self.answers: dict[int, pb.StreamedAnswer] = {}
        self.frame_sizes: list[int] = []
        self.observed: list[Ended] = []
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.calls = Calls([self], time.perf_counter, max_call_seconds=60)
        streams = Streams(self.calls, {"Vjp": self._answer}, max_bytes, together or Together())
        self.reading = asyncio.ensure_future(self._read(streams.serve(self._sent(), self)))

    def calls_ended(self, ended: Sequence[Ended]) -> None:
        self.observed += ended

    async def abort(self, code: object, text: str) -> None:
        raise ConnectionAbortedError(text)

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
            for answer in pb.StreamVjpResponse.FromString(frame).answers:
                assert answer.id not in self.answers
                self.answers[answer.id] = answer

    def send(self, ids: range, *, request: bytes = b"", cancelled: tuple[int, ...] = (), **fields: Any) -> None:
        self.send_all(dict.fromkeys(ids, request), cancelled=cancelled, **fields)

    def send_all(self, requests: dict[int, bytes], *, cancelled: tuple[int, ...] = (), **fields: Any) -> None:
        calls = [
            pb.StreamedCall(id=call_id, method="Vjp", request=request, **fields)
            for call_id, request in requests.items()
        ]
        self.send_frame(pb.StreamVjpRequest(calls=calls, cancelled_ids=cancelled))

    def send_frame(self, frame: pb.StreamVjpRequest) -> None:
        self._frames.put_nowait(frame.SerializeToString())

    async def finish(self) -> None:
        self._frames.put_nowait(None)
        await self.reading


async def settled() -> None:
    """Lets everything happen that can."""
    for _ in range(20):
        await asyncio.sleep(0)
