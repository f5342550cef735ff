"""The error tree and the table between codes and classes."""

import grpc
import pytest

from gradserve import errors
from gradserve.errors import Code, GradserveError, error_for_code, quote, quote_all

CLASSES = {
    Code.INVALID_ARGUMENT: errors.InvalidRequest,
    Code.NOT_FOUND: errors.NotFound,
    Code.FAILED_PRECONDITION: errors.OpContractError,
    Code.UNIMPLEMENTED: errors.Unsupported,
    Code.RESOURCE_EXHAUSTED: errors.ResourceExhausted,
    Code.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    Code.CANCELLED: errors.Cancelled,
    Code.UNAUTHENTICATED: errors.Unauthenticated,
    Code.PERMISSION_DENIED: errors.PermissionDenied,
    Code.UNAVAILABLE: errors.Unavailable,
    Code.INTERNAL: errors.OpFailed,
}


def test_code_has_the_names_and_numbers_of_grpc() -> None:
    assert {code.name: code.value for code in Code} == {code.name: code.value[0] for code in grpc.StatusCode}


@pytest.mark.parametrize("code", Code)
def test_error_for_code_has_the_class_of_the_code_and_the_code(code: Code) -> None:
    error = error_for_code(code, "what happened", reason="A_REASON", facts={"wanted": "1"}, request_id="id-1")
    assert type(error) is CLASSES.get(code, GradserveError)
    assert error.code is code
    assert str(error) == "what happened"
    assert (error.reason, error.facts, error.request_id) == ("A_REASON", {"wanted": "1"}, "id-1")


@pytest.mark.parametrize("code", Code)
def test_error_for_code_without_a_reason_takes_the_name_of_the_code(code: Code) -> None:
    assert error_for_code(code, "text", reason="", facts={}, request_id=None).reason == code.name


@pytest.mark.parametrize(("code", "error_class"), CLASSES.items(), ids=lambda value: getattr(value, "__name__", None))
def test_error_class_raised_bare_carries_its_code(code: Code, error_class: type[GradserveError]) -> None:
    error = error_class("text")
    assert (error.code, error.reason, error.facts, error.request_id) == (code, code.name, {}, None)
    assert isinstance(error, GradserveError)
    assert error_class.__doc__


def test_errors_every_class_of_the_module_is_in_the_table() -> None:
    classes = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes - {GradserveError} == set(CLASSES.values())


def test_error_for_unknown_code_leaves_the_base_class_unchanged() -> None:
    error_for_code(Code.DATA_LOSS, "text", reason="", facts={}, request_id=None)
    assert GradserveError("text").code is Code.UNKNOWN


def test_error_facts_are_a_copy() -> None:
    facts = {"got": "1"}
    error = GradserveError("text", facts=facts)
    facts["got"] = "2"
    assert error.facts == {"got": "1"}


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("x", "'x'"),
        ("state/h", "'state/h'"),
        ("", "''"),
        ("it's", '"it\'s"'),
        ("a\nb\x00\x1b[31m", r"'a\nb\x00\x1b[31m'"),
        ("grün", r"'gr\xfcn'"),
        ("\ud800\u2028", r"'\ud800\u2028'"),
        ("x" * 64, f"'{'x' * 64}'"),
        ("x" * 65, f"'{'x' * 61}...'"),
        ("x" * 10**6, f"'{'x' * 61}...'"),
    ],
)
def test_quote_is_one_short_line_of_printable_ascii(name: str, quoted: str) -> None:
    assert quote(name) == quoted
    assert quote(name).isascii()
    assert quote(name).isprintable()


@pytest.mark.parametrize(
    ("names", "quoted"),
    [
        ([], ""),
        (["x"], "'x'"),
        (list("abcdefgh"), "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'"),
        (list("abcdefghi"), "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h' and 1 more"),
    ],
)
def test_quote_all_shows_eight_and_counts_the_rest(names: list[str], quoted: str) -> None:
    assert quote_all(names) == quoted
