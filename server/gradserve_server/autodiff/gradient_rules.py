"""Gradient rules: what TensorFlow's registry holds for an operation. The one reader of its private parts."""

import inspect
from collections.abc import Collection
from typing import Any

import tensorflow as tf

# No public call tells whether an operation has a gradient rule; running it would trace, and prints where it has none.
from tensorflow.python.framework import ops

from gradserve_server.autodiff.concrete import nodes_of

_CUT = frozenset(
    [
        *("StopGradient", "ZerosLike", "OnesLike"),
        *("Round", "Rint", "Floor", "Ceil", "Sign", "FloorDiv", "TruncateDiv"),
        *("StatelessRandomBinomial", "StatelessRandomPoisson"),
    ]
)
"""Operations whose derivative is zero wherever it exists, or is stopped on purpose.

What else the registry marks as NotDifferentiable, and returns floating-point numbers, does have a derivative (a range or
a one-hot vector, the gradients of a resized or quantised image, Python code) or changes it silently, so it is none of these.
"""

_SHAPE_OR_STEP: dict[str, frozenset[int]] = {
    "FakeQuantWithMinMaxArgsGradient": frozenset({1}),
    "FakeQuantWithMinMaxVarsGradient": frozenset({1, 2, 3}),
    "FakeQuantWithMinMaxVarsPerChannelGradient": frozenset({1, 2, 3}),
    "ResizeBicubicGrad": frozenset({1}),
    "ResizeBilinearGrad": frozenset({1}),
    "ScaleAndTranslateGrad": frozenset({1}),
}
"""Inputs of which an operation without a rule takes the shape alone, or on which side of a bound they are."""

_DROPPED: dict[str, frozenset[int]] = {
    "Betainc": frozenset({0, 1}),
    "FusedBatchNorm": frozenset({3, 4}),
    "FusedBatchNormV2": frozenset({3, 4}),
    "FusedBatchNormV3": frozenset({3, 4}),
    "ImageProjectiveTransformV2": frozenset({1}),
    "ImageProjectiveTransformV3": frozenset({1, 3}),
    "MatrixDiagPartV2": frozenset({2}),
    "MatrixDiagPartV3": frozenset({2}),
    "MatrixDiagV2": frozenset({4}),
    "MatrixDiagV3": frozenset({4}),
    "Polygamma": frozenset({0}),
    "QuantizeAndDequantizeV2": frozenset({1, 2}),
    "QuantizeAndDequantizeV3": frozenset({1, 2}),
    "ScaleAndTranslate": frozenset({2, 3}),
    "Zeta": frozenset({0}),
}
"""Inputs for which the rule of an operation returns no gradient, although the operation is smooth in them."""

_REFUSES = frozenset({"EagerPyFunc", "PreventGradient"})
"""Operations whose rule always raises, or, for ``tf.py_function``, raises when it is differentiated once more."""

_TRAINABLE = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128})
_CUSTOM = ("CustomGradient-", "LoadedGradient-")


def is_smooth(dtype: Any) -> bool:
    """Whether a derivative can pass a tensor of a dtype; lists of tensors, as loops make them, are variants."""
    return bool(dtype.is_floating or dtype.is_complex or dtype == tf.variant)


def cut_inputs(operation: Any) -> Collection[int]:
    """Returns the positions of the inputs of an operation for which its derivative is zero, or stopped."""
    every = range(len(operation.inputs))
    return every if operation.type in _CUT else _SHAPE_OR_STEP.get(operation.type, ())


def lacks_rule(operation: Any) -> Collection[int]:
    """Returns the positions of those inputs of an operation for which TensorFlow has no rule."""
    every = range(len(operation.inputs))
    dtypes = [tensor.dtype for tensor in operation.outputs]
    if any(is_smooth(dtype) and dtype != tf.variant and dtype not in _TRAINABLE for dtype in dtypes):
        return every  # TensorFlow stops silently at the smallest floating-point dtypes
    overridden = override_of(operation)
    rule = _lookup(overridden or operation.type)
    if rule is None or operation.type in _REFUSES or _is_of_recomputation(rule):
        return every
    return () if overridden else _DROPPED.get(operation.type, ())


def override_of(operation: Any) -> str:
    """Returns the name of the rule that stands in the place of that of the operation's type; empty if none does."""
    try:
        return str(operation.get_attr("_gradient_op_type").decode())
    except ValueError:
        return ""


def is_custom(operation: Any) -> bool:
    """Whether an operation carries the rule of a ``tf.custom_gradient``."""
    return operation.type == "IdentityN" and override_of(operation).startswith(_CUSTOM)


def has_custom_rule(trace: Any) -> bool:
    """Whether a rule that is not TensorFlow's own stands anywhere in a concrete function, or in one that it calls.

    It may come by ``tf.custom_gradient``, or by ``tf.RegisterGradient`` for a compiled op.
    """
    nodes = nodes_of(trace)
    rules = map(_lookup, {node.op for node in nodes})
    foreign = any(rule is not None and not rule.__module__.startswith("tensorflow.") for rule in rules)
    return foreign or any("_gradient_op_type" in node.attr for node in nodes)


def differentiated_inputs(operation: Any) -> Collection[int]:
    """Returns which inputs of a ``tf.custom_gradient`` its rule gives gradients for.

    Its node passes on ``[results..., arguments..., variables...]``. Consumers do not tell how many of them are results,
    since TensorFlow makes zeros like the others too; the rule knows. If it does not say, the answer is every input, which
    may block too much but hides no path.
    """
    every = range(len(operation.inputs))
    rule = _lookup(override_of(operation))
    if rule is None or _is_of_recomputation(rule):
        return every
    returned = getattr(_closure(rule).get("func"), "structured_outputs", None)  # of a rule that came with a SavedModel
    if isinstance(returned, list | tuple) and len(returned) == len(every):
        return [index for index in every if returned[index] is not None]
    return every[_closure(_closure(rule).get("tape_grad_fn")).get("flat_result_len", 0) :]


def _closure(function: Any) -> dict[str, Any]:
    return dict(inspect.getclosurevars(function).nonlocals) if inspect.isfunction(function) else {}


def _is_of_recomputation(rule: Any) -> bool:
    """Whether a rule is that of a gradient under ``tf.recompute_grad``, which always raises.

    That gradient depends on inputs that it is not given as arguments, so that no path shows.
    """
    written = _closure(_closure(rule).get("tape_grad_fn")).get("grad_fn")
    name = str(getattr(written, "__qualname__", ""))
    return name.startswith("recompute_grad.") and name.endswith(".transpose")


def _lookup(name: str) -> Any:
    """Returns a rule; None if there is none, or the type is registered as one that has no derivative."""
    try:
        return ops.gradient_registry.lookup(name)
    except LookupError:
        return None
