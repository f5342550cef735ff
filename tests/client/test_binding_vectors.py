"""Binding of tangents and other vectors, and of inputs beside a seed, in every form in which a caller may give them."""

import numpy as np
import pytest

from gradserve.binding import bind_inputs, bind_vectors
from gradserve.dtypes import dtype_named
from gradserve.errors import InvalidRequest
from gradserve.op_info import OpInfo
from gradserve.signature import Shape, Signature, TensorSpec

A, B = np.ones((2, 2), np.float32), np.zeros(3, np.float32)
SEED = np.array([1, 2], np.int32)


def info_of(**inputs: tuple[str, Shape]) -> OpInfo:
    specs = {
        name.replace("__", "/"): TensorSpec(name=name, dtype=dtype_named(dtype), shape=shape, differentiable=True)
        for name, (dtype, shape) in inputs.items()
    }
    return OpInfo(
        name="op",
        version=1,
        documentation="",
        signatures={"serving_default": Signature(key="serving_default", inputs=specs, outputs={})},
        gradient="exact",
        elementwise=False,
        stateful=False,
        device="cpu:0",
        fingerprint="f",
    )


TWO = info_of(x=("float32", None), y=("float32", None))
SEEDED = info_of(x=("float32", None), seed=("int32", (2,)), y=("float32", None))
NESTED = info_of(state__h=("float32", None), state__c=("float32", None), seed=("int64", ()))


def vectors(values: object, info: OpInfo = TWO, *, seeded: bool = False) -> dict[str, np.ndarray]:
    return bind_vectors(values, info, info.signatures["serving_default"], "tangents", seeded=seeded)


@pytest.mark.parametrize("values", [{"x": A, "y": B}, [A, B], (A, B)], ids=["mapping", "list", "tuple"])
def test_bind_vectors_goes_by_name_or_by_the_position_of_the_input(values: object) -> None:
    bound = vectors(values)
    assert list(bound) == ["x", "y"]
    assert bound["x"] is A
    assert bound["y"] is B


@pytest.mark.parametrize("values", [{"y": B}, [None, B], {"x": None, "y": B}])
def test_bind_vectors_leaves_out_what_is_none(values: object) -> None:
    assert list(vectors(values)) == ["y"]


def test_bind_vectors_of_one_bare_array_is_that_of_the_only_input() -> None:
    assert vectors(A, info_of(x=("float32", None)))["x"] is A


@pytest.mark.parametrize("value", [2, 2.0, [2.0, 3], [[1, 2], [3, 4]]])
def test_bind_vectors_types_numbers_as_the_input(value: object) -> None:
    (bound,) = vectors({"x": value}, info_of(x=("float64", None))).values()
    np.testing.assert_array_equal(bound, np.array(value, np.float64), strict=True)


@pytest.mark.parametrize(
    ("values", "reason", "text"),
    [
        ([A], "WRONG_COUNT", "op 'op', tangents: .*wanted 2 .*, got 1"),
        (A, "WRONG_COUNT", "op 'op', tangents: .*wanted 2 .*, got 1"),
        ([1.0, 2.0], "AMBIGUOUS_LIST", "op 'op', tangents: a bare list of numbers is ambiguous"),
        ({"x": "text"}, "DTYPE_MISMATCH", "op 'op', tangent 'x': "),
        ({"x": 1e300}, "DTYPE_MISMATCH", "op 'op', tangent 'x': "),
    ],
)
def test_bind_vectors_that_cannot_be_bound_are_refused_by_their_name(values: object, reason: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as raised:
        vectors(values)
    assert raised.value.reason == reason


def test_bind_vectors_of_unknown_names_pass_for_the_server_to_refuse() -> None:
    assert list(vectors({"z": A, "x": 1.0})) == ["z", "x"]


@pytest.mark.parametrize("values", [[A, B], {"x": A, "y": B}])
def test_bind_inputs_beside_a_seed_leaves_its_input_out(values: object) -> None:
    _, bound = bind_inputs(values, SEEDED, "", seeded=True)
    assert list(bound) == ["x", "y"]


def test_bind_inputs_without_a_seed_counts_its_input_like_any_other() -> None:
    _, bound = bind_inputs([A, SEED, B], SEEDED, "")
    assert list(bound) == ["x", "seed", "y"]
    with pytest.raises(InvalidRequest, match=r"wanted 2 \('x', 'y'\), got 3"):
        bind_inputs([A, SEED, B], SEEDED, "", seeded=True)
    with pytest.raises(InvalidRequest, match=r"wanted 3 \('x', 'seed', 'y'\), got 2"):
        bind_inputs([A, B], SEEDED, "")


def test_bind_inputs_beside_a_seed_takes_one_bare_array_for_the_other_input() -> None:
    _, bound = bind_inputs(A, info_of(seed=("int32", (2,)), x=("float32", None)), "", seeded=True)
    assert list(bound) == ["x"]


@pytest.mark.parametrize("values", [[{"h": A, "c": B}], {"state": {"h": A, "c": B}}])
def test_bind_inputs_beside_a_seed_may_nest(values: object) -> None:
    _, bound = bind_inputs(values, NESTED, "", seeded=True)
    assert list(bound) == ["state/h", "state/c"]


@pytest.mark.parametrize("values", [[{"h": A, "c": B}], {"state": {"h": A, "c": B}}, {"state/h": A, "state/c": B}])
def test_bind_vectors_beside_a_seed_may_nest(values: object) -> None:
    assert list(vectors(values, NESTED, seeded=True)) == ["state/h", "state/c"]


def test_bind_vectors_beside_a_seed_leave_its_input_out() -> None:
    assert list(vectors([A, B], SEEDED, seeded=True)) == ["x", "y"]
    assert list(vectors([A, None, B], SEEDED)) == ["x", "y"]


def test_seed_of_an_op_that_has_no_such_input_is_for_the_server_to_refuse() -> None:
    _, bound = bind_inputs([A, B], TWO, "", seeded=True)
    assert list(bound) == ["x", "y"]
