"""Python numbers, strings and nested lists of them, as arrays of the signature's dtype."""

import numpy as np
import pytest

from gradserve.binding import numbers_to_array
from gradserve.dtypes import DTYPES, dtype_named
from gradserve.errors import InvalidRequest

INTEGERS = [dtype for dtype in DTYPES if dtype.numpy.kind in "iu"]
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating]


def name_of(dtype) -> str:
    return dtype.name


def refusal(value: object, dtype: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        numbers_to_array(value, dtype_named(dtype), "op 'op', input 'x'")
    assert caught.value.reason == "DTYPE_MISMATCH"
    assert caught.value.facts == {"place": "op 'op', input 'x'", "wanted": dtype}
    prefix = f"op 'op', input 'x': Python values must fit the signature's dtype: wanted {dtype}, got "
    assert str(caught.value).startswith(prefix)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(prefix)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_numbers_to_array_least_and_greatest_integers_are_kept(dtype) -> None:
    limits = np.iinfo(dtype.numpy)
    array = numbers_to_array([int(limits.min), int(limits.max), 1], dtype, "x")
    assert array.dtype == dtype.numpy
    assert array.tolist() == [limits.min, limits.max, 1]


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("beyond", [-1, 1])
def test_numbers_to_array_integer_out_of_range_is_refused(dtype, beyond: int) -> None:
    limits = np.iinfo(dtype.numpy)
    value = int(limits.min) - 1 if beyond < 0 else int(limits.max) + 1
    assert refusal([0, value], dtype.name) == f"a number that it cannot hold: [0, {value}]"


@pytest.mark.parametrize("value", [2**200, -(2**200)])
def test_numbers_to_array_integer_beyond_all_dtypes_is_refused(value: int) -> None:
    for dtype in ("int8", "uint64", "float16", "bfloat16", "float32"):
        assert refusal(value, dtype).startswith("a number that it cannot hold: ")
    assert refusal(10**400, "float64").startswith("a number that it cannot hold: ")


@pytest.mark.parametrize("value", [10**20, 2**64, [2**63, 1]])
def test_numbers_to_array_integer_beyond_64_bits_fits_a_float(value: object) -> None:
    np.testing.assert_array_equal(
        numbers_to_array(value, dtype_named("float32"), "x"), np.asarray(value, np.float64).astype(np.float32)
    )


@pytest.mark.parametrize(("dtype", "value"), [("float16", 1e6), ("bfloat16", 1e39), ("float32", 1e300)])
def test_numbers_to_array_finite_float_that_would_be_infinite_is_refused(dtype: str, value: float) -> None:
    assert refusal(value, dtype) == f"a number that it cannot hold: {value!r}"
    assert refusal([[1.0], [-value]], dtype) == f"a number that it cannot hold: [[1.0], [{-value!r}]]"


@pytest.mark.parametrize("value", [1e300, 1e300j])
def test_numbers_to_array_complex_that_would_be_infinite_is_refused(value: complex) -> None:
    assert refusal(value, "complex64").startswith("a number that it cannot hold")


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_numbers_to_array_infinities_and_nan_pass(dtype) -> None:
    array = numbers_to_array([float("inf"), float("-inf"), float("nan"), -0.0], dtype, "x")
    assert array.astype(np.float64).tolist()[:2] == [float("inf"), float("-inf")]
    assert np.isnan(array[2])
    assert np.signbit(array[3])


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
@pytest.mark.parametrize("value", [2.5, 2.0, float("nan"), 1j])
def test_numbers_to_array_no_integer_for_an_integer_dtype_is_refused(dtype, value: complex) -> None:
    assert refusal([1, value], dtype.name) == f"{type(value).__name__} {value!r}"


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_numbers_to_array_complex_for_a_float_dtype_is_refused(dtype) -> None:
    assert refusal([1.0, 1j], dtype.name) == "complex 1j"


def test_numbers_to_array_bool_dtype_takes_bools_alone() -> None:
    array = numbers_to_array([[True], [False]], dtype_named("bool"), "x")
    assert (array.dtype, array.tolist()) == (np.dtype(np.bool_), [[True], [False]])
    assert refusal([True, 1], "bool") == "int 1"
    assert refusal(1.0, "bool") == "float 1.0"


@pytest.mark.parametrize("dtype", [d.name for d in DTYPES if d.name not in ("bool", "string")])
@pytest.mark.parametrize("value", [True, [1, True]], ids=repr)
def test_numbers_to_array_bool_for_a_number_is_refused(dtype: str, value: object) -> None:
    assert refusal(value, dtype) == "bool True"


@pytest.mark.parametrize("value", ["word", b"\xff\x00", ["", b"a\x00"], [["a"], ["b"]], []], ids=repr)
def test_numbers_to_array_strings_are_kept_as_objects(value: object) -> None:
    array = numbers_to_array(value, dtype_named("string"), "x")
    assert array.dtype == object
    assert array.tolist() == value


@pytest.mark.parametrize(("value", "got"), [(1, "int 1"), (["a", 1.0], "float 1.0"), (None, "NoneType None")])
def test_numbers_to_array_something_else_for_a_string_is_refused(value: object, got: str) -> None:
    assert refusal(value, "string") == got


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32", "complex64"])
@pytest.mark.parametrize("value", ["1", b"1", None], ids=repr)
def test_numbers_to_array_no_number_for_a_number_is_refused(dtype: str, value: object) -> None:
    assert refusal([value], dtype) == f"{type(value).__name__} {value!r}"


@pytest.mark.parametrize("value", [[[1], [1, 2]], [1, [2]], [[], [1]]], ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64"])
def test_numbers_to_array_ragged_list_is_refused(value: object, dtype: str) -> None:
    assert refusal(value, dtype) == "a ragged list"


def test_numbers_to_array_ragged_list_of_strings_is_refused() -> None:
    assert refusal([["a"], ["a", "b"]], "string") == "a ragged list"


def test_numbers_to_array_lists_of_arrays_that_do_not_stack_are_refused() -> None:
    assert refusal([[np.zeros((2, 3))], [np.zeros((2, 4))]], "float64") == "a ragged list"


@pytest.mark.parametrize("value", [[[]], [[], []], []], ids=repr)
def test_numbers_to_array_empty_lists_keep_their_shape(value: object) -> None:
    assert numbers_to_array(value, dtype_named("int16"), "x").shape == np.asarray(value).shape
