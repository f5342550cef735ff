"""What ops claim of their rows: it is tried out at the start, and an op that couples rows and claims not to is refused."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tests.server.helpers import ANY, SCALAR
from tests.server.joinable_ops import OPS, ROWS, probe
from tests.support.processes import run_server

from gradserve_server.ops import OpLoadError
from gradserve_server.testing import running_server


def test_ops_that_keep_what_they_claim_may_be_joined() -> None:
    assert [name for name, op in OPS.items() if op.layout is None] == []


UNCLAIMED = {
    "no claim": {"inputs": {"x": ANY}},
    "fixed size": {"inputs": {"x": tf.TensorSpec([4, 3], tf.float32)}, "batch_axis": 0},
    "stateful": {"inputs": {"x": ANY}, "elementwise": True, "stateful": True},
    "elementwise of rank 2": {"inputs": {"x": ROWS}, "elementwise": True},
    "rows of any rank": {"inputs": {"x": ANY}, "batch_axis": 0},
    "no point": {"inputs": {"x": ROWS}, "batch_axis": 0, "example": {"x": [[np.nan] * 3]}},
}


@pytest.mark.parametrize("declared", UNCLAIMED.values(), ids=UNCLAIMED)
def test_op_without_open_rows_or_a_claim_runs_its_calls_one_by_one(declared) -> None:
    assert probe(lambda x: x * x, "square", **declared).layout is None


@pytest.mark.parametrize("axes", [0, {"x": 0, "output": 0}])
def test_claim_of_both_kinds_goes_by_the_axes_where_not_all_tensors_have_elements_alike(axes) -> None:
    op = probe(
        lambda x, scale: x * scale,
        "scaled",
        inputs={"x": ANY, "scale": SCALAR},
        elementwise=True,
        batch_axis={"x": 0, "output": 0},
        example={"x": 1.0, "scale": 2.0},
    )
    assert op.layout is None  # x may have any rank
    rows = probe(lambda x: x * x, "rows", inputs={"x": ROWS}, elementwise=True, batch_axis=axes)
    assert rows.layout is not None
    assert not rows.layout.is_flat


def test_op_that_counts_its_rows_keeps_its_claim_and_runs_its_calls_one_by_one() -> None:
    def by_place(x):
        return x * tf.cast(tf.range(tf.shape(x)[0])[:, None], tf.float32)

    assert probe(by_place, "by_place", inputs={"x": ROWS}, batch_axis=0).layout is None


def test_op_whose_kernels_round_otherwise_for_one_row_is_not_refused() -> None:
    weight = tf.constant(np.random.default_rng(0).standard_normal((256, 256)), tf.float32)
    example = {"x": np.random.default_rng(1).standard_normal((1, 256)).astype(np.float32)}
    spec = tf.TensorSpec([None, 256], tf.float32)
    sharp = probe(lambda x: tf.sin(1e3 * (x @ weight)), "sharp", inputs={"x": spec}, batch_axis=0, example=example)
    assert sharp.layout is not None  # the claim holds


def test_op_that_draws_random_numbers_runs_its_calls_one_by_one() -> None:
    assert probe(lambda x: x * tf.random.uniform([]), "noisy", inputs={"x": ANY}, elementwise=True).layout is None


@tf.custom_gradient
def coupled_backward(x):
    return 2.0 * x, lambda dy: dy * tf.norm(dy)


@tf.custom_gradient
def clipped_by_norm(x):
    return 2.0 * x, lambda dy: tf.clip_by_norm(dy, 10.0)


INTEGERS = {"x": tf.TensorSpec([None, 3], tf.float32), "n": tf.TensorSpec([None], tf.int32)}
COUPLED = {
    "clip by a large norm": (lambda x: tf.clip_by_norm(x, 10.0), {"inputs": {"x": ANY}, "elementwise": True}),
    "clip of dy by a large norm": (clipped_by_norm, {"inputs": {"x": ANY}, "elementwise": True}),
    "zeros": (
        lambda x: x * tf.reduce_sum(x),
        {"inputs": {"x": ANY}, "elementwise": True, "example": {"x": [0.0, 0.0]}},
    ),
    "repeats": (
        lambda x, n: tf.repeat(x, n, axis=0),
        {"inputs": INTEGERS, "batch_axis": 0, "example": {"x": np.eye(3, dtype=np.float32), "n": [1, 1, 1]}},
    ),
    "products of rows": (lambda x: x @ tf.transpose(x), {"inputs": {"x": ROWS}, "batch_axis": 0}),
    "softmax over rows": (lambda x: tf.nn.softmax(x, axis=0), {"inputs": {"x": ROWS}, "batch_axis": 0}),
    "batch normalisation": (lambda x: x - tf.reduce_mean(x, axis=0), {"inputs": {"x": ROWS}, "batch_axis": 0}),
    "running sum": (lambda x: tf.cumsum(x, axis=0), {"inputs": {"x": ROWS}, "batch_axis": 0}),
    "wrong axis": (lambda x: tf.cumsum(x, axis=0), {"inputs": {"x": tf.TensorSpec([None] * 2)}, "batch_axis": 0}),
    "not elementwise": (lambda x: x / tf.norm(x), {"inputs": {"x": ANY}, "elementwise": True}),
    "coupled backward": (coupled_backward, {"inputs": {"x": ROWS}, "batch_axis": 0}),
    "fewer rows": (lambda x: x[1:], {"inputs": {"x": tf.TensorSpec([None, 3])}, "batch_axis": 0}),
}


@pytest.mark.parametrize(("function", "declared"), COUPLED.values(), ids=COUPLED)
def test_op_that_couples_rows_is_refused_with_the_value_that_differs(function, declared) -> None:
    with pytest.raises(
        OpLoadError, match=r"ROWS_COUPLED: .*(beside one call, .* beside another|wanted \d+ rows)"
    ) as raised:
        probe(function, "coupled", **declared)
    assert "depend on each other" in str(raised.value)


def test_start_with_an_op_that_couples_rows_is_refused_and_skipping_serves_the_others() -> None:
    module = str(Path(__file__).with_name("ops_coupled.py"))
    ended = run_server(module)
    assert ended.returncode == 2
    (message,) = [line for line in ended.stderr.splitlines() if line.startswith("gradserve-server: ")]
    for part in (
        "op 'softmax_over_batch'",
        "ROWS_COUPLED",
        "output 'output', element",
        "beside one call",
        "beside another",
    ):
        assert part in message
    with running_server(module, bad_ops="skip") as server, server.client() as client:
        assert {info.name: bool(info.failure) for info in client.ops()} == {
            "softmax_over_batch": True,
            "softmax_over_classes": False,
        }
