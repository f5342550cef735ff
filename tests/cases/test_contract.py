"""Public cases of ops that break their contract in a way that only a call shows."""

import numpy as np
import pytest
from tests.cases.arrays import assert_same_bits, f32

from gradserve import Client
from gradserve.errors import Code, OpContractError


def assert_shape_of_gradient_refused(client: Client, op: str, inputs: dict, *, name: str, wanted: str) -> None:
    with pytest.raises(OpContractError, match=f"op '{op}'.* input '{name}'") as caught:
        client.vjp(op, inputs)
    assert (caught.value.code, caught.value.reason) == (Code.FAILED_PRECONDITION, "GRADIENT_SHAPE_MISMATCH")
    assert caught.value.facts == {"op": op, "input": name, "wanted": wanted, "got": "()"}


def test_A34_number_for_the_gradient_of_a_vector_is_refused_at_the_call(requests: Client) -> None:
    inputs = {"x": f32(1, 2), "slope": f32(0.5, 1)}
    assert_shape_of_gradient_refused(requests, "number_for_a_gradient", inputs, name="slope", wanted="(2,)")
    assert_same_bits(requests.vjp("doubled_any", f32(1)).gradient, f32(2))


def test_A34_gradient_is_checked_though_the_caller_does_not_ask_for_it(requests: Client) -> None:
    with pytest.raises(OpContractError):
        requests.vjp("number_for_a_gradient", {"x": f32(1, 2), "slope": f32(0.5, 1)}, differentiate=["x"])


def test_A34_number_for_the_gradient_of_a_number_is_in_shape(requests: Client) -> None:
    result = requests.vjp("number_for_a_gradient", {"x": 2.0, "slope": 3.0})
    assert result.input_gradients == {"x": 3, "slope": 0}


def test_A34_forward_of_an_op_with_a_broken_rule_answers(requests: Client) -> None:
    result = requests.forward("number_for_a_gradient", {"x": f32(1, 2), "slope": f32(0.5, 1)})
    assert_same_bits(result.output, f32(0.5, 2))


def test_A75_silu_of_tensorflow_with_a_beta_per_column_is_refused_at_the_call(requests: Client) -> None:
    inputs = {"x": f32([1, 2], [3, -1]), "beta": f32(0.5, 2)}
    assert_shape_of_gradient_refused(requests, "silu_of_tensorflow", inputs, name="beta", wanted="(2,)")
    assert_same_bits(requests.vjp("doubled_any", f32(1)).gradient, f32(2))


def test_A75_silu_of_tensorflow_with_one_beta_answers(requests: Client) -> None:
    x, beta = np.float32(1.5), np.float32(2)
    result = requests.vjp("silu_of_tensorflow", {"x": x, "beta": beta})
    sigmoid = 1 / (1 + np.exp(-beta * x))
    np.testing.assert_allclose(result.input_gradients["beta"], x * x * sigmoid * (1 - sigmoid), rtol=1e-6)
