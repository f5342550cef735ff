"""The pure layer: requests that are built, responses that are read, and the results that come of them."""

import dataclasses

import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from gradserve import messages, methods
from gradserve.dtypes import dtype_named
from gradserve.errors import InvalidRequest
from gradserve.messages import OpCall, forward_request, vjp_request
from gradserve.methods import forward_result, parse_timing, vjp_result
from gradserve.op_info import OpInfo, op_info_to_message
from gradserve.signature import Signature, TensorSpec
from gradserve.tensors import decode, encode
from gradserve.v1 import gradient_service_pb2 as pb

X, DY = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
EVALUATIONS = [methods.FORWARD, methods.VJP, methods.JVP, methods.HVP, methods.JACOBIAN]
VECTORS = [(messages.jvp_request, "tangents"), (messages.hvp_request, "vectors")]
TRAILER = {"x-request-id": "id-1", "gradserve-timing": "decode;dur=0.052, compute;dur=0.420"}


def info() -> OpInfo:
    def spec(name: str) -> TensorSpec:
        return TensorSpec(name=name, dtype=dtype_named("float32"), shape=None, differentiable=True)

    return OpInfo(
        name="op",
        version=2,
        documentation="",
        signatures={"serving_default": Signature(key="", inputs={"x": spec("x")}, outputs={"output": spec("output")})},
        gradient="exact",
        elementwise=True,
        stateful=False,
        device="cpu:0",
        fingerprint="f",
    )


def call(**fields: object) -> OpCall:
    return OpCall(**{"op": "op", "inputs": {"x": X}, **fields})


def test_method_path_is_that_of_the_wire() -> None:
    assert methods.VJP.path == "/gradserve.v1.GradientService/Vjp"
    assert methods.HEALTH_CHECK.path == "/grpc.health.v1.Health/Check"


@pytest.mark.parametrize("method", [*EVALUATIONS, methods.LIST_OPS, methods.GET_OP, methods.CHECK_GRADIENT])
def test_method_response_type_is_that_of_the_service(method: methods.Method) -> None:
    described = pb.DESCRIPTOR.services_by_name["GradientService"].methods_by_name[method.name]
    assert described.output_type == method.response_type.DESCRIPTOR


def test_forward_request_of_arrays_by_name_needs_no_info() -> None:
    request = forward_request(call(version=2, signature="float64", seed=0), None)
    assert (request.op, request.version, request.signature) == ("op", 2, "float64")
    assert (request.HasField("seed"), request.seed) == (True, 0)
    assert [tensor.name for tensor in request.inputs] == ["x"]
    np.testing.assert_array_equal(decode(request.inputs[0]), X)


def test_forward_request_by_default_leaves_fields_unset() -> None:
    assert forward_request(call(), None) == pb.ForwardRequest(op="op", inputs=[encode(X, "x")])


def test_vjp_request_by_default_leaves_fields_unset() -> None:
    expected = pb.VjpRequest(op="op", inputs=[encode(X, "x")], unconnected=pb.UNCONNECTED_GRADIENTS_NONE)
    assert vjp_request(call(), None) == expected


def test_vjp_request_sets_every_option() -> None:
    options = {"differentiate": ["x"], "variable_gradients": True, "unconnected": "zero", "seed": 5}
    request = vjp_request(call(output_gradients={"output": DY}, version=1, **options), None)
    assert request == pb.VjpRequest(
        op="op",
        version=1,
        inputs=[encode(X, "x")],
        output_gradients=[encode(DY, "output")],
        differentiate=["x"],
        variable_gradients=True,
        unconnected=pb.UNCONNECTED_GRADIENTS_ZERO,
        seed=5,
    )


@pytest.mark.parametrize("gradients", [DY, [DY], {"output": [1, 1, 1]}], ids=["bare", "list", "numbers"])
def test_vjp_request_binds_gradients_by_the_signature(gradients: object) -> None:
    request = vjp_request(call(output_gradients=gradients), info())
    assert list(request.output_gradients) == [encode(DY, "output")]
    assert list(request.inputs) == [encode(X, "x")]


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, False),
        ({"output_gradients": {"output": DY}}, False),
        ({"output_gradients": {}}, False),
        ({"output_gradients": DY}, True),
        ({"output_gradients": {"output": 1.0}}, True),
        ({"output_gradients": {"output": None}}, True),
        ({"inputs": X}, True),
        ({"inputs": [X]}, True),
        ({"inputs": {"x": 1.0}}, True),
        ({"vectors": {"x": X}}, False),
        ({"vectors": X}, True),
        ({"vectors": {"x": None}}, True),
        ({"seed": 5}, False),
    ],
)
def test_needs_info_only_to_name_tensors_or_type_numbers(fields: dict[str, object], needed: bool) -> None:
    assert call(**fields).needs_info() is needed


def test_vjp_request_without_the_info_that_it_needs_raises_value_error() -> None:
    with pytest.raises(ValueError, match="needs the op's signatures"):
        vjp_request(call(inputs=X), None)


@pytest.mark.parametrize("k", [1, 4])
def test_vjp_request_stacked_sends_the_leading_size(k: int) -> None:
    gradients = {"a": np.ones((k, 3)), "b": np.ones((k,))}
    assert vjp_request(call(output_gradients=gradients, stacked=True), None).stack == k


@pytest.mark.parametrize(
    ("gradients", "got"),
    [
        (None, "of none"),
        ({}, "of none"),
        ({"a": np.ones(())}, "()"),
        ({"a": np.ones(2), "b": np.ones(3)}, "(2,), (3,)"),
        ({"a": np.ones((0, 3))}, "(0, 3)"),
    ],
)
def test_vjp_request_stacked_without_one_leading_axis_is_refused(gradients: object, got: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        vjp_request(call(output_gradients=gradients, stacked=True), None)
    assert caught.value.reason == "SHAPE_MISMATCH"
    assert str(caught.value) == f"stacked: output gradients must share one leading axis of at least 1: got shapes {got}"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"unconnected": "nan"}, "unconnected: wanted 'none' or 'zero', got 'nan'"),
        ({"differentiate": "x"}, "differentiate: wanted a list of input names, got the string 'x'"),
    ],
)
def test_vjp_request_bad_option_is_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        vjp_request(call(**fields), None)
    assert str(caught.value) == text


@pytest.mark.parametrize(("build", "field"), VECTORS)
def test_jvp_and_hvp_request_set_every_option(build, field: str) -> None:
    given = call(vectors={"x": DY}, unconnected="zero", seed=-5, version=1, signature="float64")
    request = build(given, None)
    assert request == type(request)(
        op="op",
        version=1,
        signature="float64",
        inputs=[encode(X, "x")],
        unconnected=pb.UNCONNECTED_GRADIENTS_ZERO,
        seed=-5,
        **{field: [encode(DY, "x")]},
    )


@pytest.mark.parametrize(("build", "field"), VECTORS)
@pytest.mark.parametrize("vectors", [DY, [DY], {"x": [1, 1, 1]}], ids=["bare", "list", "numbers"])
def test_jvp_and_hvp_request_bind_vectors_by_the_signature(build, field: str, vectors: object) -> None:
    request = build(call(vectors=vectors), info())
    assert list(getattr(request, field)) == [encode(DY, "x")]


@pytest.mark.parametrize(("build", "what"), VECTORS)
def test_jvp_and_hvp_request_call_vectors_by_their_name_in_errors(build, what: str) -> None:
    with pytest.raises(InvalidRequest, match=f"op 'op', {what}: "):
        build(call(vectors=[X, X]), info())


def test_hvp_request_sends_output_gradients_too() -> None:
    request = messages.hvp_request(call(vectors={"x": X}, output_gradients=DY), info())
    assert list(request.output_gradients) == [encode(DY, "output")]


def test_jacobian_request_sets_every_option() -> None:
    given = call(differentiate=["x"], unconnected="zero", seed=0, version=1)
    assert messages.jacobian_request(given, None) == pb.JacobianRequest(
        op="op",
        version=1,
        inputs=[encode(X, "x")],
        differentiate=["x"],
        unconnected=pb.UNCONNECTED_GRADIENTS_ZERO,
        seed=0,
    )


@pytest.mark.parametrize("build", [messages.jvp_request, messages.hvp_request, messages.jacobian_request])
def test_requests_of_products_by_default_leave_fields_unset(build) -> None:
    request = build(call(), None)
    assert request == type(request)(op="op", inputs=[encode(X, "x")], unconnected=pb.UNCONNECTED_GRADIENTS_NONE)
    assert not request.HasField("seed")


@pytest.mark.parametrize("build", [messages.jvp_request, messages.hvp_request, messages.jacobian_request])
def test_requests_of_products_refuse_bad_options(build) -> None:
    with pytest.raises(InvalidRequest, match="unconnected: wanted 'none' or 'zero', got 'nan'"):
        build(call(unconnected="nan"), None)


@pytest.mark.parametrize(
    "build",
    [forward_request, vjp_request, messages.jvp_request, messages.hvp_request, messages.jacobian_request],
)
@pytest.mark.parametrize(("seed", "error"), [(2**63, ValueError), (-(2**63) - 1, ValueError), (0.5, TypeError)])
def test_requests_refuse_a_seed_that_is_no_integer_of_64_bits(build, seed: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        build(call(seed=seed), None)


@pytest.mark.parametrize("seed", [7, np.int64(7), np.uint8(7)])
def test_requests_take_a_seed_of_any_integer_type(seed: object) -> None:
    assert vjp_request(call(seed=seed), None).seed == 7


def test_forward_result_holds_what_the_response_says() -> None:
    response = pb.ForwardResponse(outputs=[encode(X, "b"), encode(DY, "a")], version=3, fingerprint="f")
    result = forward_result(response, TRAILER)
    assert list(result.outputs) == ["b", "a"]
    np.testing.assert_array_equal(result.outputs["b"], X)
    assert (result.version, result.fingerprint, result.request_id) == (3, "f", "id-1")
    assert result.timing == {"decode": 0.052, "compute": 0.42}


def vjp_response() -> pb.VjpResponse:
    return pb.VjpResponse(
        outputs=[encode(X, "output")],
        input_gradients=[
            pb.Gradient(name="x", status=pb.GRADIENT_STATUS_DENSE, tensor=encode(DY, "x")),
            pb.Gradient(name="n", status=pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE),
            pb.Gradient(name="u", status=pb.GRADIENT_STATUS_UNCONNECTED),
        ],
        variable_gradients=[pb.Gradient(name="w", status=pb.GRADIENT_STATUS_DENSE, tensor=encode(X, "w"))],
        version=3,
        fingerprint="f",
    )


def test_vjp_result_says_by_status_why_a_gradient_is_none() -> None:
    result = vjp_result(vjp_response(), {})
    assert result.status == {"x": "dense", "n": "not_differentiable", "u": "unconnected", "w": "dense"}
    assert {name: value is None for name, value in result.input_gradients.items()} == {"x": False, "n": True, "u": True}
    np.testing.assert_array_equal(result.variable_gradients["w"], X)
    assert (result.version, result.fingerprint, result.request_id, result.timing) == (3, "f", "", {})


def test_vjp_result_with_a_status_of_the_future_is_unspecified() -> None:
    result = vjp_result(pb.VjpResponse(input_gradients=[pb.Gradient(name="x", status=99)]), {})
    assert (result.status, result.gradient) == ({"x": "unspecified"}, None)


def test_results_arrays_are_the_caller_s_to_write() -> None:
    result = vjp_result(vjp_response(), {})
    result.output[0] = 7.0
    result.input_gradients["x"][0] = 7.0
    result.variable_gradients["w"][0] = 7.0
    written = [result.output, result.input_gradients["x"], result.variable_gradients["w"]]
    assert [array[0] for array in written] == [7.0, 7.0, 7.0]


def test_results_are_frozen() -> None:
    result = vjp_result(vjp_response(), {})
    for field in dataclasses.fields(result):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, field.name, None)


@pytest.mark.parametrize(("names", "count"), [([], 0), (["a", "b"], 2)])
def test_result_output_unless_there_is_exactly_one_raises_value_error(names: list[str], count: int) -> None:
    result = forward_result(pb.ForwardResponse(outputs=[encode(X, name) for name in names]), {})
    with pytest.raises(ValueError, match=f"not exactly one output but {count}: {', '.join(names)}; take one by name"):
        _ = result.output


def test_result_gradient_of_several_raises_value_error_naming_them() -> None:
    with pytest.raises(ValueError, match="not exactly one gradient but 2: x, u; take one by name"):
        _ = vjp_result(vjp_response(), {}).gradient


@pytest.mark.parametrize(
    ("text", "timing"),
    [
        ("", {}),
        ("decode;dur=0.052", {"decode": 0.052}),
        ("decode;dur=0.052, queue;dur=0.031,compute;dur=4", {"decode": 0.052, "queue": 0.031, "compute": 4.0}),
        ("cache, decode;dur=0.5, x;dur=soon, ;dur=1, ,", {"decode": 0.5}),
    ],
)
def test_parse_timing_reads_what_is_timing_and_ignores_the_rest(text: str, timing: dict[str, float]) -> None:
    assert parse_timing(text) == timing


def test_list_ops_and_get_op_return_infos() -> None:
    message = op_info_to_message(info())
    assert methods.GET_OP.to_result(pb.GetOpResponse(op=message), {}).name == "op"
    assert [op.version for op in methods.LIST_OPS.to_result(pb.ListOpsResponse(ops=[message]), {})] == [2]


def test_new_request_id_never_repeats() -> None:
    assert len({messages.new_request_id() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(("value", "status"), [(0, "UNKNOWN"), (1, "SERVING"), (2, "NOT_SERVING"), (9, "UNKNOWN")])
def test_health_messages_are_those_of_the_standard_service(value: int, status: str) -> None:
    request = health_pb2.HealthCheckRequest.FromString(messages.health_request("a.Service").SerializeToString())
    assert request.service == "a.Service"
    data = health_pb2.HealthCheckResponse(status=value).SerializeToString()
    assert methods.HEALTH_CHECK.to_result(methods.HEALTH_CHECK.response_type.FromString(data), {}) == status
