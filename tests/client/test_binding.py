"""Binding: every form in which a caller may give tensors, and those that are refused."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from gradserve.binding import arrays_by_name, bind_inputs, bind_output_gradients, choose_signature, flatten
from gradserve.dtypes import dtype_named
from gradserve.errors import InvalidRequest, OpContractError
from gradserve.op_info import OpInfo
from gradserve.signature import Signature, TensorSpec


def signature(key: str, inputs: dict[str, str], outputs: tuple[str, ...] = ("output",)) -> Signature:
    def specs(dtypes: dict[str, str]) -> dict[str, TensorSpec]:
        return {
            name: TensorSpec(name=name, dtype=dtype_named(dtype), shape=None, differentiable=True)
            for name, dtype in dtypes.items()
        }

    return Signature(key=key, inputs=specs(inputs), outputs=specs(dict.fromkeys(outputs, next(iter(inputs.values())))))


def info_of(*signatures: Signature) -> OpInfo:
    return OpInfo(
        name="op",
        version=1,
        documentation="",
        signatures={signature.key: signature for signature in signatures},
        gradient="exact",
        elementwise=False,
        stateful=False,
        device="cpu:0",
        fingerprint="f",
    )


TWO = info_of(
    signature("serving_default", {"x": "float32", "y": "float32"}),
    signature("float64", {"x": "float64", "y": "float64"}),
)
NESTED = info_of(signature("serving_default", {"state/h": "float32", "state/c": "float32", "layers/0": "float32"}))
A, B = np.ones((2, 2), np.float32), np.zeros(3, np.float32)


class Tensor:
    """Stands for a tensor of another framework: it has ``__array__`` and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.array


def bound(values: object, info: OpInfo = TWO, key: str = "") -> dict[str, np.ndarray]:
    _, arrays = bind_inputs(values, info, key)
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
    return arrays


def test_bind_inputs_mapping_keeps_arrays_as_they_are() -> None:
    arrays = bound({"y": B, "x": A})
    assert arrays["x"] is A
    assert arrays["y"] is B


@pytest.mark.parametrize("values", [[A, B], (A, B)])
def test_bind_inputs_sequence_of_arrays_goes_by_position(values: object) -> None:
    arrays = bound(values)
    assert list(arrays) == ["x", "y"]
    assert arrays["x"] is A
    assert arrays["y"] is B


@pytest.mark.parametrize(
    "values",
    [
        {"state": {"h": A, "c": B}, "layers": [A]},
        {"state/h": A, "state": {"c": B}, "layers": (A,)},
        {"state/h": A, "state/c": B, "layers/0": A},
    ],
)
def test_bind_inputs_nested_mapping_joins_names_with_slashes(values: object) -> None:
    arrays = bound(values, NESTED)
    assert set(arrays) == {"state/h", "state/c", "layers/0"}
    assert arrays["state/c"] is B


def test_flatten_keeps_lists_of_numbers_whole() -> None:
    assert flatten({"a": {"b": [1, 2]}, "c": [A, B]}) == {"a/b": [1, 2], "c/0": A, "c/1": B}


@pytest.mark.parametrize("value", [A, Tensor(A), A[0, 0]], ids=["array", "__array__", "numpy scalar"])
def test_bind_inputs_bare_array_is_the_one_input(value: object) -> None:
    arrays = bound(value, info_of(signature("serving_default", {"x": "float32"})))
    np.testing.assert_array_equal(arrays["x"], np.asarray(value))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("value", [3, 2.5, -0.0])
def test_bind_inputs_bare_number_takes_the_dtype_of_the_signature(dtype: str, value: float) -> None:
    array = bound(value, info_of(signature("serving_default", {"x": dtype})))["x"]
    assert (array.dtype, array.shape, array) == (dtype_named(dtype).numpy, (), value)


def test_bind_inputs_numbers_and_nested_lists_in_a_mapping_take_the_dtype() -> None:
    arrays = bound({"x": [[1, 2.5], [3, 4]], "y": []})
    assert arrays["x"].tolist() == [[1.0, 2.5], [3.0, 4.0]]
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    assert arrays["y"].shape == (0,)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "bfloat16"])
def test_bind_inputs_arrays_never_cast(dtype: str) -> None:
    array = np.zeros(2, dtype_named(dtype).numpy)
    assert bound({"x": array, "y": 1.0}, key="serving_default")["x"].dtype == array.dtype


def test_bind_inputs_objects_with_array_are_arrays_in_every_form() -> None:
    for values in ([Tensor(A), Tensor(B)], {"x": Tensor(A), "y": Tensor(B)}, {"x": Tensor(A), "y": [0, 0, 0]}):
        assert bound(values)["x"] is A


@pytest.mark.parametrize("values", [[1.0, 2.0], (1, 2), [[1.0], [2.0]], [1.0], [A, 1.0], ["a", "b"]], ids=repr)
def test_bind_inputs_bare_list_of_numbers_is_refused_as_ambiguous(values: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bound(values)
    assert caught.value.reason == "AMBIGUOUS_LIST"
    assert str(caught.value) == (
        "op 'op', inputs: a bare list of numbers is ambiguous (one tensor, or several?): "
        "give a numpy array, a list of arrays, or a mapping by name"
    )


@pytest.mark.parametrize(("values", "got"), [([A], 1), ([A, B, A], 3), (A, 1), (2.0, 1), ([], 0)], ids=str)
def test_bind_inputs_wrong_count_is_refused(values: object, got: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bound(values)
    assert caught.value.reason == "WRONG_COUNT"
    assert str(caught.value) == (
        f"op 'op', inputs: the number given by position must be the signature's: wanted 2 ('x', 'y'), got {got}"
    )


def test_bind_inputs_unknown_names_pass_for_the_server_to_refuse() -> None:
    assert bound({"X": 1.0, "y": A})["X"] == 1.0


@pytest.mark.parametrize(
    ("values", "key", "chosen"),
    [
        ({"x": 1.0, "y": 2}, "", "serving_default"),
        ({"x": A, "y": 2}, "", "serving_default"),
        ({"x": A.astype("f8"), "y": 2}, "", "float64"),
        ([A.astype("f8")] * 2, "", "float64"),
        ({"x": A.astype("f8"), "y": A}, "", "serving_default"),
        ({"x": 1.0, "y": 2}, "float64", "float64"),
        ({"x": 1.0, "y": 2}, "no_such_key", "serving_default"),
    ],
)
def test_choose_signature_takes_the_first_that_the_arrays_fit(values: object, key: str, chosen: str) -> None:
    assert choose_signature(values, TWO, key)[0].key == chosen
    assert bound(values, key=key)["y"].dtype in (np.dtype("f8" if chosen == "float64" else "f4"), np.dtype("f4"))


def test_choose_signature_of_an_op_that_failed_to_load_is_its_contract_error() -> None:
    failed = dataclasses.replace(TWO, signatures={}, failure="IMPORT_FAILED: no module")
    with pytest.raises(OpContractError, match="op 'op' version 1 could not be loaded: IMPORT_FAILED") as caught:
        bound(1.0, failed)
    assert caught.value.reason == "OP_NOT_LOADED"


def test_bind_output_gradients_none_entries_are_left_out() -> None:
    two_outputs = signature("serving_default", {"x": "float32"}, ("a", "b"))
    for values in ({"a": None, "b": A}, [None, A], {"b": A}):
        gradients = bind_output_gradients(values, info_of(two_outputs), two_outputs)
        assert list(gradients) == ["b"]
        assert gradients["b"] is A


@pytest.mark.parametrize("key", ["serving_default", "float64"])
def test_bind_output_gradients_number_takes_the_dtype_of_the_output(key: str) -> None:
    gradients = bind_output_gradients(2, TWO, TWO.signatures[key])
    assert gradients["output"].dtype == TWO.signatures[key].outputs["output"].dtype.numpy


def test_bind_output_gradients_wrong_count_names_the_outputs() -> None:
    with pytest.raises(InvalidRequest, match=r"op 'op', output gradients: .* wanted 1 \('output'\), got 2"):
        bind_output_gradients([A, A], TWO, TWO.signatures["serving_default"])


def test_bind_inputs_list_of_arrays_for_one_tensor_is_stacked_without_a_cast() -> None:
    _, bound = bind_inputs({"x": [np.float64(1), np.float64(2)]}, TWO, "")
    np.testing.assert_array_equal(bound["x"], np.array([1.0, 2.0]))
    assert bound["x"].dtype == np.float64


def test_bind_inputs_ragged_list_of_arrays_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a list of arrays must make one array"):
        bind_inputs({"x": [np.ones(2), np.ones(3)]}, TWO, "")


@pytest.mark.parametrize("values", [A, 1.0, [A], {"x": 1.0}, {"x": [1.0]}, {"x": [A]}, {"x": {"y": None}}], ids=repr)
def test_arrays_by_name_of_what_needs_a_signature_is_none(values: object) -> None:
    assert arrays_by_name(values) is None


def test_arrays_by_name_of_arrays_alone_needs_no_signature() -> None:
    arrays = arrays_by_name({"a": {"b": A}, "c": Tensor(A), "d": ml_dtypes.bfloat16(2)})
    assert arrays is not None
    assert list(arrays) == ["a/b", "c", "d"]
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
