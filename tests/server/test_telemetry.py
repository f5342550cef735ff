"""``Call``: stages timed by the clock that is handed in, the timing trailer, request ids."""

import asyncio
import contextvars

import pytest

from gradserve.errors import InvalidRequest
from gradserve_server.telemetry import (
    Call,
    check_request_id,
    current_call,
    request_id_of,
    set_current_call,
)


def make_call(*ticks: float) -> Call:
    remaining = iter(ticks)
    return Call(method="Vjp", request_id="id", clock=lambda: next(remaining), started_at=0.0)


def test_stage_is_timed_by_the_clock() -> None:
    call = make_call(1.0, 1.25, 2.0, 2.0625)
    with call.stage("decode"):
        pass
    with call.stage("encode"):
        pass
    assert call.stages == {"decode": 0.25, "encode": 0.0625}


def test_stage_that_fails_is_timed_too() -> None:
    call = make_call(1.0, 1.5)
    with pytest.raises(ValueError, match="why"), call.stage("decode"):
        raise ValueError("why")
    assert call.stages == {"decode": 0.5}


def test_timing_gives_milliseconds_by_stage_in_order() -> None:
    call = make_call()
    call.stages.update(decode=0.000052, queue=0.0, compute=1.5)
    assert call.timing() == "decode;dur=0.052, queue;dur=0.000, compute;dur=1500.000"


def test_current_call_without_one_is_a_lookup_error() -> None:
    with pytest.raises(LookupError):
        contextvars.Context().run(current_call)


async def test_current_call_of_two_tasks_is_each_its_own() -> None:
    async def handle(name: str) -> str:
        set_current_call(Call(method=name, request_id="id", clock=lambda: 0.0, started_at=0.0))
        await asyncio.sleep(0)
        return current_call().method

    assert await asyncio.gather(handle("first"), handle("second")) == ["first", "second"]


@pytest.mark.parametrize("value", ["mine", b"mine"])
def test_request_id_of_metadata_with_one_is_that(value: str | bytes) -> None:
    assert request_id_of([("user-agent", "a"), ("x-request-id", value)]) == "mine"


@pytest.mark.parametrize("metadata", [None, [], [("user-agent", "a")]])
def test_request_id_of_metadata_without_one_is_new_each_time(metadata) -> None:
    first, second = request_id_of(metadata), request_id_of(metadata)
    assert first != second
    check_request_id(first)


@pytest.mark.parametrize("request_id", ["a", "~" * 128, "trace/7 b=2"])
def test_check_request_id_of_printable_ascii_passes(request_id: str) -> None:
    check_request_id(request_id)


@pytest.mark.parametrize("request_id", ["", "a" * 129, "a\nb", "a\n", "é", "\x7f", "\x00"])
def test_check_request_id_of_anything_else_is_refused_without_repeating_it(request_id: str) -> None:
    with pytest.raises(InvalidRequest, match="wanted 1 to 128 printable ASCII characters, got") as raised:
        check_request_id(request_id)
    assert raised.value.reason == "BAD_REQUEST_ID"
