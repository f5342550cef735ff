"""Structures: nested trees as flat, named lists and back; outputs' names; inputs by position."""

from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradserve_server.autodiff import structure

KEYS = st.text("abcxyz_", min_size=1, max_size=4)
TREES = st.recursive(
    st.integers(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(KEYS, children, max_size=3)
    ),
    max_leaves=12,
)
Pair = namedtuple("Pair", ["left", "right"])  # a plain one, as authors of ops write them


@given(TREES)
def test_pack_of_flattened_leaves_gives_the_tree_back(tree: Any) -> None:
    assert structure.pack(tree, [leaf for _, leaf in structure.flatten(tree)]) == tree


@given(TREES)
def test_flatten_of_any_tree_names_each_leaf_once(tree: Any) -> None:
    names = [name for name, _ in structure.flatten(tree)]
    assert len(set(names)) == len(names)


@given(TREES)
def test_flatten_like_of_the_tree_itself_gives_its_leaves_by_path(tree: Any) -> None:
    assert structure.flatten_like(tree, tree) == dict(structure.flatten(tree)) or structure.flatten(tree) == []


def test_flatten_of_nested_inputs_joins_names_with_a_slash() -> None:
    tree = {"x": 1, "state": {"h": 2, "c": [3, 4]}}
    assert structure.flatten(tree) == [("x", 1), ("state/h", 2), ("state/c/0", 3), ("state/c/1", 4)]


def test_pack_of_a_named_tuple_gives_one_of_its_type() -> None:
    packed = structure.pack({"p": Pair(0, (0, [0]))}, [1, 2, 3])
    assert packed == {"p": Pair(1, (2, [3]))}
    assert isinstance(packed["p"], Pair)


def test_flatten_like_of_a_list_at_a_leaf_keeps_the_list() -> None:
    assert structure.flatten_like({"x": 0, "s": {"h": 0}}, {"x": [1, 2], "s": {"h": [3]}}) == {"x": [1, 2], "s/h": [3]}


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (1, ["output"]),
        ([1], ["output_0"]),
        ((1, 2), ["output_0", "output_1"]),
        ({"mean": 1, "variance": 2}, ["mean", "variance"]),
        (Pair(1, 2), ["left", "right"]),
        ((1, {"h": 2, "c": 3}), ["output_0", "output_1/h", "output_1/c"]),
        ({"y": 1, "state": [2, 3]}, ["y", "state/0", "state/1"]),
    ],
)
def test_name_outputs_of_a_structure_gives_the_names_of_the_wire(result: Any, names: list[str]) -> None:
    assert structure.name_outputs(result) == list(zip(names, range(1, len(names) + 1), strict=True))


def test_positional_order_of_swapped_inputs_is_the_function_s() -> None:
    assert structure.positional_order(lambda x, y: (x, y), ["y", "x"]) == (["x", "y"], {})


def test_positional_order_fills_a_gap_with_the_default() -> None:
    assert structure.positional_order(lambda x, scale=2.0, y=None: (x, scale, y), ["x", "y"]) == (
        ["x", "scale", "y"],
        {"scale": 2.0},
    )


def test_positional_order_leaves_trailing_defaults_to_python() -> None:
    assert structure.positional_order(lambda x, scale=2.0: (x, scale), ["x"]) == (["x"], {})


@pytest.mark.parametrize("function", [lambda *arguments, **options: (arguments, options), dict.update])
def test_positional_order_of_a_function_that_takes_any_is_as_declared(function: Any) -> None:
    assert structure.positional_order(function, ["b", "a"]) == (["b", "a"], {})


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x, r"wanted some of \['x'\], got \['y'\]"),
        (lambda *, y: y, r"wanted some of \[\], got \['y'\]"),
        (lambda x, y: (x, y), r"parameters \['x'\] have neither"),
    ],
)
def test_positional_order_of_inputs_that_do_not_fit_is_refused(function: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        structure.positional_order(function, ["y"])
