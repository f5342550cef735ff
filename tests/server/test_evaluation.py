"""Evaluation: every check of a request against its op, and of what comes back, through a real device."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import ANY, INDEX, SCALAR, VECTOR, floats, trace_all

from gradserve.dtypes import dtype_named
from gradserve.errors import GradserveError, InvalidRequest, NotFound, OpContractError
from gradserve.signature import TensorSpec
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.answers import fill_missing
from gradserve_server.evaluation import Evaluator
from gradserve_server.registry import Registry
from gradserve_server.requests import EvaluationRequest
from gradserve_server.responses import Evaluation
from gradserve_server.rows import Limits
from gradserve_server.scheduling.device import Device
from gradserve_server.telemetry import Call, current_call, set_current_call

MATRIX = tf.TensorSpec([2, None], tf.float32)
BAD_RULES = {
    "wrong_shape": tf.custom_gradient(lambda x: (x * 1.0, lambda dy: tf.reshape(dy, [-1])[: tf.size(dy) - 1])),
    "summed": tf.custom_gradient(lambda x: (x * 1.0, lambda dy: tf.reduce_sum(dy, axis=0, keepdims=True))),
}


def scaled(x, scale, unused, i):
    return {"y": x * scale, "n": tf.shape(x) + i, "kept": tf.identity(scale), "u": tf.cast(unused, tf.int32)}


@pytest.fixture(scope="module")
def registry() -> Registry:
    inputs = {"x": MATRIX, "scale": SCALAR, "unused": SCALAR, "i": INDEX}
    ops = [
        *trace_all(scaled, "scaled", inputs=inputs),
        *trace_all(tf.square, "square", inputs={"x": ANY}, dtypes=[tf.float64]),
        *trace_all(tf.shape, "shape", inputs={"input": ANY}),
        *trace_all(lambda x: tf.raw_ops.AdjustHue(images=x, delta=0.5), "hue", inputs={"x": ANY}),
        *trace_all(tf.gather, "take", inputs={"params": VECTOR, "indices": INDEX}),
        *(op for name, rule in BAD_RULES.items() for op in trace_all(rule, name, inputs={"x": ANY})),
    ]
    return Registry(ops)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    device = Device("cpu:0", clock=time.perf_counter)
    yield device
    device.close(10.0)


@pytest.fixture
def evaluator(registry: Registry, device: Device) -> Evaluator:
    return Evaluator(registry, lambda _, *work: device.submit(*work), Limits(max_rows=64, max_response_bytes=2**20))


def request(op: str, inputs: dict[str, np.ndarray], **options: object) -> EvaluationRequest:
    return EvaluationRequest(**{"op": op, "version": 0, "signature": "", "inputs": inputs, **options})


def scaled_inputs(**changed: np.ndarray) -> dict[str, np.ndarray]:
    scale = np.float32(2)[...]
    return {"x": np.ones((2, 3), np.float32), "scale": scale, "unused": scale, "i": np.int32(0)[...], **changed}


async def vjp(evaluator: Evaluator, op: str, inputs: dict[str, np.ndarray], **options: object) -> Evaluation:
    set_current_call(Call(method="Vjp", request_id="id", clock=time.perf_counter, started_at=0.0))
    return await evaluator.vjp(request(op, inputs, **options))


def test_fill_missing_with_nothing_given_is_ones_and_otherwise_zeros() -> None:
    specs = {
        name: TensorSpec(name=name, dtype=dtype_named(dtype), shape=None, differentiable=dtype != "int32")
        for name, dtype in (("a", "float32"), ("n", "int32"), ("b", "complex64"))
    }
    given = floats(7, 7)
    ones = fill_missing([None, None], specs)
    assert [(array.item(), array.shape, array.dtype) for array in ones] == [(1, (), np.float32), (1, (), np.complex64)]
    filled = fill_missing([given, None], specs)
    assert filled[0] is given
    assert (filled[1].item(), filled[1].dtype) == (0, np.complex64)


async def test_vjp_gives_each_input_its_status(evaluator: Evaluator) -> None:
    result = await vjp(evaluator, "scaled", scaled_inputs())
    assert {name: g.status for name, g in result.input_gradients.items()} == {
        "x": pb.GRADIENT_STATUS_DENSE,
        "scale": pb.GRADIENT_STATUS_DENSE,
        "unused": pb.GRADIENT_STATUS_UNCONNECTED,
        "i": pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE,
    }
    assert result.input_gradients["x"].array.tolist() == [[2.0] * 3] * 2
    assert result.input_gradients["scale"].array == 6.0 + 1.0


async def test_vjp_with_one_output_gradient_counts_the_others_as_zeros(evaluator: Evaluator) -> None:
    result = await vjp(evaluator, "scaled", scaled_inputs(), output_gradients={"kept": np.float32(5)[...]})
    assert result.input_gradients["scale"].array == 5.0
    assert not result.input_gradients["x"].array.any()


async def test_vjp_with_zeros_asked_for_fills_unconnected_inputs_alone(evaluator: Evaluator) -> None:
    gradients = (await vjp(evaluator, "scaled", scaled_inputs(), zero_unconnected=True)).input_gradients
    np.testing.assert_array_equal(gradients["unused"].array, np.float32(0)[...], strict=True)
    assert gradients["unused"].status == pb.GRADIENT_STATUS_DENSE
    assert (gradients["i"].status, gradients["i"].array) == (pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE, None)


async def test_vjp_with_differentiate_returns_those_in_the_signature_s_order(evaluator: Evaluator) -> None:
    result = await vjp(evaluator, "scaled", scaled_inputs(), differentiate=["i", "x"])
    assert list(result.input_gradients) == ["x", "i"]


async def test_vjp_fills_in_op_version_and_stages_of_the_call(evaluator: Evaluator) -> None:
    await vjp(evaluator, "square", {"x": floats(3)})
    call = current_call()
    assert (call.op, call.version, set(call.stages)) == ("square", 1, {"queue", "compute"})
    assert all(seconds > 0 for seconds in call.stages.values())


async def test_vjp_of_inputs_of_a_further_dtype_takes_its_signature(evaluator: Evaluator) -> None:
    result = await vjp(evaluator, "square", {"x": np.array([3.0])})
    np.testing.assert_array_equal(result.input_gradients["x"].array, np.array([6.0]), strict=True)


@pytest.mark.parametrize(
    ("op", "inputs", "options", "error_class", "reason"),
    [
        ("nope", {}, {}, NotFound, "NO_SUCH_OP"),
        ("square", {"x": floats(1)}, {"version": 9}, NotFound, "NO_SUCH_VERSION"),
        ("square", {"x": floats(1)}, {"signature": "half"}, NotFound, "NO_SUCH_SIGNATURE"),
        ("square", {}, {}, InvalidRequest, "BAD_INPUT_NAMES"),
        ("square", {"x": floats(1), "y": floats(1)}, {}, InvalidRequest, "BAD_INPUT_NAMES"),
        ("square", {"x": np.array([1])}, {}, InvalidRequest, "DTYPE_MISMATCH"),
        ("square", {"x": floats(1)}, {"signature": "float64"}, InvalidRequest, "DTYPE_MISMATCH"),
        ("scaled", scaled_inputs(x=np.ones((3, 2), np.float32)), {}, InvalidRequest, "SHAPE_MISMATCH"),
        ("scaled", scaled_inputs(x=floats(1, 2)), {}, InvalidRequest, "SHAPE_MISMATCH"),
        ("square", {"x": floats(1)}, {"differentiate": ["z"]}, InvalidRequest, "BAD_DIFFERENTIATE_NAMES"),
        ("square", {"x": floats(1)}, {"differentiate": ["x", "x"]}, InvalidRequest, "BAD_DIFFERENTIATE_NAMES"),
        ("take", {"params": floats(1), "indices": np.int32(5)[...]}, {}, InvalidRequest, "VALUES_REFUSED"),
        ("shape", {"input": floats(1)}, {}, OpContractError, "NOT_DIFFERENTIABLE"),
        ("hue", {"x": np.ones((1, 1, 3), np.float32)}, {}, OpContractError, "NO_GRADIENT_RULE"),
        ("wrong_shape", {"x": np.ones((2, 3), np.float32)}, {}, OpContractError, "GRADIENT_SHAPE_MISMATCH"),
        ("summed", {"x": np.ones((2, 3), np.float32)}, {}, OpContractError, "GRADIENT_SHAPE_MISMATCH"),
    ],
)
async def test_vjp_of_a_wrong_request_or_op_is_refused(evaluator, op, inputs, options, error_class, reason) -> None:
    with pytest.raises(GradserveError) as raised:
        await vjp(evaluator, op, inputs, **options)
    assert (type(raised.value), raised.value.reason) == (error_class, reason)
    assert op in str(raised.value)


@pytest.mark.parametrize(
    ("op", "inputs", "gradients", "reason"),
    [
        ("square", {"x": floats(1, 2)}, {"z": floats(1)}, "BAD_OUTPUT_GRADIENT_NAMES"),
        ("square", {"x": floats(1, 2)}, {"output": np.ones(2)}, "DTYPE_MISMATCH"),
        ("square", {"x": floats(1, 2)}, {"output": floats(1)}, "SHAPE_MISMATCH"),
        ("square", {"x": floats(1, 2)}, {"output": np.float32(1)[...]}, "SHAPE_MISMATCH"),
        ("square", {"x": floats(1, 2)}, {"output": np.ones((1, 2), np.float32)}, "SHAPE_MISMATCH"),
        ("square", {"x": floats(1, 2)}, {"output": floats(1, 2, 3)}, "SHAPE_MISMATCH"),
        ("scaled", scaled_inputs(), {"y": np.ones((3, 3), np.float32)}, "SHAPE_MISMATCH"),
        ("scaled", scaled_inputs(), {"y": np.ones((2, 4), np.float32)}, "SHAPE_MISMATCH"),
        ("scaled", scaled_inputs(), {"n": np.ones(2, np.int32)}, "NOT_DIFFERENTIABLE"),
    ],
)
async def test_vjp_of_a_wrong_output_gradient_is_refused(evaluator, op, inputs, gradients, reason) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await vjp(evaluator, op, inputs, output_gradients=gradients)
    assert raised.value.reason == reason
    assert repr(next(iter(gradients))) in str(raised.value)


async def test_vjp_of_a_rule_that_breaks_its_contract_names_op_input_wanted_and_got(evaluator: Evaluator) -> None:
    with pytest.raises(OpContractError, match="the fault is in the op") as raised:
        await vjp(evaluator, "summed", {"x": np.ones((2, 3), np.float32)})
    assert raised.value.facts == {"op": "summed", "input": "x", "wanted": "(2, 3)", "got": "(1, 3)"}


@pytest.mark.parametrize("op", ["shape", "hue"])
async def test_forward_of_an_op_without_backward_answers(evaluator: Evaluator, op: str) -> None:
    set_current_call(Call(method="Forward", request_id="id", clock=time.perf_counter, started_at=0.0))
    name = "input" if op == "shape" else "x"
    result = await evaluator.forward(request(op, {name: np.ones((1, 1, 3), np.float32)}))
    assert list(result.outputs) == ["output"]


async def test_forward_checks_inputs_too(evaluator: Evaluator) -> None:
    set_current_call(Call(method="Forward", request_id="id", clock=time.perf_counter, started_at=0.0))
    with pytest.raises(InvalidRequest, match="missing 'x'"):
        await evaluator.forward(request("square", {}))
