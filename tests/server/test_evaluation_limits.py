"""Evaluation: how much a call may ask for, and the seed that it may bring."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.derivative_ops import identity_by, python
from tests.server.evaluators import call, evaluator_of
from tests.server.helpers import ANY, VECTOR, floats, trace_all

from gradserve.errors import GradserveError, InvalidRequest, ResourceExhausted
from gradserve_server.evaluation import Evaluator
from gradserve_server.scheduling.device import Device

X = floats(1, 2, 3)
LONG = np.ones(65, np.float32)
WIDE = np.ones(64, np.float32), np.ones((64, 1), np.float32)
SEEDS = {
    "pair": tf.TensorSpec([2], tf.int32),
    "wide_pair": tf.TensorSpec([2], tf.int64),
    "number": tf.TensorSpec([], tf.int32),
    "wide_number": tf.TensorSpec([], tf.int64),
    "unsigned_number": tf.TensorSpec([], tf.uint32),
    "triple": tf.TensorSpec([3], tf.int32),
    "float": tf.TensorSpec([], tf.float32),
}


@pytest.fixture(scope="module")
def evaluator(device: Device) -> Evaluator:
    return evaluator_of(
        [
            *trace_all(tf.square, "square", inputs={"x": ANY}),
            *trace_all(lambda x, y: x * y, "multiply", inputs={"x": ANY, "y": ANY}),
            *trace_all(identity_by(python(np.square)), "squared_by_python", inputs={"x": VECTOR}),
            *(
                op
                for name, spec in SEEDS.items()
                for op in trace_all(lambda x, seed: (x, seed), name, inputs={"x": VECTOR, "seed": spec})
            ),
        ],
        device,
    )


@pytest.mark.parametrize(
    ("method", "op", "inputs", "options", "reason"),
    [
        ("vjp", "square", {"x": X}, {"stack": 65}, "TOO_MANY_ROWS"),
        ("vjp", "square", {"x": X}, {"stack": 2**32 - 1}, "TOO_MANY_ROWS"),
        ("vjp", "square", {"x": np.ones(128, np.float32)}, {"stack": 33}, "RESPONSE_TOO_LARGE"),
        ("vjp", "multiply", {"x": X[:1], "y": np.ones(300, np.float32)}, {"stack": 64, "differentiate": ["x"]}, "TOO_MANY_ROWS"),
        ("vjp", "multiply", {"x": WIDE[0], "y": WIDE[1]}, {"stack": 64, "differentiate": ["x"]}, "TOO_MANY_ROWS"),
        ("jacobian", "square", {"x": LONG}, {}, "TOO_MANY_ROWS"),
        ("jacobian", "square", {"x": np.ones((13, 5), np.float32)}, {}, "TOO_MANY_ROWS"),
        ("jacobian", "multiply", {"x": LONG[:64], "y": LONG[:64]}, {}, "RESPONSE_TOO_LARGE"),
    ],
)  # fmt: skip
async def test_more_than_a_call_may_ask_for_is_refused(evaluator, method, op, inputs, options, reason) -> None:
    with pytest.raises(ResourceExhausted) as raised:
        await call(evaluator, method, op, inputs, **options)
    assert raised.value.reason == reason


async def test_stack_of_too_much_is_refused_before_anything_is_computed(evaluator: Evaluator) -> None:
    no_way_to_the_device = Evaluator(evaluator._registry, None, evaluator._limits)
    for x, stack in ((X, 65), (X, 2**32 - 1), (np.ones(128, np.float32), 33)):
        with pytest.raises(ResourceExhausted):
            await call(no_way_to_the_device, "vjp", "square", {"x": x}, stack=stack)


async def test_jacobian_of_as_many_rows_as_may_be_is_computed(evaluator: Evaluator) -> None:
    x = np.arange(64, dtype=np.float32)
    result = await call(evaluator, "jacobian", "square", {"x": x})
    np.testing.assert_array_equal(result.jacobians["output", "x"].array, np.diag(2 * x))


@pytest.mark.parametrize("method", ["vjp", "jacobian"])
@pytest.mark.parametrize("op", ["square", "squared_by_python"])
async def test_products_of_an_empty_output_are_empty(evaluator: Evaluator, method: str, op: str) -> None:
    result = await call(evaluator, method, op, {"x": X[:0]}, stack=2 * (method == "vjp"))
    found = result.jacobians["output", "x"] if method == "jacobian" else result.input_gradients["x"]
    assert found.array.shape == ((0, 0) if method == "jacobian" else (2, 0))


@pytest.mark.parametrize("method", ["forward", "vjp", "jvp", "hvp", "jacobian"])
@pytest.mark.parametrize(
    ("op", "inputs", "seed", "reason"),
    [
        ("square", {"x": X}, 5, "NO_SEED_INPUT"),
        ("triple", {"x": X}, 5, "NO_SEED_INPUT"),
        ("float", {"x": X}, 5, "NO_SEED_INPUT"),
        ("pair", {"x": X}, None, "BAD_INPUT_NAMES"),
        ("pair", {"x": X, "seed": np.int32([1, 2])}, 5, "BAD_INPUT_NAMES"),
        ("number", {"x": X}, 2**31, "BAD_SEED"),
        ("number", {"x": X}, -(2**31) - 1, "BAD_SEED"),
        ("unsigned_number", {"x": X}, -1, "BAD_SEED"),
    ],
)
async def test_seeds_that_do_not_fit_are_refused_by_every_method(evaluator, method, op, inputs, seed, reason) -> None:
    with pytest.raises(GradserveError) as raised:
        await call(evaluator, method, op, inputs, seed=seed, vectors={"x": X})
    assert (type(raised.value), raised.value.reason) == (InvalidRequest, reason)


@pytest.mark.parametrize(
    ("op", "seed", "wanted"),
    [
        ("pair", 7, [7, 0]),
        ("pair", -1, [-1, -1]),
        ("pair", 2**63 - 1, [-1, 2**31 - 1]),
        ("wide_pair", -(2**63), [-(2**63), 0]),
        ("wide_number", 2**63 - 1, 2**63 - 1),
        ("number", -(2**31), -(2**31)),
    ],
)
async def test_seed_of_a_request_is_the_input_of_that_name(evaluator: Evaluator, op: str, seed: int, wanted) -> None:
    for method in ("forward", "vjp", "jvp", "hvp", "jacobian"):
        outputs = (await call(evaluator, method, op, {"x": X}, seed=seed, vectors={"x": X})).outputs
        assert outputs["output_1"].tolist() == wanted
