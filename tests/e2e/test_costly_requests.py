"""Small requests whose answers would be huge: refused before the server spends memory or time on them, or answered at once."""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from tests.support.processes import ServerProcess, server_process
from tests.support.raw import Answer, send

from gradserve.errors import Code
from gradserve.tensors import encode
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve.v1 import tensor_pb2

EXAMPLES = Path(__file__).parents[2] / "examples" / "ops.py"
MOST_SECONDS = 20.0  # of a machine that runs other tests too; most take milliseconds
MOST_BYTES = 2 * 2**30
ZERO = pb.UNCONNECTED_GRADIENTS_ZERO


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(str(EXAMPLES), str(Path(__file__).with_name("ops_of_many_kinds.py"))) as server:
        yield server


def ones(**shapes: tuple[int, ...]) -> list[tensor_pb2.Tensor]:
    return [encode(np.ones(shape, np.float32), name) for name, shape in shapes.items()]


def multiplied(x: tuple[int, ...], y: tuple[int, ...], **options: object) -> dict[str, object]:
    return {"op": "multiply_with_grad", "inputs": ones(x=x, y=y), **options}


def largest(x: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...], **options: object) -> dict[str, object]:
    return {"op": "largest", "inputs": ones(x=x, b=b, c=c), **options}


ROWS, TOO_LARGE, SHAPE, REFUSED = "TOO_MANY_ROWS", "RESPONSE_TOO_LARGE", "BAD_SHAPE", "VALUES_REFUSED"
LONG = (2**20,)
OVERFLOWING = ((2**10, 1, 1, 0), (1, 2**22, 1, 1), (1, 1, 2**20, 1))
REQUESTS: dict[str, tuple[str, dict[str, object]]] = {
    "stack of a huge number": (ROWS, multiplied((), (), stack=2**32 - 1)),
    "stack of nothing, a huge number of times": (ROWS, multiplied((0,), (0,), stack=2**32 - 1)),
    "stack of long gradients": (TOO_LARGE, multiplied(LONG, LONG, stack=4096)),
    "stack of long gradients that nobody asked for": (ROWS, multiplied((), LONG, stack=4096, differentiate=["x"])),
    "stack of many columns times many rows": (ROWS, multiplied((4096, 1), (1, 4096), stack=4096, differentiate=["x"])),
    "stack of zeros for an input without a gradient": (
        TOO_LARGE,
        largest((), LONG, (), stack=4096, differentiate=["b"], unconnected=ZERO),
    ),
    "stack of shapes that overflow": (SHAPE, largest(*OVERFLOWING, stack=4096, differentiate=["x"])),
    "stack beside rank 32": (SHAPE, multiplied((1,) * 32, (), stack=1)),
}  # fmt: skip
JACOBIANS: dict[str, tuple[str, dict[str, object]]] = {
    "of too many rows": (ROWS, multiplied((4097,), ())),
    "of very many rows": (ROWS, multiplied(LONG, ())),
    "of rows that are too long": (TOO_LARGE, multiplied((4096,), (4096,))),
    "of many columns times many rows": (ROWS, multiplied((4096, 1), (1, 4096))),
    "of long gradients that nobody asked for": (ROWS, largest((1000, 1000), (), (), differentiate=["b"])),
    "of zeros for an input without a gradient": (
        TOO_LARGE,
        largest((65, 1), (), (1, 2**18), differentiate=["c"], unconnected=ZERO),
    ),
    "of shapes that overflow": (SHAPE, largest(*OVERFLOWING)),
    "of empty inputs whose shapes overflow": (SHAPE, multiplied((2**20, 1, 0), (1, 2**22, 1))),
    "of rank 17 by rank 17": (SHAPE, multiplied((1,) * 17, ())),
}
ANSWERED: dict[str, tuple[str, dict[str, object]]] = {
    "Vjp of a stack of nothing": ("Vjp", multiplied((2**20, 0), (1, 1), stack=4096)),
    "Vjp of as many rows as may be": ("Vjp", multiplied((), (), stack=4096)),
    "Jacobian of a long empty input": ("Jacobian", multiplied((2**20, 0), (1, 1))),
    "Jacobian of an input beside empty rows": ("Jacobian", multiplied((0, 2**20), (2**20,))),
    "Jacobian of nothing by much": ("Jacobian", multiplied((0,), (2**10, 2**10, 1))),
    "Jacobian of as many rows as fit": ("Jacobian", multiplied((2048,), (2048,), unconnected=ZERO)),
    "Jacobian through many more numbers than it has": (
        "Jacobian",
        {"op": "distances", "inputs": ones(x=(1024,), y=(1024,))},
    ),
    "Jacobian of rank 16 by rank 16": ("Jacobian", multiplied((1,) * 16, ())),
}


def answer_of(server: ServerProcess, method: str, request: Message) -> Answer:
    """Sends a request, and checks that it cost little."""
    started = time.monotonic()
    with grpc.insecure_channel(server.target, options=[("grpc.max_receive_message_length", -1)]) as channel:
        answer = send(channel, method, request.SerializeToString())
    assert server.process.poll() is None, server.log()[-2000:]
    assert time.monotonic() - started < MOST_SECONDS
    assert peak_bytes(server) < MOST_BYTES
    return answer


def peak_bytes(server: ServerProcess) -> int:
    """Returns the most memory that a process has held so far."""
    (line,) = (
        line for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


def check_refused(answer: Answer, reason: str) -> None:
    wanted = Code.INVALID_ARGUMENT if reason == SHAPE else Code.RESOURCE_EXHAUSTED
    assert (answer.code, answer.reason) == (wanted, reason), answer.text
    assert answer.text.isprintable()


@pytest.mark.parametrize(("reason", "request_"), REQUESTS.values(), ids=REQUESTS)
def test_stacked_vjp_that_would_cost_much_is_refused(server: ServerProcess, reason: str, request_: dict) -> None:
    check_refused(answer_of(server, "Vjp", pb.VjpRequest(**request_)), reason)


@pytest.mark.parametrize(("reason", "request_"), JACOBIANS.values(), ids=JACOBIANS)
def test_jacobian_that_would_cost_much_is_refused(server: ServerProcess, reason: str, request_: dict) -> None:
    check_refused(answer_of(server, "Jacobian", pb.JacobianRequest(**request_)), reason)


@pytest.mark.parametrize(("method", "request_"), ANSWERED.values(), ids=ANSWERED)
def test_request_of_the_largest_size_is_answered(server: ServerProcess, method: str, request_: dict) -> None:
    message = pb.VjpRequest if method == "Vjp" else pb.JacobianRequest
    answer = answer_of(server, method, message(**request_))
    assert (answer.code, answer.text) == (Code.OK, "")


@pytest.mark.parametrize("method", ["Jvp", "Hvp"])
@pytest.mark.parametrize("name", ["x", "y"])
def test_products_of_empty_inputs_whose_shapes_are_long_are_answered(
    server: ServerProcess, method: str, name: str
) -> None:
    inputs = ones(x=(2**20, 1, 0), y=(1, 2**20, 1))
    vector = [next(tensor for tensor in inputs if tensor.name == name)]
    requests = {
        "Jvp": pb.JvpRequest(op="multiply_with_grad", inputs=inputs, tangents=vector),
        "Hvp": pb.HvpRequest(op="multiply_with_grad", inputs=inputs, vectors=vector),
    }
    assert answer_of(server, method, requests[method]).code is Code.OK


def test_server_answers_other_calls_after_all_of_these(server: ServerProcess) -> None:
    answer = answer_of(server, "Vjp", pb.VjpRequest(**multiplied((3,), (3,), stack=2)))
    assert [len(g.tensor.data) for g in pb.VjpResponse.FromString(answer.response).input_gradients] == [24, 24]
    assert "Traceback" not in server.log()
