"""Fingerprints: equal wherever the same op is traced, and different for different ops."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import ANY, INDEX, SCALAR, VECTOR, load_module, trace_one

from gradserve_server.autodiff.tracing import trace

OPS = Path(__file__).with_name("ops_fingerprint.py")


def fingerprints(*, device: str, backwards: bool = False) -> dict[str, str]:
    definitions = load_module(str(OPS))
    traced = [trace(d, source="ops", device=device) for d in (definitions[::-1] if backwards else definitions)]
    return {f"{op.name} {op.signature.key}": op.fingerprint for ops in traced for op in ops}


@pytest.fixture(scope="module")
def in_another_process() -> dict[str, str]:
    """Fingerprints on the second of two logical CPUs, where this process has one."""
    code = (
        "import json, tests.server.ops_two_devices; from tests.server.test_fingerprint import fingerprints;"
        "print(json.dumps(fingerprints(device='cpu:1')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("backwards", [False, True])
def test_fingerprint_is_equal_in_two_processes_on_two_devices_and_in_any_order(
    in_another_process, backwards: bool
) -> None:
    assert fingerprints(device="cpu:0", backwards=backwards) == in_another_process


def test_fingerprint_of_different_ops_differs(in_another_process) -> None:
    assert len(set(in_another_process.values())) == len(in_another_process) == 8


def test_fingerprint_is_32_hexadecimal_digits(in_another_process) -> None:
    assert all(len(f) == 32 and int(f, 16) >= 0 for f in in_another_process.values())


@pytest.mark.parametrize(
    ("function", "declared"),
    [
        (lambda x: x * 3.0, {"inputs": {"x": ANY}}),
        (lambda x: x + 2.0, {"inputs": {"x": ANY}}),
        (lambda x: x * 2.0, {"inputs": {"x": VECTOR}}),
        (lambda y: y * 2.0, {"inputs": {"y": ANY}}),
        (lambda x: x * 2.0, {"inputs": {"x": ANY}, "outputs": ["y"]}),
        (lambda x: x * 2.0, {"inputs": {"x": ANY}, "batch_axis": 0}),
        (tf.custom_gradient(lambda x: (x * 2.0, lambda dy: dy)), {"inputs": {"x": ANY}}),
    ],
)
def test_fingerprint_of_an_op_that_differs_in_one_thing_differs(function, declared) -> None:
    original = trace_one(lambda x: x * 2.0, inputs={"x": ANY})
    assert trace_one(function, **declared).fingerprint != original.fingerprint


def test_fingerprint_of_a_custom_rule_that_differs_differs() -> None:
    one, other = (
        trace_one(tf.custom_gradient(lambda x, slope=slope: (x, lambda dy: dy * slope)), inputs={"x": SCALAR})
        for slope in (2.0, 3.0)
    )
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize("make", [np.array, tf.constant], ids=["in the graph", "made before it"])
@pytest.mark.parametrize(
    ("one", "other"),
    [([1.0] * 5000, [1.0] * 4999 + [2.0]), ([b"a", b"bc"], [b"ab", b"c"])],
    ids=["numbers", "strings"],
)
def test_fingerprint_of_constants_that_differ_differs(make, one: list, other: list) -> None:
    def with_constant(values: list) -> str:
        table = make(values)
        return trace_one(lambda i: tf.gather(table, i), inputs={"i": INDEX}).fingerprint

    assert with_constant(one) == with_constant(list(one)) != with_constant(other)


def test_fingerprint_covers_the_values_of_variables() -> None:
    def with_weights(*values: float) -> str:
        weight = tf.Variable(values, name="weight")
        return trace_one(lambda x: x * weight, inputs={"x": ANY}).fingerprint

    assert with_weights(1.0, 2.0) == with_weights(1.0, 2.0) != with_weights(1.0, 2.5)


@pytest.mark.parametrize(
    ("one", "other"), [(True, False), (["a"], ["b"])], ids=["of a dtype without gradient", "of strings"]
)
def test_fingerprint_covers_variables_that_have_no_gradient(one, other) -> None:
    def chosen(value) -> str:
        variable = tf.Variable(value, name="chosen")
        return trace_one(lambda x: x * tf.cast(tf.size(variable[...]), tf.float32), inputs={"x": ANY}).fingerprint

    assert chosen(one) == chosen(one) != chosen(other)
