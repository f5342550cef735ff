"""What both clients need of gRPC: deadlines, request ids, and errors with whatever details they carry."""

import time

import grpc
import pytest
from google.protobuf import any_pb2, wrappers_pb2
from google.rpc import error_details_pb2, status_pb2

from gradserve import errors
from gradserve.errors import Code, GradserveError, InvalidRequest
from gradserve.transport import Budget, check_target, check_timeout, error_of_rpc, read_trailer, request_metadata

METADATA = (("x-request-id", "sent"),)
INFO = error_details_pb2.ErrorInfo(reason="SHAPE_MISMATCH", domain="gradserve", metadata={"wanted": "(3,)"})


class RpcError(grpc.RpcError, Exception):
    """A failed RPC as both kinds of channel raise it."""

    def __init__(self, code: grpc.StatusCode, details: str | None, trailer: object) -> None:
        self._parts = (code, details, trailer)

    def code(self) -> grpc.StatusCode:
        return self._parts[0]

    def details(self) -> str | None:
        return self._parts[1]

    def trailing_metadata(self) -> object:
        return self._parts[2]


def error_with(*trailer: tuple[str, str | bytes], details: str | None = "text") -> GradserveError:
    return error_of_rpc(RpcError(grpc.StatusCode.INVALID_ARGUMENT, details, trailer), METADATA)


def packed(*messages: object) -> bytes:
    details = []
    for message in messages:
        detail = any_pb2.Any()
        detail.Pack(message)
        details.append(detail)
    return status_pb2.Status(code=3, message="text", details=details).SerializeToString()


@pytest.mark.parametrize("timeout", [None, 1, 0.001, 3600.0])
def test_check_timeout_returns_what_it_takes(timeout: float | None) -> None:
    assert check_timeout(timeout) == timeout


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), float("-inf")])
def test_check_timeout_of_no_positive_number_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_timeout(timeout)
    assert str(caught.value) == f"timeout: wanted seconds above 0, or None for no deadline, got {timeout!r}"


@pytest.mark.parametrize("request_id", ["a", "x" * 128, "with space ~!"])
def test_request_metadata_sends_the_id_given(request_id: str) -> None:
    assert request_metadata(request_id) == (("x-request-id", request_id),)


def test_request_metadata_without_an_id_makes_one_up() -> None:
    ((key, first),), ((_, second),) = request_metadata(None), request_metadata(None)
    assert key == "x-request-id"
    assert first != second
    assert first.isalnum()


@pytest.mark.parametrize("request_id", ["", "x" * 129, "a\nb", "grün", "\x7f", "\t"], ids=ascii)
def test_request_metadata_of_an_id_that_does_not_belong_in_a_log_is_refused(request_id: str) -> None:
    with pytest.raises(InvalidRequest, match="request_id: wanted 1 to 128 printable ASCII characters"):
        request_metadata(request_id)


@pytest.mark.parametrize("metadata", [None, ()])
def test_read_trailer_of_none_is_empty(metadata: object) -> None:
    assert read_trailer(metadata) == {}


def test_read_trailer_keeps_text_alone() -> None:
    assert read_trailer((("a", "1"), ("b-bin", b"\x00"))) == {"a": "1"}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_error_of_rpc_has_the_code_of_the_rpc(code: grpc.StatusCode) -> None:
    error = error_of_rpc(RpcError(code, "text", ()), METADATA)
    assert error.code is Code[code.name]
    assert (str(error).partition(";")[0], error.reason, error.facts) == ("text", code.name, {})
    assert error.request_id == "sent"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "text; give the call a longer timeout"),
        (grpc.StatusCode.UNAVAILABLE, "text; is a server running there, and is the target right?"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "text; send less, or raise --max-message-bytes of the server"),
        (grpc.StatusCode.INTERNAL, "text"),
    ],
)
def test_error_of_rpc_that_grpc_itself_made_says_what_to_do(code: grpc.StatusCode, remedy: str) -> None:
    assert str(error_of_rpc(RpcError(code, "text", ()), METADATA)) == remedy


def test_check_target_without_a_port_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="wanted HOST:PORT, such as 'localhost:50051', got 'localhost'"):
        check_target("localhost")
    assert check_target("[::1]:50051") == "[::1]:50051"


@pytest.mark.parametrize("others", [(), (wrappers_pb2.StringValue(value="x"),)])
def test_error_of_rpc_takes_reason_and_facts_from_the_error_info(others: tuple[object, ...]) -> None:
    error = error_with(("grpc-status-details-bin", packed(*others, INFO)))
    assert isinstance(error, errors.InvalidRequest)
    assert (error.reason, error.facts) == ("SHAPE_MISMATCH", {"wanted": "(3,)"})


def broken_info() -> bytes:
    detail = any_pb2.Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\x0a\xff\xff")
    return status_pb2.Status(details=[detail]).SerializeToString()


@pytest.mark.parametrize(
    "details",
    [b"", b"\xff\xff\xff", b"garbage", "text", packed(), packed(wrappers_pb2.StringValue(value="x")), broken_info()],
    ids=["empty", "no message", "words", "not bytes", "no details", "other details", "broken info"],
)
def test_error_of_rpc_with_details_that_tell_nothing_keeps_code_and_text(details: str | bytes) -> None:
    error = error_with(("grpc-status-details-bin", details))
    assert (type(error), str(error)) == (InvalidRequest, "text")
    assert (error.reason, error.facts) == ("INVALID_ARGUMENT", {})


def test_error_of_rpc_takes_the_request_id_that_the_server_names() -> None:
    assert error_with(("x-request-id", "named")).request_id == "named"
    assert error_with().request_id == "sent"


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (None, "the server gave no reason"),
        ("", "the server gave no reason"),
        ("two\nlines\r\n  more", "two lines more"),
    ],
)
def test_error_of_rpc_text_is_one_line(details: str | None, text: str) -> None:
    assert str(error_with(details=details)) == text


def test_error_of_rpc_takes_the_metadata_of_asyncio() -> None:
    trailer = grpc.aio.Metadata(("x-request-id", "named"), ("grpc-status-details-bin", packed(INFO)))
    rpc = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), trailer, details="text")
    error = error_of_rpc(rpc, METADATA)
    assert isinstance(error, errors.NotFound)
    assert (error.reason, error.request_id) == ("SHAPE_MISMATCH", "named")


def test_budget_shared_by_two_rpcs_leaves_the_second_what_the_first_did_not_use() -> None:
    budget = Budget(10.0)
    first = budget.remaining_seconds()
    time.sleep(0.01)
    second = budget.remaining_seconds()
    assert first is not None
    assert second is not None
    assert second <= first - 0.01


def test_budget_that_is_used_up_stays_positive_so_that_grpc_reports_it() -> None:
    budget = Budget(1e-9)
    time.sleep(0.001)
    assert budget.remaining_seconds() == 1e-6


def test_budget_without_limit_has_none() -> None:
    assert Budget(None).remaining_seconds() is None
