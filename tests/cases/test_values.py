"""Public cases whose gradient is the derivative: values, shapes and dtypes over the kinds of inputs and outputs."""

import numpy as np
import pytest
from tests.cases.arrays import assert_close, assert_same_bits, f32, f64

from gradserve import Client
from gradserve.errors import InvalidRequest

TABLE = np.ones((4, 2), np.float32)
IDS = np.array([1, 3, 1], np.int32)
MASK = np.array([True, False, True])
TINY = 1e-12


def test_A01_log_of_one_plus_exp_keeps_its_slope_where_it_overflows(values: Client) -> None:
    result = values.vjp("log_of_one_plus_exp", f32(-100, 0, 100), f32(1, 2, 3))
    assert_close(result.output, f32(0, 0.6931472, np.inf))
    assert_close(result.gradient, f32(0, 1, 3))


def test_A19_complex_square_follows_the_convention_of_tensorflow(values: Client) -> None:
    z = np.array([1 + 2j], np.complex64)
    result = values.vjp("complex_square", z, np.array([1], np.complex64))
    assert_close(result.output, np.array([-3 + 4j], np.complex64))
    assert_close(result.gradient, np.array([2 - 4j], np.complex64))
    turned = values.vjp("complex_square", z, np.array([1j], np.complex64))
    assert_close(turned.gradient, np.array([4 + 2j], np.complex64))


def test_A21_sqrt_with_slope_zero_at_zero(values: Client) -> None:
    result = values.vjp("sqrt_with_slope_zero_at_zero", f32(0, 4), f32(1, 1))
    assert_close(result.output, f32(0, 2))
    assert_close(result.gradient, f32(0, 0.25))


def test_A21_infinite_slope_of_plain_sqrt_comes_through(values: Client) -> None:
    assert_close(values.vjp("plain_sqrt", f32(0, 4), f32(1, 1)).gradient, f32(np.inf, 0.25))
    assert_close(values.vjp("plain_sqrt", f32(0, 4), f32(0, 1)).gradient, f32(0, 0.25))


def test_A22_repeated_rows_of_a_lookup_are_summed(values: Client) -> None:
    result = values.vjp("look_up", {"table": TABLE, "ids": IDS}, np.ones((3, 2), np.float32))
    assert_same_bits(result.input_gradients["table"], f32([0, 0], [2, 2], [0, 0], [1, 1]))
    assert result.input_gradients["ids"] is None
    assert result.status == {"table": "dense", "ids": "not_differentiable"}


def test_A22_several_lookups_and_a_dense_use_add_up(values: Client) -> None:
    result = values.vjp("look_up_twice_and_sum", {"table": TABLE, "ids": IDS}, np.ones((3, 2), np.float32))
    assert_same_bits(result.input_gradients["table"], f32([6, 6], [10, 10], [6, 6], [8, 8]))


def test_A22_sparse_gradient_without_a_shape_takes_that_of_its_input(values: Client) -> None:
    result = values.vjp("look_up_with_rule", {"table": TABLE, "ids": IDS}, np.ones((3, 2), np.float32))
    assert_same_bits(result.input_gradients["table"], f32([0, 0], [2, 2], [0, 0], [1, 1]))


def test_A22_unit_output_gradients_of_each_row_land_in_their_row(values: Client) -> None:
    dy = f32([1, 10], [2, 20], [4, 40])
    result = values.vjp("look_up", {"table": TABLE, "ids": IDS}, dy)
    assert_same_bits(result.input_gradients["table"], f32([0, 0], [5, 50], [0, 0], [2, 20]))


def test_A22_index_outside_of_the_table_is_the_callers_fault(values: Client) -> None:
    with pytest.raises(InvalidRequest) as caught:
        values.vjp("look_up", {"table": TABLE, "ids": np.array([4], np.int32)})
    assert caught.value.reason == "VALUES_REFUSED"


def test_A23_rule_below_a_lookup_is_given_the_sparse_gradient(values: Client) -> None:
    result = values.vjp("look_up_in_doubling_table", {"table": TABLE, "ids": IDS}, np.ones((3, 2), np.float32))
    assert_same_bits(result.input_gradients["table"], f32([0, 0], [4, 4], [0, 0], [2, 2]))


@pytest.mark.parametrize("mode", ["minus", b"minus", np.array(b"minus", object)])
def test_A25_string_input_picks_the_sign_and_has_no_gradient(values: Client, mode: object) -> None:
    result = values.vjp("signed", {"mode": mode, "x": f32(1, 2)}, f32(1, 3))
    assert_same_bits(result.output, f32(-1, -2))
    assert_same_bits(result.input_gradients["x"], f32(-1, -3))
    assert result.input_gradients["mode"] is None
    assert result.status["mode"] == "not_differentiable"


@pytest.mark.parametrize("dy", [np.array(b"up", object), np.float32(1.0)])
def test_A25_output_gradient_for_a_string_is_refused(values: Client, dy: np.ndarray) -> None:
    with pytest.raises(InvalidRequest, match=r"'label'.* string ") as caught:
        values.vjp("labelled", {"x": f32(1, 2)}, {"label": dy, "doubled": f32(1, 1)})
    assert caught.value.reason == "NOT_DIFFERENTIABLE"


def test_A25_string_output_beside_a_float_is_returned(values: Client) -> None:
    result = values.vjp("labelled", f32(1, 2), {"doubled": f32(1, 3)})
    assert result.outputs["label"].item() == b"up"
    assert_same_bits(result.gradient, f32(2, 6))


def test_A27_four_inputs_and_two_outputs_give_the_transposed_jacobian_times_dy(values: Client) -> None:
    result = values.vjp("two_of_four", {"a": 1, "b": 2, "c": 3, "d": 4}, {"output_0": 2, "output_1": 3})
    assert list(result.outputs.values()) == [5, 12]
    assert result.input_gradients == {"a": 4, "b": 2, "c": 14, "d": 9}


def test_A37_float64_never_passes_through_float32(values: Client) -> None:
    result = values.vjp("add_a_trillionth", f64(1), f64(1))
    assert_same_bits(result.output, f64(1.0 + TINY))
    assert_same_bits(result.gradient, f64(1.0 + TINY))


def test_A37_zeros_for_an_unconnected_float64_input_are_float64(values: Client) -> None:
    inputs = {"x": f64(3), "unused": f64([1], [2])}
    result = values.vjp("first_of_two", inputs, unconnected="zero")
    assert_same_bits(result.input_gradients["unused"], f64([0], [0]))
    assert values.vjp("first_of_two", inputs).status["unused"] == "unconnected"


def test_A38_mask_has_no_gradient(values: Client) -> None:
    result = values.vjp("masked", {"x": f32(1, 2, 3), "mask": MASK}, f32(1, 1, 5))
    assert_same_bits(result.output, f32(1, 0, 3))
    assert_same_bits(result.input_gradients["x"], f32(1, 0, 5))
    assert result.input_gradients["mask"] is None
    assert result.status["mask"] == "not_differentiable"


@pytest.mark.parametrize("unconnected", ["none", "zero"])
def test_A38_integer_input_has_no_gradient_whatever_is_asked_for(values: Client, unconnected: str) -> None:
    inputs = {"x": f32(1, 2), "times": np.array([3, 4], np.int32)}
    result = values.vjp("times_an_integer", inputs, unconnected=unconnected)
    assert_same_bits(result.input_gradients["x"], f32(3, 4))
    assert (result.input_gradients["times"], result.status["times"]) == (None, "not_differentiable")


@pytest.mark.parametrize("op", ["cube", "scalar_cube"])
def test_A39_rank_zero_goes_in_and_comes_out(values: Client, op: str) -> None:
    result = values.vjp(op, np.float32(2), np.float32(0.5))
    assert_same_bits(result.output, np.array(8, np.float32))
    assert_same_bits(result.gradient, np.array(6, np.float32))


@pytest.mark.parametrize("op", ["cube", "scalar_cube"])
def test_A39_vector_of_one_is_no_output_gradient_for_rank_zero(values: Client, op: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        values.vjp(op, np.float32(2), f32(0.5))
    assert caught.value.reason == "SHAPE_MISMATCH"
    assert "()" in str(caught.value)
    assert "(1,)" in str(caught.value)


def test_A42_ragged_rows_travel_as_values_and_row_splits(values: Client) -> None:
    inputs = {"values": f32(1, 2, 3), "row_splits": np.array([0, 2, 2, 3], np.int64)}
    result = values.vjp("ragged_by_parts", inputs, f32(1, 10, 100))
    assert_same_bits(result.output, f32(2, 4, 6))
    assert_same_bits(result.input_gradients["values"], f32(3, 30, 300))
    assert result.status["row_splits"] == "not_differentiable"


def test_A43_sparse_cells_travel_as_values_and_indices(values: Client) -> None:
    inputs = {"values": f32(1, 2), "indices": np.array([[0, 0], [1, 1]])}
    result = values.vjp("doubled_two_by_two", inputs, f32([1, 9], [9, 3]))
    assert_same_bits(result.output, f32([2, 0], [0, 4]))
    assert_same_bits(result.input_gradients["values"], f32(2, 6))


def test_A71_captured_tensor_has_no_gradient(values: Client) -> None:
    result = values.vjp("times_a_captured_tensor", {"x": 2.0, "w": 3.0}, {"output": 1.0})
    assert result.output == 6
    assert result.input_gradients == {"x": 3, "w": None}
    assert result.status["w"] == "unconnected"
    described = values.op("times_a_captured_tensor").signatures["serving_default"]
    assert {name: spec.differentiable for name, spec in described.inputs.items()} == {"x": True, "w": False}


def test_A73_nan_inf_and_negative_zero_go_through_a_rule(values: Client) -> None:
    result = values.vjp("identity_with_negated_grad", f32(1, 2, 3, 4), f32(np.nan, np.inf, -0.0, 1))
    assert result.gradient is not None
    assert np.isnan(result.gradient[0])
    assert_same_bits(result.gradient[1:], f32(-np.inf, 0.0, -1))


def test_A73_every_bit_of_dy_reaches_the_rule_and_comes_back(values: Client) -> None:
    bits = np.array([0x7FC12345, 0xFFC00001, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001], np.uint32)
    dy = bits.view(np.float32)
    result = values.vjp("identity_with_custom_grad", {"x": dy}, {"output": dy})
    assert_same_bits(result.gradient, dy)
    assert_same_bits(result.output, dy)


def test_A75_silu_written_out_has_a_slope_for_each_beta(values: Client) -> None:
    inputs = {"x": f32([1, 2], [3, -1]), "beta": f32(0.5, 2)}
    result = values.vjp("silu_from_parts", inputs, np.ones((2, 2), np.float32))
    assert_close(result.input_gradients["beta"], f32(1.577322006225586, 0.17564499378204346))
