"""Thousands of malformed or mutated requests to a live server: each is answered right, or refused in one line."""

import collections
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tests.support import hostile
from tests.support.hostile_answers import check_answer
from tests.support.processes import ServerProcess, server_process
from tests.support.raw import Answer, send

from gradserve import Client
from gradserve.errors import Code
from gradserve.tensors import decode

EXAMPLES = Path(__file__).parents[2] / "examples" / "ops.py"
REQUESTS = 3000
REFUSALS = {
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.FAILED_PRECONDITION,
    Code.UNIMPLEMENTED,
    Code.RESOURCE_EXHAUSTED,
}
LEAST_BY_CODE = {
    Code.OK: 100,
    Code.INVALID_ARGUMENT: 600,
    Code.NOT_FOUND: 100,
}
REASONS = {
    "MALFORMED_MESSAGE",
    "UNKNOWN_DTYPE",
    "BAD_SHAPE",
    "BYTE_COUNT_MISMATCH",
    "BAD_BOOL",
    "DTYPE_MISMATCH",
    "SHAPE_MISMATCH",
    "BAD_INPUT_NAMES",
    "BAD_OUTPUT_GRADIENT_NAMES",
    "BAD_DIFFERENTIATE_NAMES",
    "REPEATED_NAME",
    "VALUES_REFUSED",
    "BAD_VERSION",
    "BAD_UNCONNECTED",
    "BAD_REQUEST_ID",
    "NO_SUCH_OP",
    "NO_SUCH_VERSION",
    "NO_SUCH_SIGNATURE",
    "NO_SEED_INPUT",
    "BAD_TANGENT_NAMES",
    "BAD_VECTOR_NAMES",
    "NO_VECTORS",
    "NOT_DIFFERENTIABLE",
    "TOO_MANY_ROWS",
}


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with server_process(str(EXAMPLES), str(Path(__file__).with_name("ops_of_many_kinds.py"))) as server:
        yield server


def test_hostile_requests_are_answered_right_or_refused_in_one_line(server: ServerProcess) -> None:
    rng = random.Random(20261130)
    answers = []
    with grpc.insecure_channel(server.target) as channel, Client(server.target) as client:
        for number in range(REQUESTS):
            kind = rng.choice(hostile.KINDS)
            method, request = kind(rng)
            answer = send(channel, method, request, hostile.metadata(rng))
            check(answer, method, request, f"request {number}, {kind.__name__}")
            answers.append(answer)
            if number % 100 == 99:
                check_still_right(client)
    check_mix(answers)
    assert "Traceback" not in server.log()


def check(answer: Answer, method: str, request: bytes, place: str) -> None:
    """Accepts an answer that belongs to the request, or a refusal of the contract in one line."""
    place = f"{place}: {method} {request[:300]!r} -> {answer}"
    if answer.code is Code.OK:
        check_answer(method, request, answer.response)
        return
    assert answer.code in REFUSALS, place
    assert answer.reason, place
    assert 0 < len(answer.text.encode()) <= 2048, place
    assert answer.text.isprintable(), place  # no line break of any kind, no control character
    assert "Traceback" not in answer.text, place
    assert 'File "' not in answer.text, place


def check_still_right(client: Client) -> None:
    result = client.vjp("multiply_with_grad", {"x": np.float32(4), "y": np.float32(5)})
    assert (result.output, result.input_gradients["x"], result.input_gradients["y"]) == (20, 5, 4)
    stacked = client.vjp("square_with_grad", np.float32([3, 4]), np.float32([[1, 0], [2, 5]]), stacked=True)
    assert stacked.gradient.tolist() == [[6, 0], [12, 40]]
    assert client.jacobian("square_with_grad", np.float32([3, 4])).jacobian.tolist() == [[6, 0], [0, 8]]
    assert client.jvp("square_with_grad", np.float32(3), np.float32(5)).tangent == 30
    assert client.hvp("square_with_grad", np.float32(3), np.float32(5)).product == 10
    inputs, gradients = hostile.good_pick()
    arrays = {tensor.name: decode(tensor) for tensor in inputs}
    result = client.vjp("pick", arrays, {tensor.name: decode(tensor) for tensor in gradients})
    assert result.outputs["picked"].tolist() == [[-3, -4], [-1, -2], [-3, -4]]
    assert result.input_gradients["x"].tolist() == [[-1, -1], [-2, -2]]
    assert result.input_gradients["state/h"].tolist() == [5, 7]


def check_mix(answers: list[Answer]) -> None:
    """The requests must have reached every check, or the run has shown nothing."""
    codes = collections.Counter(answer.code for answer in answers)
    assert sum(codes.values()) == REQUESTS
    assert all(codes[code] >= least for code, least in LEAST_BY_CODE.items()), codes
    reasons = collections.Counter(answer.reason for answer in answers)
    assert set(reasons) >= REASONS, REASONS - set(reasons)
