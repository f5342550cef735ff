"""Logs: one JSON line for each request of a server in a process of its own, without anything that is secret."""

import asyncio
import concurrent.futures
import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.server.conftest import BEHAVIOUR
from tests.server.helpers import floats

from gradserve import Client
from gradserve.errors import Code, GradserveError
from gradserve_server.logs import AccessLog, make_logger
from gradserve_server.telemetry import STAGES, Call
from gradserve_server.testing import ServerProcess, server_process

CAUSE = "the cause is for the log alone"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(str(BEHAVIOUR)) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


def lines_of(server: ServerProcess, request_id: str, seconds: float = 5.0) -> list[dict[str, Any]]:
    """Returns the lines of the log with that id, once there is one."""
    deadline = time.monotonic() + seconds
    while True:
        lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
        found = [line for line in lines if line.get("request_id") == request_id]
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def test_log_of_a_call_is_one_line_with_what_one_asks_for(server: ServerProcess, client: Client) -> None:
    client.vjp("square", {"x": floats(3)}, request_id="log-ok")
    (line,) = lines_of(server, "log-ok")
    assert (line["event"], line["level"], line["method"], line["code"]) == ("request", "info", "Vjp", "OK")
    assert (line["op"], line["version"]) == ("square", 1)
    assert tuple(line["stages"]) == STAGES
    assert line["milliseconds"] >= sum(line["stages"].values()) - 0.01
    assert line["request_bytes"] > 0
    assert line["response_bytes"] > 0
    assert line["timestamp"].endswith("Z")


def test_log_of_a_call_holds_nothing_of_its_tensors(server: ServerProcess, client: Client) -> None:
    marked = np.array([12345.678], np.float64)
    client.vjp("square", {"x": marked}, {"output": np.array([98765.25])}, request_id="log-content")
    with pytest.raises(GradserveError):
        client.vjp("square", {"secret_input_name": marked}, request_id="log-names")
    assert lines_of(server, "log-content")
    assert lines_of(server, "log-names")
    for text in ("12345", "98765", "24691"):
        assert text not in server.log()


def test_log_of_a_refused_call_has_code_reason_and_text_but_no_traceback(server, client) -> None:
    with pytest.raises(GradserveError) as raised:
        client.vjp("take", {"table": floats(1), "index": np.int32(9)}, request_id="log-refused")
    (line,) = lines_of(server, "log-refused")
    assert (line["level"], line["code"], line["reason"]) == ("info", "INVALID_ARGUMENT", "VALUES_REFUSED")
    assert line["error"] == str(raised.value)
    assert line["request_bytes"] > 0
    assert "exception" not in line


def test_log_of_a_call_of_an_invented_op_has_no_op(server: ServerProcess, client: Client) -> None:
    with pytest.raises(GradserveError):
        client.vjp("invented", {"x": floats(1)}, request_id="log-invented")
    (line,) = lines_of(server, "log-invented")
    assert (line["op"], line["code"]) == ("", "NOT_FOUND")


def test_log_of_an_op_that_raised_has_the_traceback_that_the_caller_does_not_see(server, client) -> None:
    with pytest.raises(GradserveError) as raised:
        client.vjp("boom", {"x": floats(1)}, request_id="log-boom")
    (line,) = lines_of(server, "log-boom")
    assert (line["level"], line["code"], line["reason"]) == ("error", "INTERNAL", "OP_FAILED")
    assert CAUSE in line["exception"]
    assert "Traceback" in line["exception"]
    assert CAUSE not in str(raised.value) + line["error"]
    assert raised.value.request_id == "log-boom"


def test_log_of_the_server_s_life_names_ports_and_ops(server: ServerProcess) -> None:
    listening, ready = server.wait_for("listening"), server.wait_for("ready")
    assert server.target == f"127.0.0.1:{listening['port']}"
    assert ready["ops"] == ["boom:1", "record:1", "sleep:1", "square:1", "take:1"]


def test_log_holds_lines_of_the_server_alone_once_it_is_ready(server: ServerProcess, client: Client) -> None:
    for op, inputs in (("boom", {"x": floats(1)}), ("take", {"table": floats(1), "index": np.int32(7654)})):
        with pytest.raises(GradserveError):
            client.vjp(op, inputs, request_id=f"log-alone-{op}")
    assert lines_of(server, "log-alone-take")
    after_ready = server.log().partition('"event":"ready"')[2].splitlines()[1:]
    assert [line for line in after_ready if not line.startswith("{")] == []


def test_log_of_a_failed_warm_up_is_a_warning_in_one_line(server: ServerProcess) -> None:
    warning = server.wait_for("warm-up failed")
    assert (warning["level"], warning["op"]) == ("warning", "boom")


def write(call: Call, cause: Exception | None = None, **options: Any) -> str:
    stream = io.StringIO()
    logger = make_logger(options.get("level", "info"), options.get("log_format", "json"), stream)
    AccessLog(logger).calls_ended([(call, cause)])
    return stream.getvalue()


def ended(**fields: Any) -> Call:
    return Call(method="Vjp", request_id="id", clock=lambda: 0.0, started_at=0.0, **fields)


def test_log_below_its_level_is_silent() -> None:
    assert write(ended(), level="warning") == ""
    assert write(ended(code=Code.INTERNAL, error="e"), level="warning") != ""


@pytest.mark.parametrize(
    ("code", "level"),
    [
        ("OK", "info"),
        ("NOT_FOUND", "info"),
        ("CANCELLED", "info"),
        ("FAILED_PRECONDITION", "error"),
        ("INTERNAL", "error"),
    ],
)
def test_log_level_of_a_call_tells_whose_fault_it_was(code: str, level: str) -> None:
    assert json.loads(write(ended(code=Code[code])))["level"] == level


def test_log_for_people_is_text_with_a_plain_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        1 // 0  # noqa: B018
    text = write(ended(op="square", code=Code.INTERNAL, error="e"), raised.value, log_format="console")
    assert "op=square" in text
    assert "ZeroDivisionError: integer" in text
    assert "\x1b" not in text


def test_log_of_a_text_that_is_no_unicode_is_json_all_the_same() -> None:
    assert json.loads(write(ended(code=Code.INTERNAL, error="half \ud800 a pair")))["error"] == "half \ud800 a pair"


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


class CountedStream(io.StringIO):
    """A stream that knows how often it was written to."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)


async def test_lines_of_one_turn_of_the_event_loop_are_written_together_and_in_order() -> None:
    stream = CountedStream()
    logger = make_logger("info", "json", stream)
    for event in ("first", "second", "third"):
        logger.info(event)
    assert stream.getvalue() == ""
    await asyncio.sleep(0)
    assert events(stream.getvalue()) == ["first", "second", "third"]
    assert stream.writes == 1


async def test_line_of_another_thread_does_not_wait_for_the_event_loop() -> None:
    stream = io.StringIO()
    logger = make_logger("info", "json", stream)
    logger.info("of the loop")
    thread = threading.Thread(target=logger.info, args=("of a thread",))
    thread.start()
    thread.join()  # which holds up the loop
    assert events(stream.getvalue()) == ["of the loop", "of a thread"]


def test_lines_that_an_event_loop_left_unwritten_are_written_by_whoever_comes_next() -> None:
    stream = io.StringIO()
    logger = make_logger("info", "json", stream)
    loop = asyncio.new_event_loop()
    loop.call_soon(logger.info, "left")
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    logger.info("after")
    assert events(stream.getvalue()) == ["left", "after"]


def test_lines_of_many_threads_are_all_there_and_whole() -> None:
    stream = io.StringIO()
    logger = make_logger("info", "json", stream)

    def write_many(name: int) -> None:
        for number in range(200):
            logger.info(f"{name} {number}")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(write_many, range(8)))
    wanted = [f"{name} {number}" for name in range(8) for number in range(200)]
    assert sorted(events(stream.getvalue())) == sorted(wanted)
