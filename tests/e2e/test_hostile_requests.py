"""Two thousand malformed or mutated requests to a live server: each is answered right, or refused in one line."""

import collections
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tests.support import hostile
from tests.support.processes import ServerProcess, server_process
from tests.support.raw import Answer, send

from gradserve import Client
from gradserve.errors import Code
from gradserve.tensors import decode
from gradserve.v1 import gradient_service_pb2 as pb

EXAMPLES = Path(__file__).parents[2] / "examples" / "ops.py"
REQUESTS = 2000
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
}
RESPONSES = {
    "Vjp": pb.VjpResponse,
    "Forward": pb.ForwardResponse,
    "GetOp": pb.GetOpResponse,
    "ListOps": pb.ListOpsResponse,
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
        check_answer(RESPONSES[method].FromString(answer.response), method, request)
        return
    assert answer.code in REFUSALS, place
    assert answer.reason, place
    assert 0 < len(answer.text.encode()) <= 2048, place
    assert answer.text.isprintable(), place  # no line break of any kind, no control character
    assert "Traceback" not in answer.text, place
    assert 'File "' not in answer.text, place


def check_answer(response: pb.VjpResponse, method: str, request: bytes) -> None:
    """Compares the outputs of the ops that this test can compute itself, and the shapes of gradients."""
    if method not in ("Vjp", "Forward"):
        return
    message = (pb.VjpRequest if method == "Vjp" else pb.ForwardRequest).FromString(request)
    inputs = {tensor.name: flushed(decode(tensor)) for tensor in message.inputs}
    outputs = {tensor.name: decode(tensor) for tensor in response.outputs}
    with np.errstate(all="ignore"):
        if message.op == "multiply_with_grad":
            assert_equal(outputs["output"], inputs["x"] * inputs["y"])
        elif message.op == "pick":
            check_pick(inputs, outputs)
    for gradient in response.input_gradients if method == "Vjp" else ():
        assert gradient.status != pb.GRADIENT_STATUS_UNSPECIFIED
        if gradient.status == pb.GRADIENT_STATUS_DENSE:
            assert decode(gradient.tensor).shape == inputs[gradient.name].shape


def check_pick(inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
    sign = -1 if inputs["mode"][()] == b"minus" else 1
    picked = inputs["x"][inputs["rows"]] * np.float32(sign if inputs["keep"] else 0)
    assert outputs["mode"][()] == inputs["mode"][()]
    if inputs["keep"]:
        assert_equal(outputs["picked"], picked)
    else:
        assert_equal(outputs["picked"], np.zeros_like(picked))
    assert_equal(outputs["state/h"], inputs["state/h"] + inputs["state/steps/0"])


def assert_equal(got: np.ndarray, wanted: np.ndarray) -> None:
    """Compares arrays by value, NaNs included."""
    np.testing.assert_array_equal(flushed(got), flushed(wanted))


def flushed(array: np.ndarray) -> np.ndarray:
    """Returns an array with zeros for denormal numbers, which is what TensorFlow's kernels take them for."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.abs(array) < np.finfo(array.dtype).tiny, array.dtype.type(0), array)


def check_still_right(client: Client) -> None:
    result = client.vjp("multiply_with_grad", {"x": np.float32(4), "y": np.float32(5)})
    assert (result.output, result.input_gradients["x"], result.input_gradients["y"]) == (20, 5, 4)
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
