"""Public cases about requests: how inputs are bound, and output gradients that TensorFlow would not refuse."""

import grpc
import numpy as np
import pytest
from tests.cases.arrays import assert_same_bits, f32, f64

from gradserve import Client
from gradserve.errors import GradserveError, InvalidRequest
from gradserve.tensors import encode
from gradserve.transport import error_of_rpc, request_metadata
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.testing import RunningServer

X = f32(1, 2)
PAIRS = ["plain_pair", "pair_of_any"]
REPEATS = 20


def send(server: RunningServer, op: str, names: list[str]) -> pb.VjpResponse:
    """Sends a raw request with output gradients under these names, past every check of the client."""
    request = pb.VjpRequest(op=op, inputs=[encode(X, "x")], output_gradients=[encode(X, name) for name in names])
    metadata = request_metadata(None)
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_unary(
            "/gradserve.v1.GradientService/Vjp",
            request_serializer=pb.VjpRequest.SerializeToString,
            response_deserializer=pb.VjpResponse.FromString,
        )
        try:
            return call(request, timeout=30, metadata=metadata)
        except grpc.RpcError as error:
            raise error_of_rpc(error, metadata) from None


def assert_still_answers(client: Client, op: str) -> None:
    slopes = {"plain_pair": (2, 3), "pair_of_any": (1, 10)}[op]
    result = client.vjp(op, X, [f32(1, 1), f32(2, 2)])
    assert_same_bits(result.gradient, f32(1, 1) * slopes[0] + f32(2, 2) * slopes[1])


def test_A06_named_inputs_are_bound_by_position(requests: Client) -> None:
    result = requests.vjp("twice_x_plus_y", {"y": np.float32(3), "x": np.float32(2)})
    assert result.output == 7
    assert result.input_gradients == {"x": 2, "y": 1}


def test_A06_positional_inputs_follow_the_signature(requests: Client) -> None:
    names = list(requests.op("twice_x_plus_y").signatures["serving_default"].inputs)
    by_name = {"x": np.float32(2), "y": np.float32(3)}
    result = requests.vjp("twice_x_plus_y", [by_name[name] for name in names])
    assert (result.output, result.input_gradients["x"], result.input_gradients["y"]) == (7, 2, 1)


@pytest.mark.parametrize("op", ["doubled_by_closure", "scaled_by_default"])
def test_A08_options_are_closed_over_or_keep_their_default(requests: Client, op: str) -> None:
    result = requests.vjp(op, np.float32(3), np.float32(5))
    assert (result.output, result.gradient) == (6, 10)


@pytest.mark.parametrize("op", ["branching_on_default", "selecting_on_input"])
def test_A70_options_are_python_values_and_inputs_are_tensors(requests: Client, op: str) -> None:
    inputs = {"x": f32(1), **({"strength": 0.5} if op == "selecting_on_input" else {})}
    result = requests.vjp(op, inputs, f32(1))
    assert_same_bits(result.output, f32(1))
    assert_same_bits(result.input_gradients["x"], f32(0.5))


@pytest.mark.parametrize("form", [{"output_0": f32(3, 4)}, [f32(3, 4), None], {"output_0": [3, 4], "output_1": None}])
def test_A29_missing_output_gradient_counts_as_zeros(requests: Client, form: object) -> None:
    result = requests.vjp("pair_of_any", X, form)
    assert_same_bits(result.gradient, f32(3, 4))


def test_A29_other_output_alone_is_pulled_back_alone(requests: Client) -> None:
    assert_same_bits(requests.vjp("pair_of_any", X, {"output_1": f32(3, 4)}).gradient, f32(30, 40))


def test_A29_no_output_gradient_at_all_counts_as_ones(requests: Client) -> None:
    assert_same_bits(requests.vjp("pair_of_any", X).gradient, f32(11, 11))


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3), (), (3, 1), (0,)])
@pytest.mark.parametrize("op", ["doubled_any", "doubled_three", "doubled_vector", "squared_by_tensorflow"])
def test_A30_output_gradient_of_another_shape_is_refused(requests: Client, op: str, shape: tuple[int, ...]) -> None:
    output = "doubled" if op == "doubled_vector" else "output"
    with pytest.raises(InvalidRequest) as caught:
        requests.vjp(op, {"x": f32(1, 2, 3)}, {output: np.ones(shape, np.float32)})
    assert caught.value.reason == "SHAPE_MISMATCH"
    assert f"op '{op}', output gradient '{output}'" in str(caught.value)
    assert caught.value.facts["got"] == str(shape)
    wanted = "(None,)" if op == "doubled_vector" and len(shape) != 1 else "(3,)"  # what was known when it was refused
    assert caught.value.facts["wanted"].startswith(wanted)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
@pytest.mark.parametrize("op", ["doubled_any", "squared_by_tensorflow"])
def test_A31_output_gradient_of_another_dtype_is_refused(requests: Client, op: str, dtype: type) -> None:
    with pytest.raises(InvalidRequest) as caught:
        requests.vjp(op, X, np.ones(2, dtype))
    assert caught.value.reason == "DTYPE_MISMATCH"
    assert caught.value.facts == {
        "place": f"op '{op}', output gradient 'output'",
        "wanted": "float32",
        "got": np.dtype(dtype).name,
    }


@pytest.mark.parametrize("gradients", [[X], [X, X, X], []])
@pytest.mark.parametrize("op", PAIRS)
def test_A74_positional_list_of_the_wrong_length_is_refused(requests: Client, op: str, gradients: list) -> None:
    for _ in range(REPEATS):
        with pytest.raises(InvalidRequest, match=f"wanted 2 .*, got {len(gradients)}"):
            requests.vjp(op, X, gradients)
    assert_still_answers(requests, op)


@pytest.mark.parametrize("name", ["output_0", "output_1"])
@pytest.mark.parametrize("op", PAIRS)
def test_A74_missing_name_counts_as_zeros(requests_server: RunningServer, requests: Client, op: str, name: str) -> None:
    slope = {"plain_pair": {"output_0": 2, "output_1": 3}, "pair_of_any": {"output_0": 1, "output_1": 10}}[op][name]
    for _ in range(REPEATS):
        response = send(requests_server, op, [name])
        assert response.input_gradients[0].tensor.data == (X * slope).tobytes()
    assert_still_answers(requests, op)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["output_2"], "BAD_OUTPUT_GRADIENT_NAMES"),
        (["output_0", "output_1", "output_2"], "BAD_OUTPUT_GRADIENT_NAMES"),
        (["output_0", ""], "BAD_OUTPUT_GRADIENT_NAMES"),
        (["output_0", "output_0"], "REPEATED_NAME"),
        (["output_0", "output_1", "output_1"], "REPEATED_NAME"),
    ],
)
@pytest.mark.parametrize("op", PAIRS)
def test_A74_unknown_or_repeated_name_is_refused(
    requests_server: RunningServer, requests: Client, op: str, names: list[str], reason: str
) -> None:
    for _ in range(REPEATS):
        with pytest.raises(GradserveError) as caught:
            send(requests_server, op, names)
        assert (type(caught.value), caught.value.reason) == (InvalidRequest, reason)
    assert_still_answers(requests, op)


def test_A74_unknown_name_in_a_mapping_is_refused(requests: Client) -> None:
    with pytest.raises(InvalidRequest, match="unknown 'third'") as caught:
        requests.vjp("plain_pair", X, {"third": X})
    assert caught.value.reason == "BAD_OUTPUT_GRADIENT_NAMES"


def test_A31_dtype_is_the_outputs_though_the_op_has_other_signatures(client: Client) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.vjp("square_with_grad", X, f64(1, 1))
    assert caught.value.reason == "DTYPE_MISMATCH"
