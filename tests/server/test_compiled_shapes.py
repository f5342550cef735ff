"""The bound on the shapes that XLA compiles an op for."""

import pytest
import tensorflow as tf
from tests.server.helpers import ANY, floats, one

from gradserve.errors import ResourceExhausted
from gradserve_server.autodiff.tracing import trace
from gradserve_server.ops import Op, op


def compiled(function=tf.sin, most: int = 3) -> Op:
    definition = op("probe", inputs={"x": ANY}, jit_compile=True)(function)
    (traced,) = trace(definition, source="module 'probe.py'", device="cpu:0", max_compiled_shapes=most)
    return traced


def test_one_shape_more_than_may_be_compiled_is_refused_and_the_others_still_answer() -> None:
    program = compiled().program
    for count in (1, 2, 3, 2, 1):
        program.forward([floats(*range(count))])
    with pytest.raises(ResourceExhausted, match=r"at most 3 in all .*: got \(4,\), beside \(1,\); \(2,\)") as raised:
        program.forward([floats(1, 2, 3, 4)])
    assert raised.value.reason == "TOO_MANY_COMPILED_SHAPES"
    assert raised.value.facts == {"op": "probe", "wanted": "3", "got": "(4,)"}
    assert program.forward([floats(0, 0, 0)])[0].tolist() == [0, 0, 0]


def test_both_passes_count_and_so_do_the_shapes_of_output_gradients() -> None:
    program = compiled().program
    program.forward([floats(1)])
    program.vjp([floats(1)], [one()])
    program.vjp([floats(1)], [floats(1)])
    with pytest.raises(ResourceExhausted):
        program.vjp([floats(1, 2)], [one()])


def test_products_are_not_compiled_and_do_not_count() -> None:
    program = compiled(lambda x: x * x, most=4).program
    counts = []
    for size in range(1, 9):
        program.jvp([floats(*range(size))], [floats(*range(size))])
        program.jacobian([floats(*range(size))], 64)
        counts.append(program.compiled_shapes.count)
    assert counts == [counts[0]] * 8  # what the first product tries out at the example
