"""The blocking client against a real server: what it sends, what comes back, and what it raises."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradserve import Client, errors
from gradserve_server.testing import RunningServer

OPS = Path(__file__).with_name("ops_slow.py")
X = np.array([1.0, -2.0, 3.0], np.float32)


@pytest.fixture
def slow_client(serve: Callable[..., RunningServer]) -> Iterator[Client]:
    with serve(OPS).client() as client:
        yield client


def split_inputs() -> dict[str, np.ndarray]:
    return {"x": X, "unused": X, "index": np.int32(4)}


def test_ops_lists_every_op_with_signatures_and_documentation(client: Client) -> None:
    infos = {info.name: info for info in client.ops()}
    assert list(infos) == sorted(infos)
    square = infos["square_with_grad"]
    assert list(square.signatures) == ["serving_default", "float64"]
    assert square.documentation.startswith("Square, with its derivative written out.")
    assert (square.version, square.gradient, square.elementwise, square.failure) == (1, "exact", True, "")
    assert infos["round_with_identity_grad"].gradient == "surrogate"


def test_op_describes_inputs_and_outputs(slow_client: Client) -> None:
    info = slow_client.op("split", version=1)
    signature = info.signatures["serving_default"]
    assert {name: spec.dtype.name for name, spec in signature.inputs.items()} == {
        "x": "float32",
        "unused": "float32",
        "index": "int32",
    }
    assert list(signature.outputs) == ["double", "index", "triple"]
    assert [spec.differentiable for spec in signature.outputs.values()] == [True, False, True]
    assert (info.stateful, len(info.fingerprint)) == (False, 32)


@pytest.mark.parametrize(
    ("name", "version", "reason"), [("nope", 0, "NO_SUCH_OP"), ("square_with_grad", 9, "NO_SUCH_VERSION")]
)
def test_op_unknown_raises_not_found(client: Client, name: str, version: int, reason: str) -> None:
    with pytest.raises(errors.NotFound) as caught:
        client.op(name, version=version)
    assert caught.value.reason == reason


def test_health_of_server_and_service_is_serving(client: Client) -> None:
    assert client.health() == client.health("gradserve.v1.GradientService") == "SERVING"
    with pytest.raises(errors.NotFound):
        client.health("no.such.Service")


@pytest.mark.parametrize("inputs", [X, [X], {"x": X}, {"x": X.tolist()}], ids=["bare", "list", "mapping", "numbers"])
def test_forward_every_form_of_inputs_gives_the_same(client: Client, inputs: object) -> None:
    result = client.forward("square_with_grad", inputs)
    np.testing.assert_array_equal(result.output, X * X, strict=True)
    assert list(result.outputs) == ["output"]
    assert (result.version, len(result.fingerprint)) == (1, 32)


def test_forward_reports_the_time_of_each_stage(client: Client) -> None:
    timing = client.forward("square_with_grad", X).timing
    assert list(timing) == ["decode", "queue", "compute", "encode"]
    assert all(milliseconds >= 0 for milliseconds in timing.values())


def test_forward_nested_inputs_go_by_either_form_of_name(slow_client: Client) -> None:
    nested = slow_client.forward("cell", {"state": {"h": 1.0, "c": 2.0}, "gain": X})
    flat = slow_client.forward("cell", {"state/h": 1.0, "state/c": 2.0, "gain": X})
    np.testing.assert_array_equal(nested.output, 21.0 * X)
    np.testing.assert_array_equal(flat.output, nested.output)


@pytest.mark.parametrize("size", [0, 2_000_000])
def test_forward_empty_and_beyond_four_mebibytes_pass(client: Client, size: int) -> None:
    assert client.forward("square_with_grad", np.zeros(size, np.float32)).output.shape == (size,)


@pytest.mark.parametrize(
    ("inputs", "signature", "dtype"),
    [
        (3.0, "", "float32"),
        (3.0, "float64", "float64"),
        (np.float64(3), "", "float64"),
        (np.array(3.0), "float64", "float64"),
    ],
)
def test_vjp_signature_is_the_one_named_or_the_one_that_fits(
    client: Client, inputs: object, signature: str, dtype: str
) -> None:
    result = client.vjp("square_with_grad", inputs, 2.0, signature=signature)
    assert (result.output, result.gradient) == (9.0, 12.0)
    assert result.output.dtype == result.gradient.dtype == np.dtype(dtype)


@pytest.mark.parametrize("gradients", [X, [X], {"output": X}, {"output": [1, -2, 3]}])
def test_vjp_every_form_of_output_gradients_gives_the_same(client: Client, gradients: object) -> None:
    result = client.vjp("square_with_grad", {"x": X}, gradients)
    np.testing.assert_array_equal(result.gradient, 2.0 * X * X, strict=True)


@pytest.mark.parametrize(
    ("gradients", "gradient"),
    [(None, 5.0), ({}, 5.0), ({"double": X}, 2 * X), ({"double": None, "triple": X}, 3 * X), ([X, None, X], 5 * X)],
)
def test_vjp_gradients_left_out_are_zeros_and_ones_if_all_are(
    slow_client: Client, gradients: object, gradient: object
) -> None:
    result = slow_client.vjp("split", split_inputs(), gradients)
    np.testing.assert_array_equal(result.input_gradients["x"], np.broadcast_to(np.float32(gradient), 3))


def test_vjp_without_a_gradient_says_why(slow_client: Client) -> None:
    result = slow_client.vjp("split", split_inputs())
    assert result.status == {"x": "dense", "unused": "unconnected", "index": "not_differentiable"}
    assert result.input_gradients["unused"] is None
    assert result.input_gradients["index"] is None
    assert result.variable_gradients == {}


def test_vjp_unconnected_zero_gives_zeros_but_not_for_integers(slow_client: Client) -> None:
    result = slow_client.vjp("split", split_inputs(), unconnected="zero")
    np.testing.assert_array_equal(result.input_gradients["unused"], np.zeros(3, np.float32), strict=True)
    assert result.status == {"x": "dense", "unused": "dense", "index": "not_differentiable"}


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        (None, ["x", "unused", "index"]),
        (["x"], ["x"]),
        (("index", "x"), ["x", "index"]),
        ([], ["x", "unused", "index"]),
    ],
)
def test_vjp_differentiate_returns_those_in_the_signature_order(
    slow_client: Client, wanted: list[str] | None, got: list[str]
) -> None:
    assert list(slow_client.vjp("split", split_inputs(), differentiate=wanted).input_gradients) == got


def test_vjp_outputs_come_in_the_signature_order(slow_client: Client) -> None:
    result = slow_client.vjp("split", split_inputs(), version=1, timeout=None)
    assert list(result.outputs) == ["double", "index", "triple"]
    assert result.outputs["index"] == 5
    with pytest.raises(ValueError, match="not exactly one output but 3"):
        _ = result.output


def test_results_arrays_can_be_written_to(client: Client) -> None:
    result = client.vjp("square_with_grad", X)
    for array in (result.output, result.gradient):
        assert array.flags.writeable
        array[...] = 0.0


@pytest.mark.parametrize(
    ("arguments", "options", "error_class", "reason"),
    [
        (("nope", {"x": X}), {}, errors.NotFound, "NO_SUCH_OP"),
        (("nope", 3.0), {}, errors.NotFound, "NO_SUCH_OP"),
        (("square_with_grad", X), {"version": 7}, errors.NotFound, "NO_SUCH_VERSION"),
        (("square_with_grad", X), {"signature": "nope"}, errors.NotFound, "NO_SUCH_SIGNATURE"),
        (("square_with_grad", {"y": X}), {}, errors.InvalidRequest, "BAD_INPUT_NAMES"),
        (("square_with_grad", X.astype("i4")), {}, errors.InvalidRequest, "DTYPE_MISMATCH"),
        (("square_with_grad", X, X[:2]), {}, errors.InvalidRequest, "SHAPE_MISMATCH"),
        (("square_with_grad", X, {"y": X}), {}, errors.InvalidRequest, "BAD_OUTPUT_GRADIENT_NAMES"),
        (("square_with_grad", X), {"differentiate": ["y"]}, errors.InvalidRequest, "BAD_DIFFERENTIATE_NAMES"),
    ],
)
def test_vjp_refused_by_the_server_raises_with_reason_and_request_id(
    client: Client, arguments: tuple[object, ...], options: dict[str, object], error_class: type, reason: str
) -> None:
    with pytest.raises(error_class) as caught:
        client.vjp(*arguments, **options, request_id="test-17")
    assert (caught.value.reason, caught.value.request_id) == (reason, "test-17")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("request_id", [None, "mine: 1/2"])
def test_result_request_id_is_the_one_given_or_made_up(client: Client, request_id: str | None) -> None:
    got = client.vjp("square_with_grad", X, request_id=request_id).request_id
    assert got == request_id or (request_id is None and len(got) == 32)


def test_error_facts_name_what_was_wanted_and_got(client: Client) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        client.forward("square_with_grad", {"x": X.astype("i4")})
    assert (caught.value.facts["wanted"], caught.value.facts["got"]) == ("float32", "int32")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": 0}, "timeout: "),
        ({"request_id": "a\nb"}, "request_id: "),
        ({"unconnected": "nan"}, "unconnected: "),
        ({"differentiate": "x"}, "differentiate: "),
    ],
)
def test_vjp_bad_option_is_refused_before_a_call_is_sent(client: Client, options: dict[str, object], text: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=text) as caught:
        client.vjp("square_with_grad", {"x": X}, **options)
    assert caught.value.request_id is None


def test_call_past_its_deadline_raises_deadline_exceeded(slow_client: Client) -> None:
    with pytest.raises(errors.DeadlineExceeded) as caught:
        slow_client.vjp("sleep", {"seconds": np.float32(0.6)}, timeout=0.1, request_id="late")
    assert (caught.value.reason, caught.value.request_id) == ("DEADLINE_EXCEEDED", "late")
    assert slow_client.vjp("sleep", {"seconds": np.float32(0)}).gradient == 1.0


def test_client_timeout_is_the_default_of_each_call(serve: Callable[..., RunningServer]) -> None:
    with serve(OPS).client(timeout=0.1) as client:
        with pytest.raises(errors.DeadlineExceeded):
            client.forward("sleep", {"seconds": np.float32(0.5)})
        assert client.forward("sleep", {"seconds": np.float32(0.5)}, timeout=None).output == 0.5


def test_request_above_the_server_limit_raises_resource_exhausted(serve: Callable[..., RunningServer]) -> None:
    with serve(OPS, max_message_bytes=100_000).client() as client:
        with pytest.raises(errors.ResourceExhausted):
            client.forward("cell", {"state": {"h": X, "c": X}, "gain": np.zeros(50_000, np.float32)}, request_id="big")
        assert client.health() == "SERVING"


def test_unreachable_server_raises_unavailable() -> None:
    with Client("127.0.0.1:1", timeout=5.0) as client, pytest.raises(errors.Unavailable) as caught:
        client.vjp("square_with_grad", X, request_id="lost")
    assert caught.value.request_id == "lost"
