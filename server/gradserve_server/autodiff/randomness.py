"""Randomness: whether a graph draws random numbers that depend on no input, so that equal calls differ."""

import re
from typing import Any

from gradserve_server.autodiff.concrete import nodes_of

_DRAWS = re.compile(
    r"Random(Crop|Gamma|Poisson|PoissonV2|Shuffle|StandardNormal|Uniform|UniformInt)|TruncatedNormal|Multinomial"
    r"|ParameterizedTruncatedNormal|SampleDistortedBoundingBox(V2)?|\w*CandidateSampler|Fractional(Avg|Max)Pool"
    r"|Stateful(RandomBinomial|StandardNormal|StandardNormalV2|TruncatedNormal|Uniform|UniformFullInt|UniformInt)"
    r"|RngReadAndSkip"
)
"""Types of operations; those of ``tf.random.stateless_*`` draw from a seed that they are given."""


def draws_random_numbers(trace: Any) -> bool:
    """Whether a concrete function, or one that it calls, draws from a generator of TensorFlow's own.

    Python code in the graph (``tf.numpy_function``) is not looked into.
    """
    return any(_DRAWS.fullmatch(node.op) for node in nodes_of(trace))
