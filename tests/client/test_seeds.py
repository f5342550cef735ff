"""Seeds: which input takes one, and what it becomes there."""

import numpy as np
import pytest

from gradserve.dtypes import dtype_named
from gradserve.errors import InvalidRequest
from gradserve.seeds import seed_input, with_seed
from gradserve.signature import Shape, Signature, TensorSpec

LARGEST, LEAST = 2**63 - 1, -(2**63)
X = np.ones(3, np.float32)


def spec(name: str, dtype: str, shape: Shape) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype_named(dtype), shape=shape, differentiable=False)


def signature(dtype: str = "int32", shape: Shape = (2,), name: str = "seed") -> Signature:
    inputs = {"x": spec("x", "float32", None), name: spec(name, dtype, shape)}
    return Signature(key="serving_default", inputs=inputs, outputs={})


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_seed_input_is_the_integer_one_of_that_name(dtype: str, shape: Shape) -> None:
    found = signature(dtype, shape)
    assert seed_input(found) is found.inputs["seed"]


@pytest.mark.parametrize(
    ("dtype", "shape", "name"),
    [
        ("int32", (2,), "Seed"),
        ("int32", (2,), "state/seed"),
        ("int32", (1,), "seed"),
        ("int32", (3,), "seed"),
        ("int32", (None,), "seed"),
        ("int32", None, "seed"),
        ("int32", (1, 2), "seed"),
        ("int16", (2,), "seed"),
        ("float32", (), "seed"),
        ("bool", (), "seed"),
        ("string", (), "seed"),
    ],
)
def test_seed_input_of_another_name_dtype_or_shape_is_none(dtype: str, shape: Shape, name: str) -> None:
    assert seed_input(signature(dtype, shape, name)) is None


def test_with_seed_of_none_leaves_the_inputs_as_they_are() -> None:
    arrays = {"x": X, "seed": np.int32([1, 2])}
    assert with_seed(arrays, None, signature(), "op") is arrays


@pytest.mark.parametrize(
    ("dtype", "seed", "wanted"),
    [
        *((dtype, seed, [seed, 0]) for dtype in ("int32", "int64", "uint32", "uint64") for seed in (0, 7, 2**31 - 1)),
        ("int32", 2**31, [-(2**31), 0]),
        ("int32", 2**32, [0, 1]),
        ("int32", -1, [-1, -1]),
        ("int32", LARGEST, [-1, 2**31 - 1]),
        ("int32", LEAST, [0, -(2**31)]),
        ("uint32", -1, [2**32 - 1, 2**32 - 1]),
        ("uint32", LEAST, [0, 2**31]),
        ("int64", LARGEST, [LARGEST, 0]),
        ("int64", LEAST, [LEAST, 0]),
        ("uint64", -1, [2**64 - 1, 0]),
        ("uint64", LEAST, [2**63, 0]),
    ],
)
def test_with_seed_of_a_pair_fits_every_seed(dtype: str, seed: int, wanted: list[int]) -> None:
    arrays = with_seed({"x": X}, seed, signature(dtype), "op")
    assert list(arrays) == ["x", "seed"]
    np.testing.assert_array_equal(arrays["seed"], np.array(wanted, dtype), strict=True)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_with_seed_of_a_pair_tells_seeds_apart(dtype: str) -> None:
    seeds = [0, 1, -1, 2**31, 2**32, 2**32 + 1, -(2**31), LARGEST, LEAST]
    pairs = {tuple(with_seed({}, seed, signature(dtype), "op")["seed"].tolist()) for seed in seeds}
    assert len(pairs) == len(seeds)


@pytest.mark.parametrize(
    ("dtype", "seed"),
    [("int32", 2**31 - 1), ("int32", -(2**31)), ("int64", LARGEST), ("int64", LEAST), ("uint32", 2**32 - 1), ("uint64", 0)],
)  # fmt: skip
def test_with_seed_of_a_number_keeps_it(dtype: str, seed: int) -> None:
    got = with_seed({"x": X}, seed, signature(dtype, ()), "op")["seed"]
    np.testing.assert_array_equal(got, np.array(seed, dtype), strict=True)


@pytest.mark.parametrize(
    ("dtype", "seed"), [("int32", 2**31), ("int32", -(2**31) - 1), ("uint32", -1), ("uint32", 2**32), ("uint64", -1)]
)
def test_with_seed_of_a_number_that_does_not_fit_is_refused_and_never_cut(dtype: str, seed: int) -> None:
    with pytest.raises(InvalidRequest, match=f"op 'op', seed: it must fit into {dtype}: .*got {seed}") as raised:
        with_seed({"x": X}, seed, signature(dtype, ()), "op")
    assert (raised.value.reason, raised.value.facts["got"]) == ("BAD_SEED", str(seed))


def test_with_seed_where_no_input_takes_one_says_how_one_would() -> None:
    with pytest.raises(InvalidRequest, match="wanted none, got 5: an op takes one by an integer input") as raised:
        with_seed({"x": X}, 5, signature("float32", ()), "op")
    assert raised.value.reason == "NO_SEED_INPUT"


def test_with_seed_beside_the_input_itself_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="given twice") as raised:
        with_seed({"x": X, "seed": np.int32([1, 2])}, 5, signature(), "op")
    assert raised.value.reason == "BAD_INPUT_NAMES"
