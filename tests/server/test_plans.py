"""Plans: what is answered by one is what the long way answers, byte for byte, and only what is usual is planned."""

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.server.evaluators import evaluator_of
from tests.server.helpers import ANY, floats, trace_one
from tests.server.joinable_ops import OPS, probe

from gradserve import messages
from gradserve.errors import InvalidRequest
from gradserve.tensors import Array
from gradserve_server import plans as plans_module
from gradserve_server.checking.checker import Checker
from gradserve_server.evaluation import Evaluator
from gradserve_server.ops import Op
from gradserve_server.plans import Plans
from gradserve_server.registry import Registry
from gradserve_server.scheduling.device import Device
from gradserve_server.service import GradientService, Parts
from gradserve_server.telemetry import Call, set_current_call

METHODS = {"Forward": messages.forward_request, "Vjp": messages.vjp_request}


class NoPlans(Plans):
    """Has none and wants none."""

    def wants(self, method: str, data: bytes) -> bool:
        return False


def service_of(ops: Mapping[str, Op], device: Device, plans: Plans) -> GradientService:
    service = GradientService(2**22)
    service.parts = Parts(
        registry=Registry(ops.values()),
        evaluator=evaluator_of(ops.values(), device),
        checker=Checker(lambda _, *work: device.submit(*work)),
        plans=plans,
    )
    return service


async def answer(service: GradientService, method: str, data: bytes) -> bytes:
    set_current_call(Call(method=method, request_id="id", clock=time.perf_counter, started_at=0.0))
    return await {"Forward": service.forward, "Vjp": service.vjp}[method](data)


def request(
    method: str, op: str, inputs: Mapping[str, Any], given: Mapping[str, Any] | None = None, **options: Any
) -> bytes:
    call = messages.OpCall(op=op, inputs=inputs, output_gradients=given if method == "Vjp" else None, **options)
    return METHODS[method](call, None).SerializeToString()


def draw(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Array]:
    numbers = np.random.default_rng(seed)
    return {name: np.asarray(np.exp(numbers.standard_normal(shape)), np.float32) for name, shape in shapes.items()}


OTHERS = {
    "either": probe(
        lambda x, chosen: tf.where(chosen, x, -x),
        "either",
        inputs={"x": ANY, "chosen": tf.TensorSpec(None, tf.bool)},
        elementwise=True,
    ),
    "alone": dataclasses.replace(trace_one(lambda x: x * x, inputs={"x": ANY}), name="alone"),
    "half": probe(lambda x, y: x + tf.stop_gradient(y), "half", inputs={"x": ANY, "y": ANY}, elementwise=True),
}

Shapes = dict[str, tuple[int, ...]]
KINDS: dict[str, tuple[str, Shapes, Shapes]] = {
    "flat": ("flat", {"x": (2, 3)}, {"output": (2, 3)}),
    "product": ("product", {"x": (4,), "y": (4,)}, {"output": (4,)}),
    "rows": ("rows", {"x": (2, 3)}, {"output": (2, 3)}),
    "columns": ("columns", {"x": (3, 2)}, {"output": (3, 2)}),
    "shared": ("shared", {"x": (2, 3), "weight": ()}, {"scaled": (2, 3), "total": (2,)}),
    "positive": ("positive", {"x": ()}, {"output": ()}),
    "half": ("half", {"x": (2,), "y": (2,)}, {"output": (2,)}),
    "large": ("flat", {"x": (150, 151)}, {"output": (150, 151)}),
    "large together": ("product", {"x": (100, 99), "y": (100, 99)}, {"output": (100, 99)}),
    "large rows": ("shared", {"x": (8000, 3), "weight": ()}, {"scaled": (8000, 3), "total": (8000,)}),
}
"""Op, shapes of its inputs and of its output gradients."""


@pytest.mark.parametrize("given", ["none", "all", "one"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_request_that_differs_in_elements_alone_is_answered_as_the_long_way_does(kind, method, given, device) -> None:
    name, inputs, outputs = KINDS[kind]
    chosen = {"none": {}, "all": outputs, "one": dict([*outputs.items()][:1])}[given]
    options = {"differentiate": ["x"]} if method == "Vjp" else {}
    first, second, third = [
        request(method, name, draw(inputs, seed), draw(chosen, seed) or None, **options) for seed in range(3)
    ]
    service, long_way = (service_of({**OPS, **OTHERS}, device, plans) for plans in (Plans(), NoPlans()))

    async def run() -> None:
        for data in (first, second):
            await answer(service, method, data)
        assert service.parts.plans.find(method, third) is not None
        assert await answer(service, method, third) == await answer(long_way, method, third)

    asyncio.run(run())


def is_planned(service: GradientService, method: str, *requests: bytes) -> bool:
    """Whether requests of one skeleton are answered by a plan once these were answered."""

    async def run() -> bool:
        for data in requests:
            await answer(service, method, data)
        return service.parts.plans.find(method, requests[-1]) is not None

    return asyncio.run(run())


VECTOR = {"x": floats(1, 2, 3)}
UNUSUAL = {
    "a stack": ("flat", VECTOR, {"output": np.ones((2, 3), np.float32)}, {"stacked": True}),
    "zeros for none": ("flat", VECTOR, None, {"unconnected": "zero"}),
    "an empty input": ("flat", {"x": floats()}, None, {}),
    "other shapes": ("product", {"x": floats(1, 2, 3), "y": floats(1)}, None, {}),
    "a gradient of what is shared": ("shared", {"x": np.ones((2, 3), np.float32), "weight": np.float32(2)}, None, {}),
    "bools": ("either", {"x": floats(1, 2), "chosen": np.array([True, False])}, None, {}),
    "a claim of nothing": ("alone", VECTOR, None, {}),
}
"""Op, inputs, output gradients, options."""


@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_unusual_about_a_request_goes_the_long_way(kind: str, device: Device) -> None:
    name, inputs, given, options = UNUSUAL[kind]
    data = request("Vjp", name, inputs, given, **options)
    assert not is_planned(service_of({**OPS, **OTHERS}, device, Plans()), "Vjp", data, data, data)


def test_request_is_planned_once_another_of_its_length_was_answered(device: Device) -> None:
    service = service_of(OPS, device, Plans())
    data = request("Vjp", "flat", VECTOR)
    assert not is_planned(service, "Vjp", data)
    assert is_planned(service, "Vjp", data)
    assert service.parts.plans.find("Forward", data) is None


def test_values_that_a_kernel_refuses_get_the_same_error_by_a_plan(device: Device) -> None:
    service, long_way = (service_of(OPS, device, plans) for plans in (Plans(), NoPlans()))
    good, bad = (request("Vjp", "positive", {"x": floats(sign, 2)}) for sign in (1, -1))
    assert is_planned(service, "Vjp", good, good)
    errors = []
    for each in (service, long_way):
        with pytest.raises(InvalidRequest) as raised:
            asyncio.run(answer(each, "Vjp", bad))
        errors.append((str(raised.value), raised.value.reason, raised.value.facts))
    assert errors[0] == errors[1]


def test_results_of_other_shapes_than_were_checked_go_the_long_way(device: Device) -> None:
    service = service_of(OPS, device, Plans())
    data = request("Vjp", "flat", VECTOR)
    assert is_planned(service, "Vjp", data, data)
    plan = service.parts.plans.find("Vjp", data)
    assert plan.encode(([floats(1, 2, 3)], [floats(4, 5, 6)])) is not None
    assert plan.encode(([floats(1, 2, 3)], [floats(4, 5)])) is None
    assert plan.encode(([floats(1, 2, 3)], [np.arange(3.0)])) is None


def test_share_by_a_plan_is_joined_with_none_that_shares_other_values(device: Device) -> None:
    service = service_of(OPS, device, Plans())
    x = np.ones((2, 3), np.float32)
    requests = [request("Forward", "shared", {"x": x, "weight": np.float32(weight)}) for weight in (2, 2, 3)]
    assert is_planned(service, "Forward", *requests[:2])
    plan = service.parts.plans.find("Forward", requests[2])
    same, again, other = (plan.share(data) for data in requests)
    assert same.key == again.key != other.key


def test_plan_keeps_no_tensor_of_a_request(device: Device) -> None:
    service = service_of(OPS, device, Plans())
    data = request("Vjp", "flat", {"x": np.ones(999, np.float32)}, {"output": np.ones(999, np.float32)})
    assert is_planned(service, "Vjp", data, data)
    plan = service.parts.plans.find("Vjp", data)
    kept = [tensor.source for tensor in (*plan.inputs, *plan.output_gradients)]
    assert [type(source) for source in kept] == [slice, slice]
    assert (plan.blank.inputs, plan.blank.output_gradients) == ((), ())
    assert sum(map(len, plan.around)) < 500


def test_number_of_plans_is_bounded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans_module, "_MOST_PLANS", 3)
    service = service_of(OPS, device, Plans())
    shapes = [request("Vjp", "flat", {"x": np.ones(size, np.float32)}) for size in range(1, 6)]
    for data in shapes:
        assert is_planned(service, "Vjp", data, data)
    planned = [service.parts.plans.find("Vjp", data) is not None for data in shapes]
    assert planned == [False, False, False, True, True]


def test_length_of_which_no_plan_can_be_made_is_not_tried_for_ever(device: Device, monkeypatch) -> None:
    service = service_of(OTHERS, device, Plans())
    data = request("Vjp", "alone", VECTOR)
    tries = []
    monkeypatch.setattr(Evaluator, "answered", lambda *_: tries.append(1))
    is_planned(service, "Vjp", *[data] * 30)
    assert len(tries) == plans_module._MOST_FAILURES


def test_large_requests_are_joined_with_none(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, submit = [], device.submit
    monkeypatch.setattr(device, "submit", lambda function, load: loads.append(load) or submit(function, load))
    service = service_of(OPS, device, Plans())
    small, large = (request("Vjp", "flat", {"x": np.ones(size, np.float32)}) for size in (100, 20_000))
    for data in (small, large):
        assert is_planned(service, "Vjp", data, data, data)
    assert [load.share is None for load in loads] == [False] * 3 + [True] * 3
    assert [service.parts.plans.find("Vjp", data).is_contiguous for data in (small, large)] == [True, False]


def test_long_skeletons_are_not_planned(device: Device) -> None:
    long = "flat" * 2000
    renamed = {long: dataclasses.replace(OPS["flat"], name=long)}
    data = request("Vjp", long, VECTOR)
    assert not is_planned(service_of(renamed, device, Plans()), "Vjp", data, data)


def test_call_by_a_plan_is_told_by_op_version_and_stages(device: Device) -> None:
    service = service_of(OPS, device, Plans())
    data = request("Vjp", "flat", VECTOR)
    assert is_planned(service, "Vjp", data, data)
    this = Call(method="Vjp", request_id="id", clock=time.perf_counter, started_at=0.0)

    async def run() -> None:
        set_current_call(this)
        await service.vjp(data)

    asyncio.run(run())
    assert (this.op, this.version) == ("flat", 1)
    assert [*this.stages] == ["decode", "queue", "compute", "encode"]
