"""The gradient check against the example ops, planted faults, kinks, steps and domains."""

import numpy as np
import pytest
import tensorflow as tf
from examples import ops as examples
from tests.server.helpers import ANY, SCALAR, VECTOR, floats, trace_one

from gradserve_server.autodiff.tracing import trace
from gradserve_server.checking.gradient_check import START_OPTIONS, CheckOptions, check_gradient
from gradserve_server.ops import DECLARED, Op

DOUBLE = tf.TensorSpec([3], tf.float64)
EXAMPLES = [op for declared in getattr(examples, DECLARED) for op in trace(declared, source="examples", device="cpu:0")]


def finding(check, test: str, name: str = "x"):
    (found,) = [found for found in check.findings if found.test == test and found.input == name]
    return found


def ruled(forward, rule):
    """Returns a function of one input with a rule of x and dy."""

    @tf.custom_gradient
    def function(x):
        return forward(x), lambda dy: rule(x, dy)

    return function


def verdict_of(forward, rule, spec=VECTOR, **declared) -> str:
    return check_gradient(trace_one(ruled(forward, rule), inputs={"x": spec}, **declared)).verdict


@pytest.mark.parametrize("options", [CheckOptions(), START_OPTIONS], ids=["full", "start"])
@pytest.mark.parametrize("op", EXAMPLES, ids=lambda op: f"{op.name}-{op.signature.key}")
def test_check_of_an_example_finds_what_it_claims(op: Op, options: CheckOptions) -> None:
    check = check_gradient(op, options=options)
    agreeing = op.gradient == "exact" or op.name == "safe_sqrt"
    assert check.verdict == ("pass" if agreeing else "departs"), check.text
    assert check.points == options.points


def test_check_of_a_surrogate_says_where_and_by_how_much() -> None:
    op = trace_one(
        ruled(tf.square, lambda x, dy: dy * tf.clip_by_value(2 * x, -1.0, 1.0)),
        inputs={"x": VECTOR},
        gradient="surrogate",
    )
    found = finding(check_gradient(op, inputs=[floats(0.25, 3.0, 0.125)]), "elements")
    assert (found.verdict, found.index) == ("departs", (1,))
    assert found.wanted == pytest.approx(6 * found.got, rel=1e-3)


FAULTS = {
    "forgot dy": (tf.sin, lambda x, _: tf.cos(x), "dy, which may have been forgotten"),
    "five times too large": (tf.sin, lambda x, dy: 5 * dy * tf.cos(x), "5 times the derivative, too large"),
    "wrong sign on a branch": (
        tf.square,
        lambda x, dy: dy * 2 * tf.abs(x),
        "where x < 0 the rule gives the wrong sign",
    ),
    "zeros": (tf.sin, lambda x, _: tf.zeros_like(x), "zeros alone"),
    "wrong sign": (tf.sin, lambda x, dy: -dy * tf.cos(x), "the wrong sign"),
    "step function": (tf.round, lambda _, dy: dy, "flat"),
}


@pytest.mark.parametrize(("forward", "rule", "message"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("elementwise", [True, False])
def test_check_of_a_planted_fault_fails_and_points_at_it(forward, rule, message: str, elementwise: bool) -> None:
    op = trace_one(ruled(forward, rule), inputs={"x": ANY}, elementwise=elementwise)
    check = check_gradient(op, options=CheckOptions(points=4))
    assert check.verdict == "fail"
    assert message in check.text


def test_check_of_swapped_gradients_fails_and_says_so() -> None:
    @tf.custom_gradient
    def multiply(x, y):
        return x * y, lambda dz: (dz * x, dz * y)

    check = check_gradient(trace_one(multiply, inputs={"x": VECTOR, "y": VECTOR}))
    assert check.verdict == "fail"
    assert "the gradients of 'x' and 'y' are swapped" in check.text


def through_float32(x):
    return tf.cast(tf.cast(x, tf.float32), tf.float64)


def test_check_of_a_float32_detour_in_the_rule_fails_and_says_so() -> None:
    op = trace_one(ruled(tf.sin, lambda x, dy: dy * through_float32(tf.cos(x))), inputs={"x": DOUBLE})
    check = check_gradient(op)
    assert check.verdict == "fail"
    assert "cast to float32 in the rule" in check.text


@pytest.mark.parametrize(
    "function",
    [lambda x: through_float32(tf.sin(x)), lambda x: tf.sin(through_float32(x)), lambda x: through_float32(x) ** 2],
)
def test_check_of_a_float32_detour_in_the_forward_pass_fails_and_says_so(function) -> None:
    check = check_gradient(trace_one(function, inputs={"x": DOUBLE}))
    assert check.verdict == "fail"
    assert "look for a cast to float32" in check.text


SMOOTH_OR_NOT = {
    "relu": lambda x: tf.nn.relu(x),  # noqa: PLW0108  # an op's inputs go by the names of its parameters
    "abs": tf.abs,
    "clip": lambda x: tf.clip_by_value(x, -1.0, 1.0),
    "floor": tf.floor,
    "maximum": lambda x: tf.reduce_max(x, keepdims=True),
    "sort": lambda x: tf.sort(x),  # noqa: PLW0108  # an op's inputs go by the names of its parameters
    "curved": lambda x: tf.sin(50 * x),
    "steep": lambda x: tf.sigmoid(30 * x),
    "coarse output": lambda x: tf.cast(tf.cast(tf.sin(x), tf.bfloat16), tf.float32),
    "coarse inside": lambda x: tf.exp(tf.cast(tf.cast(x, tf.bfloat16), tf.float32)),
    "large": lambda x: 1e6 + tf.square(x),
}


@pytest.mark.parametrize("function", SMOOTH_OR_NOT.values(), ids=SMOOTH_OR_NOT)
@pytest.mark.parametrize(
    "inputs", [None, [floats(0.0, 1.0, -1.0)], [floats(1e-4, 1.001, 20.0)]], ids=["drawn", "kinks", "near"]
)
def test_check_of_a_correct_rule_is_no_failure_at_kinks_and_noise(function, inputs) -> None:
    op = trace_one(function, inputs={"x": VECTOR})
    check = check_gradient(op, inputs=inputs)
    assert check.verdict in ("pass", "unchecked"), check.text


NARROW = pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)


@NARROW
@pytest.mark.parametrize("name", sorted(SMOOTH_OR_NOT.keys() - {"large"}))
@pytest.mark.parametrize("inputs", [None, (0.0, 1.0, -1.0), (1e-4, 1.001, 20.0)], ids=["drawn", "kinks", "near"])
def test_check_of_a_correct_rule_of_16_bits_is_no_failure(name, inputs, dtype) -> None:
    op = trace_one(lambda x: tf.cast(SMOOTH_OR_NOT[name](x), dtype), inputs={"x": tf.TensorSpec([None], dtype)})
    given = None if inputs is None else [np.array(inputs, dtype.as_numpy_dtype)]
    check = check_gradient(op, inputs=given)
    assert check.verdict in ("pass", "unchecked"), check.text


def off_at(place: int, by: float):
    """Returns a function that is a tenth off in one element of its gradient, if that is what ``by`` is."""
    return ruled(
        tf.nn.softmax,
        lambda x, dy: (
            (dy - tf.reduce_sum(dy * tf.nn.softmax(x)))
            * tf.nn.softmax(x)
            * (1 + by * tf.one_hot(place, 5, dtype=x.dtype))
        ),
    )


@NARROW
@pytest.mark.parametrize("place", range(5))
def test_check_finds_one_element_off_by_a_tenth_in_16_bits(dtype, place: int) -> None:
    for by, verdict in ((0.1, "fail"), (0.0, "pass")):
        check = check_gradient(trace_one(off_at(place, by), inputs={"x": tf.TensorSpec([5], dtype)}))
        assert check.verdict == verdict, check.text
    assert check.text.endswith("in float64")


@NARROW
def test_check_of_16_bits_allows_for_the_rounding_of_constants(dtype) -> None:
    def rule(x, dy):
        return dy * tf.cos(x) * tf.constant(1 + dtype.as_numpy_dtype(0).dtype.itemsize * 0.001, dtype)

    assert verdict_of(tf.sin, rule, tf.TensorSpec([3], dtype)) == "pass"


@NARROW
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_check_of_16_bits_that_float64_cannot_stand_in_for_finds_gross_faults(dtype, factor: float) -> None:
    def cubed(x):
        return tf.ensure_shape(tf.numpy_function(lambda a: a**3, [x], x.dtype), x.shape)

    function = ruled(cubed, lambda x, dy: factor * 3 * dy * x**2)
    check = check_gradient(trace_one(function, inputs={"x": tf.TensorSpec([3], dtype)}))
    assert check.verdict == ("pass" if factor == 1 else "fail")
    assert ("only gross faults show" in check.text) == (factor == 1)


def test_check_of_16_bits_goes_on_where_a_kernel_refuses_float64_once_it_runs() -> None:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [2.0, 3.0]), 0.0)
    op = trace_one(
        lambda x, i: x * tf.cast(table.lookup(i), tf.float16),
        inputs={"x": tf.TensorSpec([3], tf.float16), "i": tf.TensorSpec([], tf.int32)},
    )
    check = check_gradient(op)
    assert check.verdict == "pass"
    assert "only gross faults show" in check.text


def test_check_of_16_bits_does_not_trust_another_function_in_float64() -> None:
    def bits(x):
        return tf.cast(tf.bitcast(x, tf.int16), x.dtype)  # in float64 it has another shape

    check = check_gradient(trace_one(ruled(bits, lambda _, dy: 0 * dy), inputs={"x": tf.TensorSpec([3], tf.float16)}))
    assert check.verdict in ("fail", "unchecked")
    assert check.points > 0


DOMAINS = {
    "log": tf.math.log,
    "log1m": lambda x: tf.math.log(1 - x),
    "acosh": tf.acosh,
    "asin": tf.asin,
    "cholesky": lambda x: tf.linalg.cholesky(x),  # noqa: PLW0108  # an op's inputs go by the names of its parameters
    "fft": lambda x: tf.math.real(tf.signal.fft(tf.cast(x, tf.complex64))),
}


@pytest.mark.parametrize("function", DOMAINS.values(), ids=DOMAINS)
def test_check_of_an_op_with_a_domain_finds_points_in_it(function) -> None:
    assert check_gradient(trace_one(function, inputs={"x": tf.TensorSpec([None, None], tf.float32)})).verdict == "pass"


def test_check_of_an_op_with_no_finite_point_asks_for_an_example() -> None:
    check = check_gradient(trace_one(lambda x: tf.math.log(x - 100.0), inputs={"x": VECTOR}))
    assert (check.verdict, check.points) == ("unchecked", 0)
    assert "give an example" in check.text


def test_check_with_an_example_looks_near_it() -> None:
    op = trace_one(lambda x: tf.math.log(x - 100.0), inputs={"x": VECTOR}, example={"x": [200.0, 300.0]})
    assert check_gradient(op).verdict == "pass"


def test_check_of_a_complex_op_follows_the_conjugate_convention() -> None:
    spec = tf.TensorSpec([3], tf.complex128)
    assert verdict_of(tf.square, lambda z, dy: dy * tf.math.conj(2 * z), spec) == "pass"
    assert verdict_of(tf.square, lambda z, dy: dy * 2 * z, spec) == "fail"


def test_check_of_an_input_that_the_rule_leaves_out_says_so_and_does_not_judge_it() -> None:
    @tf.custom_gradient
    def scale(x, strength):
        return x * strength, lambda dy: (dy * strength, None)

    check = check_gradient(trace_one(scale, inputs={"x": VECTOR, "strength": SCALAR}))
    assert check.verdict == "pass"
    assert finding(check, "adjoint", "strength").verdict == "unchecked"
    assert "'strength': the rule gives no gradient" in finding(check, "adjoint", "strength").text


def test_check_of_constants_with_fewer_digits_than_float64_passes() -> None:
    def rule(_, dy):
        return dy * tf.constant(1 + 1e-12, tf.float64)

    assert verdict_of(lambda x: x + 1e-12, rule, DOUBLE) == "pass"


def test_check_that_tensorflow_contradicts_passes_where_forward_values_agree() -> None:
    (op, _) = [op for op in EXAMPLES if op.name == "log1p_exp"]
    check = check_gradient(op, own_vjp=lambda inputs, _: [np.full_like(inputs[0], np.nan)])
    assert finding(check, "own_derivative").verdict == check.verdict == "pass"


def test_check_reports_linearity_as_a_fact() -> None:
    check = check_gradient(EXAMPLES[0], linear=False)
    assert (check.verdict, finding(check, "linearity", "").verdict) == ("pass", "pass")


def test_check_stops_when_its_time_is_over() -> None:
    ticks = iter(range(10_000))
    check = check_gradient(EXAMPLES[0], options=CheckOptions(max_seconds=10), clock=lambda: float(next(ticks)))
    assert next(ticks) < 100
    assert check.verdict in ("pass", "unchecked")


def test_check_that_cannot_compare_one_input_is_unchecked_and_names_it() -> None:
    @tf.custom_gradient
    def stairs(x, y):
        return x * tf.floor(y * 1e4), lambda dy: (dy * tf.floor(y * 1e4), 5 * dy * x)

    example = {"x": [1.0, 2.0], "y": [1.00003, 2.00003]}
    op = trace_one(stairs, inputs={"x": VECTOR, "y": VECTOR}, example=example)
    check = check_gradient(op, options=CheckOptions(max_seconds=20.0))
    assert check.verdict in ("unchecked", "fail")
    assert "'y'" in check.text


def test_check_without_time_is_unchecked_and_says_that_time_ran_out() -> None:
    ticks = iter(range(10**6))
    op = trace_one(tf.square, inputs={"x": VECTOR})
    check = check_gradient(op, options=CheckOptions(max_seconds=3.0), clock=lambda: float(next(ticks)))
    assert check.verdict == "unchecked"
    assert "within 3 s" in check.text
