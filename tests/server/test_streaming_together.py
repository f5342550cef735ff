"""Calls of one frame that are answered together: each gets its own answer, and what befalls one of them befalls it alone."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from tests.server.joinable_ops import OPS
from tests.server.streams import Caller, Together, settled
from tests.server.test_plans import NoPlans, answer, draw, request, service_of

from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2
from gradserve_server.plans import Plans
from gradserve_server.scheduling.device import Device
from gradserve_server.scheduling.queue import WorkQueue
from gradserve_server.scheduling.work import Bounds, Work
from gradserve_server.streaming import MAX_CALLS
from gradserve_server.telemetry import Call


def requests_of(letters: str) -> dict[int, bytes]:
    return {number: f"{letter}{number}".encode() for number, letter in enumerate(letters)}


async def never() -> Any:
    await asyncio.Event().wait()


async def stuck_caller(letters: str) -> Caller:
    """Returns a caller whose calls wait to be answered together, in vain."""
    together = Together("a")
    together.outcome = never
    caller = Caller(together=together)
    caller.send_all(requests_of(letters))
    await settled()
    return caller


def codes(caller: Caller) -> list[str]:
    return sorted(call.code.name for call, _ in caller.observed)


async def test_calls_of_one_plan_are_answered_together_and_all_others_alone() -> None:
    caller = Caller(together=Together("ab"))
    caller.may_end.set()
    requests = requests_of("aabxaby")
    caller.send_all(requests)
    await caller.finish()
    for number, sent in requests.items():
        is_alone = sent[:1] in b"xy"
        assert caller.answers[number].response == (sent if is_alone else b"together " + sent)
        assert caller.answers[number].timing == ("" if is_alone else "compute;dur=1.000")
    assert caller.begun == 2
    await settled()
    assert codes(caller) == ["OK"] * 7
    assert all(call.seconds > 0 and call.response_bytes for call, _ in caller.observed)


async def test_no_more_calls_are_answered_together_than_may_be_and_one_goes_alone() -> None:
    together = Together("a", max_together=3)
    caller = Caller(together=together)
    caller.may_end.set()
    caller.send_all(requests_of("aaaaaaa"))
    await caller.finish()
    assert [len(batch) for batch in together.batches] == [3, 3]
    assert (caller.begun, len(caller.answers)) == (1, 7)


async def test_calls_that_cannot_be_answered_together_go_on_alone() -> None:
    async def refuse() -> None:
        await asyncio.sleep(0)

    together = Together("a")
    together.outcome = refuse
    caller = Caller(together=together)
    caller.may_end.set()
    caller.send_all(requests_of("aaa"))
    await caller.finish()
    assert [caller.answers[number].response for number in range(3)] == [b"a0", b"a1", b"a2"]
    await settled()
    assert codes(caller) == ["OK"] * 3


async def test_fault_in_answering_together_is_told_of_and_each_call_answered_alone() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    together = Together("a")
    together.outcome = fail
    caller = Caller(together=together)
    caller.may_end.set()
    caller.send_all(requests_of("aaa"))
    await caller.finish()
    assert len(caller.answers) == 3
    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]


async def test_cancelled_call_has_no_answer_and_the_others_go_on_alone() -> None:
    caller = await stuck_caller("aaaa")
    caller.send_all({}, cancelled=(2,))
    await settled()
    assert caller.begun == 3
    caller.may_end.set()
    await caller.finish()
    assert sorted(caller.answers) == [0, 1, 3]
    await settled()
    assert codes(caller) == ["CANCELLED", "OK", "OK", "OK"]


async def test_call_that_is_cancelled_in_the_frame_after_its_own_is_not_answered_either() -> None:
    together = Together("a")
    caller = Caller(together=together)
    caller.send_all(requests_of("aaaa"))
    caller.send_all({}, cancelled=(2,))
    caller.may_end.set()
    await caller.finish()
    await settled()
    assert {0, 1, 3} <= set(caller.answers)
    assert len(caller.observed) == 4


async def test_calls_that_are_cancelled_one_after_the_other_are_each_taken_note_of() -> None:
    for turns in range(12):  # the second comes before the others run alone, as they begin to, or after
        caller = await stuck_caller("aaa")
        caller.send_all({}, cancelled=(0,))
        for _ in range(turns):
            await asyncio.sleep(0)
        caller.send_all({}, cancelled=(1,))
        await settled()
        caller.may_end.set()
        await caller.finish()
        await settled()
        assert (sorted(caller.answers), codes(caller)) == ([2], ["CANCELLED", "CANCELLED", "OK"])


async def test_calls_whose_stream_ends_as_they_go_on_alone_are_taken_note_of() -> None:
    for turns in range(12):
        caller = await stuck_caller("aaa")
        caller.send_all({}, cancelled=(0,))
        for _ in range(turns):
            await asyncio.sleep(0)
        caller.reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller.reading
        await settled()
        assert codes(caller) == ["CANCELLED"] * 3


async def test_call_whose_deadline_passes_is_told_so_and_the_others_go_on_alone() -> None:
    together = Together("a")
    together.outcome = never
    caller = Caller(together=together)
    short = pb.StreamedCall(id=7, method="Vjp", request=b"a7", timeout_microseconds=50_000)
    long = pb.StreamedCall(id=8, method="Vjp", request=b"a8", timeout_microseconds=50_000_000)
    caller.send_frame(pb.StreamVjpRequest(calls=[short, long]))
    await asyncio.sleep(0.2)
    await settled()
    assert caller.answers[7].status
    caller.may_end.set()
    await caller.finish()
    assert caller.answers[8].response == b"a8"
    assert codes(caller) == ["DEADLINE_EXCEEDED", "OK"]


async def test_calls_that_are_answered_together_end_when_their_stream_does() -> None:
    caller = await stuck_caller("aaaa")
    caller.reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller.reading
    await settled()
    assert (caller.begun, codes(caller)) == (0, ["CANCELLED"] * 4)
    await caller.calls.wait_until_idle(0.0)


async def test_bad_request_id_goes_alone() -> None:
    together = Together("a")
    caller = Caller(together=together)
    caller.may_end.set()
    caller.send_all(requests_of("aa"), request_id="\n")
    await caller.finish()
    assert together.batches == []
    assert all(answer.status for answer in caller.answers.values())


async def test_frame_of_more_calls_than_may_be_under_way_is_answered_whole() -> None:
    caller = Caller(together=Together("a", max_together=MAX_CALLS * 2))
    caller.may_end.set()
    caller.send_all(requests_of("a" * (MAX_CALLS + 10)))
    await caller.finish()
    assert len(caller.answers) == MAX_CALLS + 10


async def test_bad_frame_ends_the_calls_before_the_fault_in_it() -> None:
    caller = Caller(together=Together("a"))
    calls = [pb.StreamedCall(id=number, method="Vjp", request=b"a") for number in (1, 2, 2)]
    caller.send_frame(pb.StreamVjpRequest(calls=calls))
    with pytest.raises(ConnectionAbortedError, match="got 2 twice"):
        await caller.reading
    await settled()
    assert len(caller.observed) == 2


SHAPES: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = {
    "flat": ({"x": (2, 3)}, {"output": (2, 3)}),
    "product": ({"x": (4,), "y": (4,)}, {}),
    "rows": ({"x": (2, 3)}, {"output": (2, 3)}),
    "columns": ({"x": (3, 2)}, {"output": (3, 2)}),
    "shared": ({"x": (2, 3), "weight": ()}, {"scaled": (2, 3), "total": (2,)}),
    "positive": ({"x": (3,)}, {"output": (3,)}),
}
TOGETHER = {"flat", "product", "rows", "positive"}
"""Those whose elements lie one behind the other as they lie in a joined request."""


@pytest.fixture
async def device() -> Any:
    device = Device("cpu:0", time.perf_counter)
    yield device
    await asyncio.to_thread(device.close, 10.0)


def calls_of(count: int, method: str = "Vjp") -> list[Call]:
    return [
        Call(method=method, request_id="id", clock=time.perf_counter, started_at=0.0, deadline=time.perf_counter() + 60)
        for _ in range(count)
    ]


def tensors_of(message: pb.ForwardResponse | pb.VjpResponse) -> list[tensor_pb2.Tensor]:
    return [*message.outputs, *(gradient.tensor for gradient in getattr(message, "input_gradients", ()))]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("method", ["Forward", "Vjp"])
async def test_answers_to_calls_together_are_those_that_each_gets_alone(device, name: str, method: str) -> None:
    service, alone = service_of(OPS, device, Plans()), service_of(OPS, device, NoPlans())
    service.max_together = 64
    shapes, given = SHAPES[name]
    sent = [request(method, name, draw(shapes, seed), draw(given, 100 + seed)) for seed in range(5)]
    for each in sent[:3]:
        await answer(service, method, each)
    plan = service.plan_of(method, sent[0])
    assert (plan is not None) == (name in TOGETHER)
    if plan is None:
        return
    assert all(service.plan_of(method, each) is plan for each in sent)
    calls = calls_of(5, method)
    got = await service.answer_together(plan, calls, sent)
    message = pb.ForwardResponse if method == "Forward" else pb.VjpResponse
    for one, each in zip(got, sent, strict=True):
        mine, theirs = message.FromString(one), message.FromString(await answer(alone, method, each))
        for ours, wanted in zip(tensors_of(mine), tensors_of(theirs), strict=True):
            values = [np.frombuffer(tensor.data, np.float32) for tensor in (ours, wanted)]
            np.testing.assert_allclose(*values, rtol=1e-6)
            ours.ClearField("data")
            wanted.ClearField("data")
        assert mine == theirs  # in all else
    assert {(call.op, call.version, *call.stages) for call in calls} == {
        (name, 1, "decode", "queue", "compute", "encode")
    }


async def test_calls_of_which_a_kernel_refuses_one_are_each_answered_alone(device) -> None:
    service = service_of(OPS, device, Plans())
    service.max_together = 64
    good = [request("Vjp", "positive", {"x": np.float32([1, 2, seed])}, {}) for seed in (3, 4, 5)]
    for each in good:
        await answer(service, "Vjp", each)
    bad = request("Vjp", "positive", {"x": np.float32([1, 2, -1])}, {})
    plan = service.plan_of("Vjp", bad)
    assert plan is not None
    assert await service.answer_together(plan, calls_of(2), [good[0], bad]) is None
    assert await service.answer_together(plan, calls_of(2), good[:2]) is not None


async def test_service_that_may_not_answer_together_or_is_stopping_has_no_plan(device) -> None:
    service = service_of(OPS, device, Plans())
    sent = request("Forward", "flat", draw({"x": (2, 3)}, 0), {})
    for _ in range(3):
        await answer(service, "Forward", sent)
    assert service.plan_of("Forward", sent) is None  # one at a time
    service.max_together = 2
    plan = service.plan_of("Forward", sent)
    assert plan is not None
    service.is_draining = True
    assert service.plan_of("Forward", sent) is None
    assert await service.answer_together(plan, calls_of(2), [sent, sent]) is None


async def test_queue_counts_each_of_the_calls_that_were_joined_before(device, monkeypatch) -> None:
    taken: list[Work] = []
    finish = WorkQueue.finish
    device = Device("cpu:0", time.perf_counter, Bounds(max_requests=5))
    monkeypatch.setattr(WorkQueue, "finish", lambda queue, works: (taken.extend(works), finish(queue, works)))
    service = service_of(OPS, device, Plans())
    service.max_together = 64
    sent = [request("Vjp", "flat", draw({"x": (2, 3)}, seed), {}) for seed in range(6)]
    for each in sent:
        await answer(service, "Vjp", each)
    plan = service.plan_of("Vjp", sent[0])
    taken.clear()
    assert await service.answer_together(plan, calls_of(6), sent) is None  # one more than may wait
    assert len(await service.answer_together(plan, calls_of(5), sent[:5])) == 5
    assert [work.load.calls for work in taken] == [5]
    await asyncio.to_thread(device.close, 10.0)
