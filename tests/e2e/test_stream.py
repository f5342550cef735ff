"""The stream: the same answers and errors as by unary calls, many at once, and what becomes of them if it breaks."""

import asyncio
import concurrent.futures
import contextlib
import gc
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tests.conftest import EXAMPLES

from gradserve import Client, aio
from gradserve.errors import Cancelled, DeadlineExceeded, InvalidRequest, NotFound, Unavailable
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.testing import RunningServer, running_server

SLOW_OPS = Path(__file__).parents[1] / "support" / "ops_slow.py"
OP = "square_with_clipped_grad"
PATH = "/gradserve.v1.GradientService/StreamVjp"


def sleep_of(seconds: float) -> dict[str, np.float64]:
    return {"seconds": np.float64(seconds), "useful_until": np.float64(0)}


@pytest.fixture(params=["blocking", "asyncio"])
def call(request: pytest.FixtureRequest, example_server: RunningServer) -> Iterator[Callable[..., object]]:
    """Returns a function that makes a call by name of the method, over the stream of either client."""
    if request.param == "blocking":
        with example_server.client(transport="stream") as client:
            yield lambda method, *args, **options: getattr(client, method)(*args, **options)
        return
    loop = asyncio.new_event_loop()
    client = aio.Client(example_server.target, transport="stream")
    yield lambda method, *args, **options: loop.run_until_complete(getattr(client, method)(*args, **options))
    loop.run_until_complete(client.close())
    loop.close()


def test_vjp_over_the_stream_is_that_of_a_unary_call(call: Callable, client: Client) -> None:
    x, dy = np.linspace(-3, 3, 8, dtype=np.float32), np.full(8, 0.5, np.float32)
    got, wanted = call("vjp", OP, {"x": x}, {"output": dy}), client.vjp(OP, {"x": x}, {"output": dy})
    np.testing.assert_array_equal(got.output, wanted.output, strict=True)
    np.testing.assert_array_equal(got.gradient, wanted.gradient, strict=True)
    assert set(got.timing) == set(wanted.timing)
    assert got.fingerprint == wanted.fingerprint


def test_each_method_works_with_the_stream(call: Callable) -> None:
    assert call("forward", "square_with_grad", 3.0).output == 9
    assert call("jvp", "square_with_grad", 3.0, 2.0).tangent == 12
    assert call("hvp", "square_with_grad", 3.0, 1.0).product == 2
    assert call("jacobian", "square_with_grad", 3.0).jacobian == 6
    assert call("op", OP).name == OP


def test_a_request_id_comes_back(call: Callable) -> None:
    assert call("forward", "square_with_grad", 3.0, request_id="mine").request_id == "mine"


def test_an_error_over_the_stream_is_that_of_a_unary_call(call: Callable, client: Client) -> None:
    with pytest.raises(InvalidRequest) as wanted:
        client.vjp(OP, {"x": np.ones(3)}, request_id="mine")
    with pytest.raises(InvalidRequest) as got:
        call("vjp", OP, {"x": np.ones(3)}, request_id="mine")
    assert [str(got.value), got.value.reason, got.value.facts, got.value.request_id] == [
        str(wanted.value),
        wanted.value.reason,
        wanted.value.facts,
        "mine",
    ]


def test_a_call_goes_on_after_one_that_failed(call: Callable) -> None:
    with pytest.raises(NotFound):
        call("forward", "no_such_op", {"x": np.float32(1)})
    assert call("forward", "square_with_grad", 3.0).output == 9


def test_a_large_call_is_one_of_its_own(call: Callable) -> None:
    x = np.ones(2**20, np.float32)
    np.testing.assert_array_equal(call("forward", OP, {"x": x}).output, x)


def test_a_deadline_that_passes_is_told(serve: Callable[..., RunningServer]) -> None:
    with serve(SLOW_OPS).client(transport="stream") as client, pytest.raises(DeadlineExceeded):
        client.forward("sleep", sleep_of(5), timeout=0.2)


def test_many_threads_share_one_stream(example_server: RunningServer) -> None:
    with (
        example_server.client(transport="stream") as client,
        concurrent.futures.ThreadPoolExecutor(32) as pool,
    ):
        values = np.arange(640, dtype=np.float32)
        results = list(pool.map(lambda value: client.vjp("square_with_grad", {"x": value}), values))
    np.testing.assert_array_equal([result.output for result in results], values**2)
    np.testing.assert_array_equal([result.gradient for result in results], 2 * values)


def test_many_tasks_share_one_stream_and_its_frames(example_server: RunningServer) -> None:
    async def run() -> list[float]:
        async with aio.Client(example_server.target, transport="stream") as client:
            calls = (client.forward("square_with_grad", {"x": np.float32(value)}) for value in range(500))
            return [float(result.output) for result in await asyncio.gather(*calls)]

    assert asyncio.run(run()) == [float(value) ** 2 for value in range(500)]


def test_a_cancelled_call_takes_no_other_with_it(serve: Callable[..., RunningServer]) -> None:
    async def run() -> float:
        async with aio.Client(serve(SLOW_OPS).target, transport="stream") as client:
            slow = asyncio.ensure_future(client.forward("sleep", sleep_of(0.3)))
            waiting = asyncio.ensure_future(client.forward("sleep", sleep_of(5)))
            await asyncio.sleep(0.1)
            waiting.cancel()
            return float((await slow).output)

    assert asyncio.run(run()) == pytest.approx(0.3)


def test_calls_of_a_client_that_is_closed_are_cancelled(serve: Callable[..., RunningServer]) -> None:
    client = serve(SLOW_OPS).client(transport="stream")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.forward, "sleep", sleep_of(1))
        time.sleep(0.3)
        client.close()
        with pytest.raises(Cancelled):
            call.result()
    assert client.forward("sleep", sleep_of(0)).output == 0
    client.close()


def until_available(function: Callable[[], object]) -> object:
    """Calls until the client has found the server again: gRPC waits a second or more between two tries to connect."""
    for _ in range(100):
        with contextlib.suppress(Unavailable):
            return function()
        time.sleep(0.2)
    return function()


def test_a_client_reconnects_after_the_server_was_away() -> None:
    with running_server(str(EXAMPLES), check_gradients="off") as server:
        port = int(server.target.rsplit(":", 1)[1])
        client = server.client(transport="stream")
        assert client.forward("square_with_grad", 3.0).output == 9
    with pytest.raises(Unavailable):
        client.forward("square_with_grad", {"x": np.float32(3)})
    with running_server(str(EXAMPLES), check_gradients="off", port=port):
        assert until_available(lambda: client.forward("square_with_grad", {"x": np.float32(3)}).output) == 9
        client.close()


def test_a_client_that_is_dropped_leaves_no_thread(example_server: RunningServer) -> None:
    client = example_server.client(transport="stream")
    assert client.forward("square_with_grad", 3.0).output == 9
    reader = client._stream._reader
    assert reader.is_alive()
    del client
    gc.collect()
    reader.join(20)
    assert not reader.is_alive()


@contextlib.contextmanager
def server_of_garbage() -> Iterator[str]:
    """Runs a server whose stream answers each frame with bytes that are none."""

    def garble(frames: Iterator[bytes], _: object) -> Iterator[bytes]:
        for _frame in frames:
            yield b"\xff"

    handler = grpc.stream_stream_rpc_method_handler(garble)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    service = grpc.method_handlers_generic_handler("gradserve.v1.GradientService", {"StreamVjp": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_frames_that_are_none_fail_the_calls_of_a_blocking_client() -> None:
    with server_of_garbage() as target, Client(target, transport="stream") as client:
        for _ in range(2):
            with pytest.raises(Unavailable, match="frame that cannot be parsed") as raised:
                client.forward(OP, {"x": np.float32(3)}, request_id="mine")
            assert raised.value.request_id == "mine"


def test_frames_that_are_none_fail_the_calls_of_an_asyncio_client() -> None:
    async def run(target: str) -> None:
        async with aio.Client(target, transport="stream") as client:
            for _ in range(2):
                with pytest.raises(Unavailable, match="frame that cannot be parsed"):
                    await client.forward(OP, {"x": np.float32(3)})

    with server_of_garbage() as target:
        asyncio.run(run(target))


def test_a_pickled_client_keeps_its_transport(example_server: RunningServer) -> None:
    with pickle.loads(pickle.dumps(example_server.client(transport="stream"))) as client:
        assert client.forward("square_with_grad", 3.0).output == 9
        assert client._stream is not None


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="transport: wanted 'unary' or 'stream', got 'http'"):
        Client("localhost:1", transport="http")


def frames(server: RunningServer, *requests: pb.StreamVjpRequest | bytes) -> Iterator[pb.StreamedAnswer]:
    """Yields the answers of one stream to frames."""
    sent = [frame if isinstance(frame, bytes) else frame.SerializeToString() for frame in requests]
    with grpc.insecure_channel(server.target) as channel:
        for frame in channel.stream_stream(PATH)(iter(sent)):
            yield from pb.StreamVjpResponse.FromString(frame).answers


def test_a_method_that_no_stream_carries_is_refused_in_its_answer(example_server: RunningServer) -> None:
    call = pb.StreamedCall(id=7, method="ListOps")
    (answer,) = frames(example_server, pb.StreamVjpRequest(calls=[call]))
    assert (answer.id, b"UNKNOWN_METHOD" in answer.status) == (7, True)


def test_a_malformed_request_fails_its_own_call_alone(example_server: RunningServer) -> None:
    bad = pb.StreamedCall(id=1, method="Vjp", request=b"\xff")
    good = pb.StreamedCall(id=2, method="Forward", request=pb.ForwardRequest(op="nothing").SerializeToString())
    answers = {answer.id: answer.status for answer in frames(example_server, pb.StreamVjpRequest(calls=[bad, good]))}
    assert b"MALFORMED_MESSAGE" in answers[1]
    assert b"MALFORMED_MESSAGE" not in answers[2]


@pytest.mark.parametrize(
    "frame",
    [b"\xff", pb.StreamVjpRequest(calls=[pb.StreamedCall(id=1), pb.StreamedCall(id=1)]).SerializeToString()],
    ids=["no frame", "an id twice"],
)
def test_a_bad_frame_ends_the_stream(example_server: RunningServer, frame: bytes) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        list(frames(example_server, frame))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
