"""Statuses: what a caller sees of each exception, in one line that gRPC will carry."""

import string
import urllib.parse

import pytest
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2

from gradserve import errors
from gradserve_server.status import MAX_TEXT_BYTES, Failure, failure_of, to_status


@pytest.mark.parametrize(
    ("error_class", "code"),
    [
        (errors.InvalidRequest, "INVALID_ARGUMENT"),
        (errors.NotFound, "NOT_FOUND"),
        (errors.OpContractError, "FAILED_PRECONDITION"),
        (errors.Unsupported, "UNIMPLEMENTED"),
        (errors.ResourceExhausted, "RESOURCE_EXHAUSTED"),
        (errors.DeadlineExceeded, "DEADLINE_EXCEEDED"),
        (errors.Cancelled, "CANCELLED"),
        (errors.Unauthenticated, "UNAUTHENTICATED"),
        (errors.PermissionDenied, "PERMISSION_DENIED"),
        (errors.Unavailable, "UNAVAILABLE"),
        (errors.OpFailed, "INTERNAL"),
    ],
)
def test_failure_of_an_error_of_the_tree_has_its_code_reason_text_and_facts(error_class, code: str) -> None:
    failure = failure_of(error_class("the text", reason="THE_REASON", facts={"input": "x"}), op="square")
    assert (failure.code.name, failure.reason, failure.text) == (code, "THE_REASON", "the text")
    assert (failure.facts, failure.is_internal) == ({"input": "x"}, False)


def test_failure_of_a_decode_error_is_a_malformed_message() -> None:
    failure = failure_of(DecodeError("Error parsing message: /secret"), op="")
    assert (failure.code.name, failure.reason, failure.is_internal) == ("INVALID_ARGUMENT", "MALFORMED_MESSAGE", False)
    assert "secret" not in failure.text


@pytest.mark.parametrize("error", [ValueError("secret"), KeyError("secret"), RuntimeError(), MemoryError("secret")])
def test_failure_of_any_other_error_in_an_op_names_the_op_only(error: Exception) -> None:
    failure = failure_of(error, op="square")
    assert (failure.code.name, failure.reason, failure.is_internal) == ("INTERNAL", "OP_FAILED", True)
    assert failure.facts == {"op": "square"}
    assert failure.text == "op 'square' raised while it ran; the server's log has the cause under the request id"


def test_failure_outside_an_op_says_so() -> None:
    failure = failure_of(ValueError("secret"), op="")
    assert (failure.reason, failure.facts) == ("SERVER_FAILED", {})
    assert "secret" not in failure.text


def test_failure_text_of_several_lines_becomes_one() -> None:
    assert failure_of(errors.NotFound("first\r\n\tsecond\u2028third"), op="").text == "first second third"


@pytest.mark.parametrize("character", ["a", "é", "字", "🙂"])
@pytest.mark.parametrize("shift", range(4))
def test_failure_text_beyond_2_kb_is_cut_between_characters(character: str, shift: int) -> None:
    text = failure_of(errors.NotFound("x" * shift + character * 3000), op="").text
    in_header = len(urllib.parse.quote(text, safe=string.printable.replace("%", "")))
    assert MAX_TEXT_BYTES - 3 * len(character.encode()) < in_header <= MAX_TEXT_BYTES
    assert text == "x" * shift + character * (len(text) - 3 - shift) + "..."


@pytest.mark.parametrize("text", ["x" * 2048, "é" * 341, "%" * 682])
def test_failure_text_of_2_kb_in_a_header_is_kept(text: str) -> None:
    assert failure_of(errors.NotFound(text), op="").text == text


def test_failure_text_shows_control_characters_escaped() -> None:
    assert failure_of(errors.InvalidRequest("a\x1b[2J\x07b"), op="").text == r"a\x1b[2J\x07b"


def test_failure_text_with_a_lone_surrogate_can_be_sent() -> None:
    failure = failure_of(errors.NotFound("bad \ud800 text", facts={"got": "\ud800"}), op="")
    assert to_status(failure).message == r"bad \ud800 text"


def test_to_status_carries_error_info_with_short_facts() -> None:
    failure = failure_of(errors.InvalidRequest("t", reason="SHAPE_MISMATCH", facts={"got": "é" * 500}), op="")
    status = to_status(failure)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (status.code, status.message, info.domain, info.reason) == (3, "t", "gradserve", "SHAPE_MISMATCH")
    assert len(info.metadata["got"].encode()) <= 256


def test_to_status_of_the_longest_failure_fits_into_grpc_metadata() -> None:
    facts = {f"fact_{index}": "é" * 500 for index in range(4)}
    failure = failure_of(errors.InvalidRequest("é" * 5000, facts=facts), op="")
    assert isinstance(failure, Failure)
    assert to_status(failure).ByteSize() < 4096
