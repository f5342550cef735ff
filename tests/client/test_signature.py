"""Signatures: each check with its reason and text, and the form on the wire."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from gradserve.dtypes import DTYPES, dtype_named
from gradserve.errors import InvalidRequest
from gradserve.signature import Shape, Signature, TensorSpec, signature_from_message, signature_to_message
from gradserve.v1 import op_pb2, tensor_pb2


def spec(name: str, dtype: str = "float32", shape: Shape = None, *, differentiable: bool = True) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype_named(dtype), shape=shape, differentiable=differentiable)


SIGNATURE = Signature(
    key="serving_default",
    inputs={"x": spec("x", shape=(None, 3)), "n": spec("n", "int32", (), differentiable=False)},
    outputs={
        "y": spec("y", shape=(None, 3)),
        "count": spec("count", "int64", (), differentiable=False),
        "z": spec("z", "float64", None),
    },
    batch_axes={"x": 0, "y": 0},
)
X = np.zeros((2, 3), np.float32)
N = np.zeros((), np.int32)


def refusal(call: Callable[..., object], *arguments: object) -> tuple[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        call(*arguments)
    assert caught.value.facts
    assert all(isinstance(value, str) for value in caught.value.facts.values())
    return caught.value.reason, str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "shape", "accepted"),
    [
        (None, (), True),
        (None, (2, 3, 4), True),
        ((), (), True),
        ((), (1,), False),
        ((None,), (0,), True),
        ((None,), (), False),
        ((None, 3), (7, 3), True),
        ((None, 3), (7, 4), False),
        ((None, 3), (3,), False),
        ((2, 3), (3, 2), False),
        ((0,), (1,), False),
    ],
)
def test_accepts_shape_none_takes_any(wanted: Shape, shape: tuple[int, ...], accepted: bool) -> None:
    assert spec("x", shape=wanted).accepts_shape(shape) is accepted


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_spec_check_array_of_the_spec_passes(dtype) -> None:
    spec("x", dtype.name, (None,)).check(np.zeros(2, dtype.numpy), "input 'x'")


@pytest.mark.parametrize("got", [np.float64, np.float16, np.int32, np.bool_, np.complex64, ml_dtypes.bfloat16, object])
def test_spec_check_other_dtype_is_refused_naming_both(got: type) -> None:
    name = "string" if got is object else np.dtype(got).name
    text = (
        f"input 'x': dtype must be the signature's, since a request never casts: wanted float32, got {name}; "
        "convert the array before the call, or call a signature of that dtype if the op has one"
    )
    assert refusal(spec("x").check, np.zeros(2, got), "input 'x'") == ("DTYPE_MISMATCH", text)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 3, 1), ()])
def test_spec_check_other_shape_is_refused_naming_both(shape: tuple[int, ...]) -> None:
    assert refusal(spec("x", shape=(None, 3)).check, np.zeros(shape, np.float32), "input 'x'") == (
        "SHAPE_MISMATCH",
        f"input 'x': shape must fit: wanted (None, 3), got {shape}",
    )


def test_inputs_in_order_returns_the_arrays_in_the_signature_order() -> None:
    inputs = SIGNATURE.inputs_in_order({"n": N, "x": X}, "op")
    assert inputs[0] is X
    assert inputs[1] is N


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({}, "missing 'x', 'n'"),
        ({"x": X}, "missing 'n'"),
        ({"x": X, "n": N, "extra": N}, "unknown 'extra'"),
        ({"X": X, "n": N}, "missing 'x', unknown 'X'"),
        ({"x": X, "n": N, "a\nb": N}, r"unknown 'a\nb'"),
    ],
)
def test_inputs_in_order_wrong_names_are_refused(arrays: dict[str, np.ndarray], complaint: str) -> None:
    text = f"op 'op', inputs: names must be the signature's: wanted 'x', 'n'; {complaint}"
    assert refusal(SIGNATURE.inputs_in_order, arrays, "op") == ("BAD_INPUT_NAMES", text)


def test_inputs_in_order_wrong_dtype_names_op_and_input() -> None:
    reason, text = refusal(SIGNATURE.inputs_in_order, {"x": X, "n": N.astype("i8")}, "op")
    assert reason == "DTYPE_MISMATCH"
    assert text.startswith("op 'op', input 'n': dtype must be the signature's")


def test_inputs_in_order_wrong_shape_names_op_and_input() -> None:
    text = "op 'op', input 'x': shape must fit: wanted (None, 3), got (3, 2)"
    assert refusal(SIGNATURE.inputs_in_order, {"x": X.T, "n": N}, "op") == ("SHAPE_MISMATCH", text)


def test_output_gradients_in_order_has_an_entry_per_differentiable_output() -> None:
    z = np.zeros(4)
    gradients = SIGNATURE.output_gradients_in_order({"z": z}, "op")
    assert gradients[0] is None
    assert gradients[1] is z
    assert SIGNATURE.output_gradients_in_order({}, "op") == [None, None]


def test_output_gradients_in_order_unknown_name_is_refused() -> None:
    text = "op 'op', output gradients: names must be the signature's: wanted 'y', 'count', 'z'; unknown 'x'"
    got = refusal(SIGNATURE.output_gradients_in_order, {"x": X}, "op")
    assert got == ("BAD_OUTPUT_GRADIENT_NAMES", text)


def test_output_gradients_in_order_for_an_integer_output_is_refused() -> None:
    text = "op 'op', output gradient 'count': an output of dtype int64 takes no output gradient; leave it out"
    got = refusal(SIGNATURE.output_gradients_in_order, {"count": np.zeros((), np.int64)}, "op")
    assert got == ("NOT_DIFFERENTIABLE", text)


@pytest.mark.parametrize(
    ("array", "reason"), [(X.astype("f8"), "DTYPE_MISMATCH"), (X[:, :2], "SHAPE_MISMATCH"), (X[0], "SHAPE_MISMATCH")]
)
def test_output_gradients_in_order_other_dtype_or_shape_is_refused(array: np.ndarray, reason: str) -> None:
    got, text = refusal(SIGNATURE.output_gradients_in_order, {"y": array}, "op")
    assert got == reason
    assert text.startswith("op 'op', output gradient 'y': ")


@pytest.mark.parametrize("names", [[], ["x"], ["n", "x"], ("x",)])
def test_check_differentiate_known_names_pass(names: list[str]) -> None:
    SIGNATURE.check_differentiate(names, "op")


def test_check_differentiate_unknown_name_is_refused() -> None:
    text = "op 'op', differentiate: names must be the signature's: wanted 'x', 'n'; unknown 'y'"
    assert refusal(SIGNATURE.check_differentiate, ["x", "y"], "op") == ("BAD_DIFFERENTIATE_NAMES", text)


def test_check_differentiate_repeated_name_is_refused() -> None:
    text = "op 'op', differentiate: each name may stand once: repeated 'n', 'x'"
    got = refusal(SIGNATURE.check_differentiate, ["x", "n", "x", "n"], "op")
    assert got == ("BAD_DIFFERENTIATE_NAMES", text)


@pytest.mark.parametrize(
    ("arrays", "fits"),
    [
        ({}, True),
        ({"x": X, "n": N}, True),
        ({"x": X.astype("f8"), "n": N}, False),
        ({"other": X.astype("f8")}, True),
    ],
)
def test_fits_dtypes_looks_at_known_names_alone(arrays: dict[str, np.ndarray], fits: bool) -> None:
    assert SIGNATURE.fits_dtypes(arrays) is fits


def test_signature_to_message_and_back_is_the_same() -> None:
    message = op_pb2.Signature.FromString(signature_to_message(SIGNATURE).SerializeToString())
    back = signature_from_message(message)
    assert back == SIGNATURE
    assert list(back.inputs) == ["x", "n"]
    assert list(back.outputs) == ["y", "count", "z"]
    assert signature_to_message(back) == message


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [None, (), (None,), (0, None, 5)])
def test_spec_to_message_and_back_is_the_same(dtype, shape: Shape) -> None:
    signature = Signature(key="k", inputs={"a/b": spec("a/b", dtype.name, shape)}, outputs={})
    assert signature_from_message(signature_to_message(signature)) == signature


def test_signature_from_message_with_unknown_dtype_asks_for_a_newer_client() -> None:
    message = op_pb2.Signature(inputs=[tensor_pb2.TensorSpec(name="x", dtype=99)])
    with pytest.raises(InvalidRequest, match="dtype that this client does not know: 99; install a newer") as caught:
        signature_from_message(message)
    assert caught.value.reason == "UNKNOWN_DTYPE"
