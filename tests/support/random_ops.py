"""Random differentiable ops: compositions of smooth TensorFlow functions, with inputs at which they are well conditioned.

``python -m tests.support.random_ops 400`` checks so many correct ones, and the same with one gradient element off.
"""

import argparse
import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from gradserve_server.autodiff.tracing import trace
from gradserve_server.checking.gradient_check import CheckOptions, check_gradient
from gradserve_server.ops import Op, op

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
OFF_BY = {"float16": 0.1, "bfloat16": 0.1, "float32": 0.01, "float64": 0.01}
SHAPES = ((), (1,), (2,), (5,), (13,), (40,), (2, 3), (4, 4), (3, 7), (6, 6), (2, 3, 4), (1, 5, 2), (3, 1, 2))

UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": tf.sin,
    "cos": tf.cos,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "exp": lambda x: tf.exp(0.5 * x),
    "log": lambda x: tf.math.log(tf.square(x) + 0.5),
    "sqrt": lambda x: tf.sqrt(tf.square(x) + 1.0),
    "square": lambda x: 0.5 * tf.square(x),
    "softplus": tf.math.softplus,
    "erf": tf.math.erf,
    "atan": tf.atan,
    "asinh": tf.asinh,
    "rsqrt": lambda x: tf.math.rsqrt(tf.square(x) + 1.0),
    "reciprocal": lambda x: 1.0 / (2.0 + tf.square(x)),
    "softsign": tf.nn.softsign,
    "elu": tf.nn.elu,
    "gelu": tf.nn.gelu,
    "swish": tf.nn.silu,
    "cube": lambda x: 0.2 * x * x * x,
    "negative": tf.negative,
    "affine": lambda x: 1.5 * x - 0.25,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / (1.0 + tf.square(y)),
    "hypot": lambda x, y: tf.sqrt(tf.square(x) + tf.square(y) + 0.5),
    "gated": lambda x, y: x * tf.sigmoid(y),
    "atan2": lambda x, y: tf.atan(x / (1.5 + tf.square(y))),
}
SHAPING: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: tf.reduce_sum(x, axis=-1) if x.shape.rank else x,
    "mean": lambda x: tf.reduce_mean(x, axis=-1) if x.shape.rank else x,
    "sum_first": lambda x: tf.reduce_sum(x, axis=0, keepdims=True) if x.shape.rank else x,
    "softmax": lambda x: tf.nn.softmax(x) if x.shape.rank else x,
    "log_softmax": lambda x: tf.nn.log_softmax(x) if x.shape.rank else x,
    "logsumexp": lambda x: tf.reduce_logsumexp(x, axis=-1) if x.shape.rank else x,
    "reverse": lambda x: tf.reverse(x, [0]) if x.shape.rank else x,
    "cumsum": lambda x: tf.cumsum(x, axis=-1) if x.shape.rank else x,
    "flatten": lambda x: tf.reshape(x, [-1]),
    "gram": lambda x: tf.matmul(x, x, transpose_b=True) if len(x.shape) == 2 else x,
    "transpose": tf.transpose,
    "normalize": lambda x: (
        x / tf.sqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True) + 1.0) if x.shape.rank else x
    ),
    "concat": lambda x: tf.concat([x, tf.sin(x)], axis=0) if x.shape.rank else x,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RandomOp:
    """A correct random op, and inputs for it."""

    recipe: str
    """What it computes, for a reader."""
    dtype: Any
    """TensorFlow's dtype of all inputs and outputs."""
    function: Callable[..., Any]
    """From inputs to outputs."""
    inputs: Sequence[np.ndarray]
    """Where it is well conditioned."""

    def trace(self, fault: "Fault | None" = None) -> Op:
        """Traces it, with TensorFlow's gradient, one element of which may be off."""
        names = [f"x{i}" for i in range(len(self.inputs))]
        specs = {name: tf.TensorSpec(array.shape, self.dtype) for name, array in zip(names, self.inputs, strict=True)}
        call = _with_parameters(self.function if fault is None else fault.plant(self), names)
        examples = dict(zip(names, self.inputs, strict=True))
        return trace(op("random", inputs=specs, example=examples)(call), source="random", device="cpu:0")[0]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One element of the gradient of one input, off by a relative amount."""

    position: int
    element: int
    relative: float

    def plant(self, correct: RandomOp) -> Callable[..., Any]:
        """Returns the op with the fault in its rule."""

        @tf.custom_gradient
        def faulty(*inputs: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(inputs)
                outputs = correct.function(*inputs)

            def rule(*output_gradients: Any) -> list[Any]:
                found = tape.gradient(outputs, inputs, list(output_gradients))
                found = [tf.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]
                wrong = np.ones(correct.inputs[self.position].size)
                wrong[self.element] += self.relative
                shape = correct.inputs[self.position].shape
                wide = tf.cast(found[self.position], tf.float64) * wrong.reshape(shape)
                found[self.position] = tf.cast(wide, correct.dtype)
                return found

            return outputs, rule

        return faulty


def _with_parameters(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    def one(x0: Any) -> Any:
        return function(x0)

    def two(x0: Any, x1: Any) -> Any:
        return function(x0, x1)

    return {1: one, 2: two}[len(names)]


def random_op(rng: np.random.Generator, dtype: Any) -> RandomOp:
    """Returns a random op; its inputs are drawn until values and gradients have moderate sizes."""
    while True:
        shape = SHAPES[rng.integers(len(SHAPES))]
        count = int(rng.integers(1, 3))
        steps = [_step(rng) for _ in range(rng.integers(1, 5))]
        shapes = [shape, shape if rng.random() < 0.6 or not shape else shape[-1:]][:count]
        spread = rng.choice([0.3, 1.0, 1.0, 2.0])
        values = [spread * rng.standard_normal(s) for s in shapes]
        arrays = [
            np.asarray(value, ml_dtypes.bfloat16 if dtype == tf.bfloat16 else dtype.as_numpy_dtype) for value in values
        ]
        function = _compose(steps)
        if _is_well_conditioned(function, arrays):
            return RandomOp(recipe=" ".join(name for name, _ in steps), dtype=dtype, function=function, inputs=arrays)


def _step(rng: np.random.Generator) -> tuple[str, Callable[[Any, Any], Any]]:
    """Returns a function of what is there so far and of the second input."""
    kind = rng.choice(["unary", "binary", "shaping"], p=[0.55, 0.25, 0.2])
    table: dict[str, Any] = {"unary": UNARY, "binary": BINARY, "shaping": SHAPING}[str(kind)]
    name = str(rng.choice(list(table)))
    if kind == "binary":
        return name, table[name]
    return name, lambda x, _: table[name](x)


def _compose(steps: Sequence[tuple[str, Callable[[Any, Any], Any]]]) -> Callable[..., Any]:
    def composed(*inputs: Any) -> Any:
        value = inputs[0]
        for _, step in steps:
            value = step(
                value, inputs[-1] if len(inputs) > 1 else tf.reverse(inputs[0], list(range(inputs[0].shape.rank)))
            )
        return value

    return composed


def _is_well_conditioned(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> bool:
    """Whether the op runs, every input matters, and no value or gradient is out of proportion to the others."""
    inputs = [tf.constant(array.astype(np.float64)) for array in arrays]
    try:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(*inputs)
        gradients = tape.gradient(outputs, inputs)
    except (ValueError, tf.errors.OpError, IndexError):
        return False
    if any(gradient is None for gradient in gradients) or tf.size(outputs) > 64:
        return False
    top, *slopes = [float(tf.reduce_max(tf.abs(value))) for value in [outputs, *gradients]]
    return top < 30 and all(0.1 * max(top, 0.2) < slope < 30 for slope in slopes)


def random_fault(correct: RandomOp, rng: np.random.Generator) -> Fault:
    """Plants a fault in an element whose gradient is not negligible beside the others."""
    with tf.GradientTape() as tape:
        inputs = [tf.constant(array.astype(np.float64)) for array in correct.inputs]
        tape.watch(inputs)
        outputs = correct.function(*inputs)
    upstream = tf.constant(rng.standard_normal(outputs.shape))
    gradients = [np.abs(gradient.numpy()).reshape(-1) for gradient in tape.gradient(outputs, inputs, upstream)]
    position = int(rng.integers(len(gradients)))
    large = np.flatnonzero(gradients[position] >= 0.05 * gradients[position].max())
    return Fault(position=position, element=int(rng.choice(large)), relative=OFF_BY[correct.dtype.name])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a check said of one random op."""

    correct: RandomOp
    correct_verdict: str
    faulty_verdict: str
    texts: tuple[str, str]


def trials(count: int, seed: int, options: CheckOptions, dtypes: Sequence[Any] = DTYPES) -> Iterator[Trial]:
    """Checks so many random ops, of all dtypes by turns, right and with one element off."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        correct = random_op(rng, dtypes[number % len(dtypes)])
        fault = random_fault(correct, rng)
        right, wrong = (check_gradient(correct.trace(planted), options=options) for planted in (None, fault))
        yield Trial(
            correct=correct,
            correct_verdict=right.verdict,
            faulty_verdict=wrong.verdict,
            texts=(right.text, f"{fault}: {wrong.text}"),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks random ops, and prints what was found by dtype.")
    parser.add_argument("count", type=int, nargs="?", default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", type=int, default=3)
    parser.add_argument("--dtypes", type=tf.as_dtype, nargs="+", default=DTYPES)
    arguments = parser.parse_args()
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    started = time.monotonic()
    for trial in trials(arguments.count, arguments.seed, CheckOptions(points=arguments.points), arguments.dtypes):
        name = trial.correct.dtype.name
        counts[name, f"correct: {trial.correct_verdict}"] += 1
        counts[name, f"faulty: {trial.faulty_verdict}"] += 1
        if trial.correct_verdict != "pass" or trial.faulty_verdict != "fail":
            shapes = [array.shape for array in trial.correct.inputs]
            print(
                name, trial.correct.recipe, shapes, trial.correct_verdict, trial.faulty_verdict, *trial.texts, sep=" | "
            )
    for (name, what), number in sorted(counts.items()):
        print(f"{name:9} {what:20} {number}")
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
