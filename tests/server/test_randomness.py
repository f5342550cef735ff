"""Randomness: which graphs draw numbers that depend on no input."""

import numpy as np
import pytest
import tensorflow as tf
from tests.server.derivative_ops import chosen, custom, looped, nested
from tests.server.helpers import VECTOR, trace_one

SEED = tf.TensorSpec([2], tf.int32)
GENERATOR = tf.random.Generator.from_seed(1)

STATEFUL = {
    "uniform": lambda x: x * tf.random.uniform(tf.shape(x)),
    "uniform with a seed": lambda x: x * tf.random.uniform(tf.shape(x), seed=1),
    "integers": lambda x: x * tf.cast(tf.random.uniform(tf.shape(x), 0, 9, tf.int32), x.dtype),
    "normal": lambda x: x + tf.random.normal(tf.shape(x)),
    "truncated": lambda x: x + tf.random.truncated_normal(tf.shape(x)),
    "gamma": lambda x: x * tf.random.gamma(tf.shape(x), 1.0),
    "poisson": lambda x: x * tf.random.poisson(tf.shape(x), 1.0),
    "categorical": lambda x: x * tf.cast(tf.random.categorical(x[None], 1), x.dtype)[0],
    "shuffle": lambda x: tf.random.shuffle(x) * 1.0,
    "dropout": lambda x: tf.nn.dropout(x, 0.5),
    "old dropout": lambda x: tf.compat.v1.nn.dropout(x, rate=0.5),
    "in a loop": looped(lambda x: x * tf.random.uniform(tf.shape(x))),
    "in a branch": chosen(lambda x: x * tf.random.uniform(tf.shape(x))),
    "in a function": nested(lambda x: x * tf.random.uniform(tf.shape(x))),
    "in the rule alone": custom(tf.identity, lambda _, y, dy: dy * tf.random.uniform(tf.shape(y))),
}
STATELESS = {
    "uniform": lambda x, seed: x * tf.random.stateless_uniform(tf.shape(x), seed),
    "normal": lambda x, seed: x + tf.random.stateless_normal(tf.shape(x), seed),
    "dropout": lambda x, seed: tf.nn.experimental.stateless_dropout(x, 0.5, seed),
    "shuffle": lambda x, seed: tf.random.experimental.stateless_shuffle(x, seed) * 1.0,
    "nothing": lambda x, seed: x * tf.cast(seed[0], x.dtype),
    "in a loop": lambda x, seed: looped(lambda a: a * tf.random.stateless_uniform(tf.shape(a), seed))(x),
}


@pytest.mark.parametrize("function", STATEFUL.values(), ids=STATEFUL)
def test_graph_that_draws_from_a_generator_of_its_own_is_not_repeatable(function) -> None:
    assert not trace_one(function, inputs={"x": VECTOR}).repeatable


@pytest.mark.parametrize("function", STATELESS.values(), ids=STATELESS)
def test_graph_that_draws_from_a_seed_it_is_given_is_repeatable_and_repeats(function) -> None:
    op = trace_one(function, inputs={"x": VECTOR, "seed": SEED})
    inputs = [np.ones(100, np.float32), np.array([3, 4], np.int32)]
    assert op.repeatable
    np.testing.assert_array_equal(op.program.forward(inputs)[0], op.program.forward(inputs)[0])


def test_generator_object_that_an_op_moves_on_makes_it_not_repeatable() -> None:
    op = trace_one(lambda x: x * GENERATOR.uniform(tf.shape(x)), inputs={"x": VECTOR}, stateful=True)
    assert not op.repeatable
