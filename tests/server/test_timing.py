"""Metadata of a call: the stages in ``gradserve-timing``, and ``x-request-id`` in and out."""

from typing import Any

import grpc
import numpy as np
import pytest

from gradserve.methods import parse_timing
from gradserve.tensors import encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.telemetry import STAGES

SQUARE = pb.VjpRequest(op="square", inputs=[encode(np.float32(3), "x")]).SerializeToString()


def call(channel: grpc.Channel, method: str, data: bytes, *metadata: tuple[str, Any]) -> dict[str, Any]:
    """Returns the trailing metadata of a call, and its code."""
    send = channel.unary_unary(f"/gradserve.v1.GradientService/{method}")
    try:
        _, ended = send.with_call(data, metadata=metadata, timeout=10)
    except grpc.RpcError as error:
        ended = error
    return {"code": ended.code().name, **dict(ended.trailing_metadata() or ())}


@pytest.mark.parametrize("method", ["Vjp", "Forward"])
def test_timing_of_an_evaluation_has_all_four_stages_in_order(channel: grpc.Channel, method: str) -> None:
    forward = pb.ForwardRequest(op="square", inputs=[encode(np.float32(3), "x")]).SerializeToString()
    trailer = call(channel, method, SQUARE if method == "Vjp" else forward)
    assert tuple(parse_timing(trailer["gradserve-timing"])) == STAGES
    assert all(milliseconds >= 0 for milliseconds in parse_timing(trailer["gradserve-timing"]).values())


def test_timing_of_a_slow_op_puts_its_time_into_compute(channel: grpc.Channel) -> None:
    inputs = [encode(np.float32(0.2), "seconds"), encode(np.int32(0), "number")]
    trailer = call(channel, "Forward", pb.ForwardRequest(op="sleep", inputs=inputs).SerializeToString())
    timing = parse_timing(trailer["gradserve-timing"])
    assert timing["compute"] >= 200
    assert timing["compute"] == max(timing.values())


def test_timing_of_a_failure_has_the_stages_that_began(channel: grpc.Channel) -> None:
    data = pb.VjpRequest(op="boom", inputs=[encode(np.float32(3), "x")]).SerializeToString()
    trailer = call(channel, "Vjp", data)
    assert trailer["code"] == "INTERNAL"
    assert tuple(parse_timing(trailer["gradserve-timing"])) == ("decode", "queue", "compute")


@pytest.mark.parametrize("request_id", ["mine", "~" * 128, "trace/7; b=2"])
@pytest.mark.parametrize(("data", "code"), [(SQUARE, "OK"), (b"\xff", "INVALID_ARGUMENT")])
def test_request_id_is_echoed_whether_the_call_ends_well_or_not(
    channel, request_id: str, data: bytes, code: str
) -> None:
    trailer = call(channel, "Vjp", data, ("x-request-id", request_id))
    assert (trailer["code"], trailer["x-request-id"]) == (code, request_id)


def test_request_id_is_made_up_where_there_is_none(channel: grpc.Channel) -> None:
    first, second = (call(channel, "Vjp", SQUARE)["x-request-id"] for _ in range(2))
    assert first != second
    assert len(first) == len(second) == 32


@pytest.mark.parametrize("request_id", ["a" * 129, ""])
def test_request_id_that_does_not_belong_in_a_log_is_refused_and_not_echoed(channel, request_id: str) -> None:
    trailer = call(channel, "Vjp", SQUARE, ("x-request-id", request_id))
    assert trailer["code"] == "INVALID_ARGUMENT"
    assert "x-request-id" not in trailer
    assert b"BAD_REQUEST_ID" in trailer["grpc-status-details-bin"]


@pytest.mark.parametrize("method", ["ListOps", "GetOp"])
def test_request_id_of_a_call_that_evaluates_nothing_is_echoed(channel: grpc.Channel, method: str) -> None:
    data = pb.GetOpRequest(name="square").SerializeToString() if method == "GetOp" else b""
    trailer = call(channel, method, data, ("x-request-id", "mine"))
    assert (trailer["code"], trailer["x-request-id"]) == ("OK", "mine")


def test_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    assert call(channel, "NoSuchMethod", b"")["code"] == "UNIMPLEMENTED"
