"""The asyncio client: the same surface as the blocking one, against a server in a process of its own."""

import asyncio
import inspect
import pickle
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.processes import server_process

import gradserve
from gradserve import aio, errors

OPS = Path(__file__).with_name("ops_slow.py")
PRODUCTS = Path(__file__).with_name("ops_products.py")
EXAMPLES = Path(__file__).parents[2] / "examples" / "ops.py"
X = np.array([1.0, -2.0, 3.0], np.float32)
PUBLIC = [name for name, _ in inspect.getmembers(gradserve.Client, inspect.isfunction) if not name.startswith("_")]


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    # Two event loops of grpc.aio in one process, the server's and the client's, disturb each other's polling.
    with server_process(EXAMPLES, OPS, PRODUCTS) as server:
        yield server.target


@pytest.fixture
async def client(target: str) -> AsyncIterator[aio.Client]:
    async with aio.Client(target) as client:
        yield client


def test_aio_client_has_the_public_methods_of_the_blocking_one() -> None:
    twins = [name for name, _ in inspect.getmembers(aio.Client, inspect.isfunction) if not name.startswith("_")]
    assert twins == PUBLIC
    assert {"close", "forward", "health", "hvp", "jacobian", "jvp", "op", "ops", "vjp"} <= set(PUBLIC)


@pytest.mark.parametrize("name", [*PUBLIC, "__init__"])
def test_aio_method_has_the_parameters_of_the_blocking_one(name: str) -> None:
    blocking, twin = (inspect.signature(getattr(client, name)) for client in (gradserve.Client, aio.Client))
    assert twin.parameters == blocking.parameters
    assert twin.return_annotation == blocking.return_annotation
    assert inspect.iscoroutinefunction(getattr(aio.Client, name)) is (name != "__init__")


async def test_aio_ops_op_and_health_tell_what_the_server_hosts(client: aio.Client) -> None:
    infos = {info.name: info for info in await client.ops()}
    assert infos["square_with_grad"] == await client.op("square_with_grad", version=1)
    assert await client.health() == "SERVING"


@pytest.mark.parametrize("inputs", [X, [X], {"x": X}, {"x": X.tolist()}], ids=["bare", "list", "mapping", "numbers"])
async def test_aio_forward_every_form_of_inputs_gives_the_same(client: aio.Client, inputs: object) -> None:
    result = await client.forward("square_with_grad", inputs, request_id="mine")
    np.testing.assert_array_equal(result.output, X * X, strict=True)
    assert result.request_id == "mine"
    assert list(result.timing) == ["decode", "queue", "compute", "encode"]


async def test_aio_vjp_with_every_option_returns_outputs_and_gradients(client: aio.Client) -> None:
    inputs = {"x": X, "unused": X, "index": 4}
    options = {"differentiate": ["x", "unused"], "unconnected": "zero", "version": 1, "signature": "serving_default"}
    result = await client.vjp("split", inputs, {"triple": X}, **options, timeout=10.0)
    np.testing.assert_array_equal(result.input_gradients["x"], 3.0 * X)
    np.testing.assert_array_equal(result.input_gradients["unused"], np.zeros_like(X))
    assert result.status == {"x": "dense", "unused": "dense"}
    assert result.outputs["index"] == 5


async def test_aio_jvp_and_hvp_with_every_option_return_what_the_blocking_ones_do(client: aio.Client) -> None:
    inputs = {"x": X, "scale": 2.0, "unused": X, "n": 4}
    options = {
        "unconnected": "zero",
        "version": 1,
        "signature": "serving_default",
        "timeout": 10.0,
        "request_id": "mine",
    }
    pushed = await client.jvp("scaled", inputs, {"scale": 10.0}, **options)
    np.testing.assert_array_equal(pushed.output_tangents["y"], 10 * X * X)
    assert pushed.status == {"y": "dense", "n": "not_differentiable", "total": "dense"}
    product = await client.hvp("scaled", inputs, {"x": X}, {"y": X}, **options)
    np.testing.assert_array_equal(product.products["x"], 4 * X * X)
    assert (pushed.request_id, product.request_id) == ("mine", "mine")


async def test_aio_jacobian_and_stacked_vjp_agree(client: aio.Client) -> None:
    jacobian = (await client.jacobian("cube", X, differentiate=["x"])).jacobian
    stacked = await client.vjp("cube", X, np.eye(3, dtype=np.float32), stacked=True)
    np.testing.assert_array_equal(jacobian, stacked.gradient)
    np.testing.assert_allclose(jacobian, np.diag(3 * X * X), rtol=1e-6)


async def test_aio_seed_gives_every_call_the_same_mask(client: aio.Client) -> None:
    x, rate = np.ones(100, np.float32), np.float32(0.5)
    forward = await client.forward("dropped", [x, rate], seed=7)
    for gradient in (
        (await client.vjp("dropped", [x, rate], x, seed=7)).input_gradients["x"],
        (await client.jvp("dropped", [x, rate], [x, None], seed=7)).tangent,
        np.diag((await client.jacobian("dropped", [x, rate], seed=7)).jacobians["output"]["x"]),
    ):
        np.testing.assert_array_equal(gradient, forward.output)


@pytest.mark.parametrize(
    ("send", "error_class", "reason"),
    [
        (lambda c: c.jvp("signed", X, X, request_id="test-17"), errors.OpContractError, "NOT_LINEAR_IN_DY"),
        (lambda c: c.hvp("squared_by_python", X, X, request_id="test-17"), errors.Unsupported, "NO_SECOND_RULE"),
        (lambda c: c.jacobian("cube", X, seed=5, request_id="test-17"), errors.InvalidRequest, "NO_SEED_INPUT"),
    ],
)
async def test_aio_product_that_is_refused_raises_with_reason_and_request_id(client, send, error_class, reason) -> None:
    with pytest.raises(error_class) as caught:
        await send(client)
    assert (caught.value.reason, caught.value.request_id) == (reason, "test-17")


async def test_aio_results_arrays_can_be_written_to(client: aio.Client) -> None:
    result = await client.vjp("square_with_grad", X)
    result.output[...] = 0.0
    result.gradient[...] = 0.0
    assert not result.output.any()
    assert not result.gradient.any()


@pytest.mark.parametrize(
    ("op", "inputs", "error_class"),
    [
        ("nope", {"x": X}, errors.NotFound),
        ("nope", 3.0, errors.NotFound),
        ("square_with_grad", {"y": X}, errors.InvalidRequest),
    ],
)
async def test_aio_error_has_class_reason_and_the_request_id_given(
    client: aio.Client, op: str, inputs: object, error_class: type[errors.GradserveError]
) -> None:
    with pytest.raises(error_class) as caught:
        await client.vjp(op, inputs, request_id="test-17")
    assert caught.value.request_id == "test-17"
    assert caught.value.reason in ("NO_SUCH_OP", "BAD_INPUT_NAMES")


async def test_aio_call_past_its_deadline_raises_deadline_exceeded(client: aio.Client) -> None:
    with pytest.raises(errors.DeadlineExceeded) as caught:
        await client.vjp("sleep", {"seconds": np.float32(0.6)}, timeout=0.1, request_id="late")
    assert caught.value.request_id == "late"
    assert (await client.vjp("sleep", {"seconds": np.float32(0)})).gradient == 1.0


async def test_aio_unreachable_server_raises_unavailable() -> None:
    async with aio.Client("127.0.0.1:1", timeout=5.0) as client:
        with pytest.raises(errors.Unavailable) as caught:
            await client.forward("square_with_grad", X, request_id="lost")
    assert caught.value.request_id == "lost"


async def test_aio_calls_under_way_together_each_get_their_own_answer(client: aio.Client) -> None:
    results = await asyncio.gather(*(client.vjp("square_with_grad", float(value)) for value in range(100)))
    assert [result.gradient for result in results] == [2.0 * value for value in range(100)]


async def test_aio_close_then_call_connects_anew(client: aio.Client) -> None:
    for _ in range(3):
        assert (await client.vjp("square_with_grad", 3.0)).gradient == 6.0
        await client.close()
    await client.close()


async def test_aio_close_fails_calls_under_way_with_cancelled(client: aio.Client) -> None:
    call = asyncio.ensure_future(client.forward("sleep", {"seconds": np.float32(0.6)}, request_id="cut"))
    await asyncio.sleep(0.2)
    await client.close()
    with pytest.raises(errors.Cancelled) as caught:
        await call
    assert caught.value.request_id == "cut"


async def test_aio_cancelled_task_raises_what_asyncio_raises(client: aio.Client) -> None:
    call = asyncio.ensure_future(client.forward("sleep", {"seconds": np.float32(0.3)}))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert call.cancelled()


async def test_aio_pickled_client_connects_anew(client: aio.Client) -> None:
    await client.vjp("square_with_grad", 3.0)
    async with pickle.loads(pickle.dumps(client)) as copy:
        assert (await copy.vjp("square_with_grad", 3.0)).gradient == 6.0


def test_aio_client_used_in_a_second_event_loop_connects_anew(target: str) -> None:
    client = aio.Client(target)

    async def call_once(*, close: bool) -> float:
        result = await client.vjp("square_with_grad", 3.0)
        if close:
            await client.close()
        return float(result.gradient)

    assert asyncio.run(call_once(close=True)) == 6.0
    assert asyncio.run(call_once(close=False)) == 6.0
    assert asyncio.run(call_once(close=True)) == 6.0
