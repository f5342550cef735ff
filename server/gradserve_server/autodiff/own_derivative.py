"""The own derivative: what TensorFlow makes of an op's forward pass where no ``tf.custom_gradient`` stands in the way.

It shows where a surrogate rule departs from the derivative.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradserve_server.autodiff.dependence import Dependence, dependence_of
from gradserve_server.autodiff.kernel_errors import kernel_text
from gradserve_server.autodiff.undecorated import RecursiveFunction, undecorated


class NoOwnDerivative(Exception):
    """TensorFlow has no derivative of its own for an op."""

    def __init__(self, reason: str) -> None:
        """Describes why, in one line without paths."""
        self.reason = reason
        super().__init__(reason)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnVjp:
    """The VJP of an op by TensorFlow's own rules."""

    trace: Any
    """Concrete function of the flat inputs, and of one output gradient per floating-point or complex output in its shape.

    Returns one gradient per connected input, in its dtype and shape."""
    connected: tuple[int, ...]
    """Positions of the floating-point and complex inputs on which such an output depends in any way.

    Where it does so only through steps (round, sign, a comparison), a shape or ``tf.stop_gradient``, the gradient is
    zeros."""


def trace_own_vjp(forward_trace: Any, *, device: str) -> OwnVjp:
    """Traces the VJP that an op would have without its custom rules.

    Args:
        forward_trace: Concrete function of flat inputs that returns a flat list of outputs. It is not changed.
        device: Device such as "cpu:0", where the graph is placed.

    Raises:
        NoOwnDerivative: There is none, or TensorFlow would give a part of a sum for one of the inputs.
    """
    try:
        forward = _Forward(trace=forward_trace, device=device, graph=undecorated(forward_trace))
    except RecursiveFunction as error:
        raise NoOwnDerivative("one of its functions calls itself") from error
    dependence = dependence_of(forward.concrete(forward.outputs, forward.input_specs))
    targets = [index for index, tensor in enumerate(forward_trace.outputs) if _has_gradient(tensor)]
    if not targets:
        raise NoOwnDerivative("none of its outputs is of a floating-point or complex dtype")
    sources = [index for index, spec in enumerate(forward.input_specs) if _has_gradient(spec)]
    connected = [source for source in sources if any(dependence.depends(target, source) for target in targets)]
    return _differentiate(forward, targets, {source: _is_smooth(dependence, targets, source) for source in connected})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    trace: Any
    device: str
    graph: tuple[Any, list[str], list[str]]

    @property
    def input_specs(self) -> list[Any]:
        inputs = self.trace.inputs[: len(self.trace.inputs) - len(self.trace.captured_inputs)]
        return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]

    def outputs(self, *inputs: Any) -> list[Any]:
        """Returns the outputs, in the graph that is being built."""
        graph, input_names, output_names = self.graph
        captured = map(tf.convert_to_tensor, self.trace.captured_inputs)  # variables and constants that it found made
        given = dict(zip(input_names, [*inputs, *captured], strict=True))
        return list(tf.graph_util.import_graph_def(graph, input_map=given, return_elements=output_names, name="own"))

    def concrete(self, function: Any, specs: Sequence[Any]) -> Any:
        """Traces a function on the device."""

        def placed(*tensors: Any) -> Any:
            with tf.device(self.device):
                return function(*tensors)

        return tf.function(placed, autograph=False).get_concrete_function(*specs)


def _is_smooth(dependence: Dependence, targets: Sequence[int], source: int) -> bool:
    """Whether there is a derivative to compute, having refused one that TensorFlow would leave out, or leave parts of."""
    found = [dependence.blockers(target, source) for target in targets]
    missing = sorted(frozenset[str]().union(*(blockers for blockers in found if blockers is not None)))
    if missing:
        raise NoOwnDerivative(
            f"TensorFlow has no gradient rule for {', '.join(missing)}, on the way from input {source} to an output"
        )
    return any(blockers is not None for blockers in found)


def _differentiate(forward: _Forward, targets: Sequence[int], connected: dict[int, bool]) -> OwnVjp:
    """Traces the VJP with respect to the connected inputs, of which some may not be smooth."""
    inputs = forward.input_specs

    def vjp(*tensors: Any) -> list[Any]:
        given, output_gradients = tensors[: len(inputs)], list(tensors[len(inputs) :])
        outputs = forward.outputs(*given)
        sources = [given[source] for source in connected]
        found = tf.gradients([outputs[target] for target in targets], sources, grad_ys=output_gradients)
        return [
            _dense(gradient, source, number, smooth)
            for gradient, source, (number, smooth) in zip(found, sources, connected.items(), strict=True)
        ]

    upstream = [forward.trace.outputs[target] for target in targets]
    specs = [*inputs, *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in upstream)]
    try:
        trace = forward.concrete(vjp, specs)
    except NoOwnDerivative:
        raise
    except Exception as error:  # rules are Python code that refuse in many ways
        raise NoOwnDerivative(f"TensorFlow cannot differentiate it: {kernel_text(str(error))}") from error
    return OwnVjp(trace=trace, connected=tuple(connected))


def _dense(gradient: Any, source: Any, number: int, smooth: bool) -> Any:
    if gradient is None:
        if smooth:
            raise NoOwnDerivative(f"a rule of TensorFlow gives no gradient for input {number}, on which it depends")
        return tf.zeros_like(source)
    if isinstance(gradient, tf.IndexedSlices):  # as from a gather
        gradient = tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, tf.shape(source))
    return tf.convert_to_tensor(gradient)


def _has_gradient(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)
