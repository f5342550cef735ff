"""Public cases A10, A12 and those like them: gradients of trainable variables, by name."""

import numpy as np
import pytest
from tests.cases.arrays import assert_close, assert_same_bits, f32

from gradserve import Client

ROWS = f32([1, 2], [3, 4], [5, 6])


def test_A10_variable_of_a_custom_gradient_has_its_gradient_by_name(variables: Client) -> None:
    result = variables.vjp("scaled", np.float32(3), np.float32(5), variable_gradients=True)
    assert (result.output, result.gradient) == (6.0, 10.0)
    assert result.variable_gradients == {"weight": 15.0}
    assert result.status == {"x": "dense", "weight": "dense"}


def test_A10_variable_gradients_come_only_if_asked_for(variables: Client) -> None:
    result = variables.vjp("scaled", np.float32(3), np.float32(5))
    assert (result.gradient, result.variable_gradients) == (10.0, {})


def test_surrogate_rule_of_a_variable_comes_through_as_the_op_defines_it(variables: Client) -> None:
    assert variables.vjp("surrogate_weight", f32(1, 2), variable_gradients=True).variable_gradients == {"weight": 7.0}


def test_variables_without_names_of_their_own_are_numbered_and_the_frozen_one_is_left_out(variables: Client) -> None:
    result = variables.vjp("two_without_names", f32(1, 1), f32(2, 5), variable_gradients=True)
    assert list(result.variable_gradients) == ["Variable", "Variable_1"]
    assert_close(result.variable_gradients["Variable"], f32(2, 5))
    assert result.status["Variable_1"] == "unconnected"


def test_variable_that_no_output_depends_on_gets_zeros_on_request(variables: Client) -> None:
    result = variables.vjp("two_without_names", f32(1, 1), variable_gradients=True, unconnected="zero")
    assert_same_bits(result.variable_gradients["Variable_1"], f32(0, 0))


def test_variables_go_by_the_names_that_the_author_gives(variables: Client) -> None:
    result = variables.vjp("two_with_names", f32(1, 1), f32(2, 5), variable_gradients=True)
    assert list(result.variable_gradients) == ["offset", "shift"]
    assert_close(result.variable_gradients["shift"], f32(20, 50))


def test_variable_below_a_gather_has_a_dense_gradient(variables: Client) -> None:
    result = variables.vjp("lookup", {"rows": np.array([1, 3, 1], np.int32)}, variable_gradients=True)
    assert_close(result.variable_gradients["table"], f32([0, 0], [2, 2], [0, 0], [1, 1]))


def test_variable_of_a_module_has_its_gradient(variables: Client) -> None:
    result = variables.vjp("doubled", ROWS, np.ones_like(ROWS), variable_gradients=True)
    assert_close(result.variable_gradients["gain"], f32(9, 12))


def test_variables_of_a_keras_layer_go_by_their_paths(variables: Client) -> None:
    result = variables.vjp("dense", ROWS, f32([1], [10], [100]), variable_gradients=True)
    assert list(result.variable_gradients) == ["dense/kernel", "dense/bias"]
    assert_close(result.variable_gradients["dense/kernel"], f32([531], [642]))
    assert_close(result.variable_gradients["dense/bias"], f32(111))


def test_variables_of_a_keras_model_have_the_gradients_of_a_local_tape(variables: Client) -> None:
    dy = f32([1], [-2], [0.5])
    served = variables.vjp("two_layers", ROWS, dy, variable_gradients=True).variable_gradients
    local = variables.forward("two_layers_by_tape", {"x": ROWS, "dy": dy}).outputs
    assert list(served) == list(local)
    for path, gradient in local.items():
        assert_close(served[path], gradient)


def test_variables_never_change_by_a_call(variables: Client) -> None:
    calls = [variables.vjp("dense", ROWS, variable_gradients=True).output for _ in range(3)]
    assert_same_bits(calls[0], calls[1])
    assert_same_bits(calls[1], calls[2])


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("scaled", {"weight": ((), True)}),
        ("lookup", {"table": ((4, 2), True)}),
        ("dense", {"dense/kernel": ((2, 1), True), "dense/bias": ((1,), True)}),
    ],
)
def test_op_info_lists_its_variables(variables: Client, op: str, wanted: dict) -> None:
    listed = variables.op(op).variables
    assert {name: (spec.shape, spec.differentiable) for name, spec in listed.items()} == wanted


def test_op_info_lists_a_frozen_variable_as_not_differentiable(variables: Client) -> None:
    assert not variables.op("two_without_names").variables["frozen"].differentiable


@pytest.mark.parametrize(("on", "wanted"), [(True, (10.0, 2.0)), (False, (5.0, 1.0))])
def test_A12_variable_whose_value_is_passed_to_an_op_in_a_branch_counts(variables: Client, on, wanted) -> None:
    result = variables.vjp("in_a_branch", {"x": 5.0, "on": np.bool_(on)})
    assert (result.output, result.input_gradients["x"]) == wanted
    assert variables.op("in_a_branch").variables["switched"].differentiable is False


def test_variable_that_is_read_by_its_handle_has_its_gradient_if_the_author_names_it(variables: Client) -> None:
    result = variables.vjp("given_by_name", f32(1, 2), f32(10, 100), variable_gradients=True)
    assert (result.output.tolist(), result.gradient.tolist()) == ([4.0, 8.0], [10.0, 200.0])
    assert {name: value.tolist() for name, value in result.variable_gradients.items()} == {
        "gain": [10.0, 200.0],
        "Variable": [10.0, 100.0],
    }


def test_variable_that_is_gathered_by_its_handle_has_its_gradient_if_the_author_lists_it(variables: Client) -> None:
    result = variables.vjp("given_in_a_list", {"rows": np.array([1, 3, 1], np.int32)}, variable_gradients=True)
    assert_close(result.variable_gradients["table"], f32([0, 0], [2, 2], [0, 0], [1, 1]))


def test_lookup_table_is_no_variable(variables: Client) -> None:
    result = variables.vjp("with_a_lookup_table", {"x": f32(1, 2), "word": "two"}, variable_gradients=True)
    assert (result.input_gradients["x"].tolist(), result.variable_gradients) == ([2.0, 2.0], {})
    assert variables.op("with_a_lookup_table").variables == {}
