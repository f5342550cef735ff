"""The calls of one stream, without I/O."""

from gradserve.errors import Cancelled, GradserveError, InvalidRequest, OpFailed, Unavailable
from gradserve.streamed_calls import NotSent, StreamedCalls
from gradserve.v1 import gradient_service_pb2 as pb


def add(calls: StreamedCalls[str], waiter: str, request: bytes = b"r", timeout: float | None = None) -> int:
    return calls.add("Vjp", request, timeout, "id", waiter)


def sent(calls: StreamedCalls[str]) -> pb.StreamVjpRequest:
    return pb.StreamVjpRequest.FromString(calls.next_frame())


def answers(*ids: int) -> bytes:
    return pb.StreamVjpResponse(answers=[pb.StreamedAnswer(id=call_id) for call_id in ids]).SerializeToString()


def test_a_frame_has_all_calls_that_wait() -> None:
    calls: StreamedCalls[str] = StreamedCalls()
    add(calls, "a", timeout=1.5)
    add(calls, "b")
    frame = sent(calls)
    assert [(call.id, call.method, call.request, call.timeout_microseconds) for call in frame.calls] == [
        (1, "Vjp", b"r", 1_500_000),
        (2, "Vjp", b"r", 0),
    ]
    assert not calls.has_frame


def test_a_timeout_too_short_to_say_is_no_lack_of_one() -> None:
    calls: StreamedCalls[str] = StreamedCalls()
    add(calls, "a", timeout=1e-9)
    assert sent(calls).calls[0].timeout_microseconds == 1


def test_a_frame_that_would_be_too_large_leaves_calls_for_the_next() -> None:
    calls: StreamedCalls[str] = StreamedCalls()
    for name in "abc":
        add(calls, name, request=bytes(2**21))
    assert [len(sent(calls).calls), len(sent(calls).calls), calls.has_frame] == [2, 1, False]


def test_answers_go_to_who_waits_and_others_are_left_out() -> None:
    calls: StreamedCalls[str] = StreamedCalls()
    add(calls, "a")
    add(calls, "b")
    calls.next_frame()
    assert [(waiter, answer.id) for waiter, answer in calls.take(answers(2, 7))] == [("b", 2)]
    assert calls.take(answers(2)) == []


def test_a_dropped_call_that_was_not_sent_is_never_sent() -> None:
    calls: StreamedCalls[str] = StreamedCalls()
    calls.drop(add(calls, "a"))
    assert not calls.has_frame


def test_a_dropped_call_that_was_sent_is_cancelled_once() -> None:
    calls: StreamedCalls[str] = StreamedCalls()
    call_id = add(calls, "a")
    calls.next_frame()
    calls.drop(call_id)
    calls.drop(call_id)
    assert list(sent(calls).cancelled_ids) == [call_id]


def test_an_answered_call_is_not_cancelled() -> None:
    calls: StreamedCalls[str] = StreamedCalls()
    call_id = add(calls, "a")
    calls.next_frame()
    calls.take(answers(call_id))
    calls.drop(call_id)
    assert not calls.has_frame


def ended(error: GradserveError | None) -> list[tuple[str, str, str]]:
    """Returns what a call that was sent and one that was not are told."""
    calls: StreamedCalls[str] = StreamedCalls()
    add(calls, "sent")
    calls.next_frame()
    add(calls, "unsent")
    return [(waiter, type(told).__name__, told.reason) for waiter, told in calls.end(error)]


def test_calls_of_a_broken_stream_that_were_not_sent_are_told_so() -> None:
    assert ended(OpFailed("reset")) == [
        ("sent", Unavailable.__name__, "STREAM_BROKEN"),
        ("unsent", NotSent.__name__, "STREAM_BROKEN"),
    ]


def test_calls_of_a_broken_stream_are_told_under_their_own_ids() -> None:
    calls: StreamedCalls[str] = StreamedCalls()
    for request_id in ("first", "second"):
        calls.add("Vjp", b"", None, request_id, request_id)
    calls.next_frame()
    assert [(waiter, told.request_id) for waiter, told in calls.end(Unavailable("gone"))] == [
        ("first", "first"),
        ("second", "second"),
    ]


def test_a_stream_that_was_refused_tells_its_calls_why() -> None:
    assert ended(InvalidRequest("bad frame", reason="X"))[0] == ("sent", InvalidRequest.__name__, "X")


def test_calls_of_a_closed_client_are_cancelled() -> None:
    assert [told for _, told, _ in ended(None)] == [Cancelled.__name__, Cancelled.__name__]
