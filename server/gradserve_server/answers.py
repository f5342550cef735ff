"""Answers: what an op's program returned, by name, each array checked against what the op promised.

TensorFlow does not check the gradients that an op's rule returns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradserve.errors import OpContractError, quote
from gradserve.signature import Shape, TensorSpec, shape_mismatch
from gradserve.tensors import Array
from gradserve.v1 import gradient_service_pb2 as pb
from gradserve_server.ops import Op
from gradserve_server.requests import EvaluationRequest
from gradserve_server.responses import MaybeGradient


def name_outputs(op: Op, outputs: Sequence[Array]) -> dict[str, Array]:
    """Returns the outputs by name, having compared each with the signature.

    Raises:
        OpContractError: An output has another shape than the trace promised (OUTPUT_SHAPE_MISMATCH).
    """
    named = dict(zip(op.signature.outputs, outputs, strict=True))
    for name, spec in op.signature.outputs.items():
        if not spec.accepts_shape(named[name].shape):
            raise OpContractError(
                f"op {quote(op.name)}: output {quote(name)} must have the shape that the op promised when it was traced: "
                f"wanted {spec.shape}, got {named[name].shape}; the fault is in the op, not in the request",
                reason="OUTPUT_SHAPE_MISMATCH",
                facts={"op": op.name, "output": name, "wanted": str(spec.shape), "got": str(named[name].shape)},
            )
    return named


def fill_missing(given: Sequence[Array | None], outputs: Mapping[str, TensorSpec]) -> list[Array]:
    """Returns an array for each differentiable output: what was given, else zeros; ones if nothing was given.

    What was not given is a rank-0 array, which the trace spreads over the output.
    """
    value = 1 if all(array is None for array in given) else 0
    specs = [spec for spec in outputs.values() if spec.differentiable]
    return [
        np.asarray(value, dtype=spec.dtype.numpy) if array is None else array
        for array, spec in zip(given, specs, strict=True)
    ]


def check_output_gradient_shapes(request: EvaluationRequest, outputs: Mapping[str, Array], op_name: str) -> None:
    """Refuses output gradients of another shape than their outputs turned out to have.

    Raises:
        InvalidRequest: Reason SHAPE_MISMATCH.
    """
    for name, gradient in request.output_gradients.items():
        wanted = stacked_shape(outputs[name].shape, request)
        if gradient.shape != wanted:
            place = f"op {quote(op_name)}, output gradient {quote(name)}"
            stacked = f"{request.stack} times " if request.stack else ""
            raise shape_mismatch(place, wanted=f"{wanted}, {stacked}the shape of the output", got=gradient.shape)


def name_input_gradients(
    op: Op, inputs: Sequence[Array], gradients: Sequence[Array], request: EvaluationRequest
) -> dict[str, MaybeGradient]:
    """Returns the gradient of each input asked for, having checked all of them against their inputs.

    Args:
        op: The op.
        inputs: Its inputs, in order.
        gradients: What its program returned: a gradient for each differentiable input, in order, and maybe more.
        request: What was asked for.

    Raises:
        OpContractError: A gradient has another shape or dtype than its input.
    """
    remaining = iter(gradients)
    named: dict[str, MaybeGradient] = {}
    for (name, spec), array in zip(op.signature.inputs.items(), inputs, strict=True):
        gradient = next(remaining) if spec.differentiable else None
        shape = stacked_shape(array.shape, request)
        if gradient is not None:
            _check_gradient(op, ("input", name), gradient, shape, array.dtype)
        if not request.differentiate or name in request.differentiate:
            named[name] = _wrap(gradient, spec, shape, request)
    return named


def name_variable_gradients(op: Op, gradients: Sequence[Array], request: EvaluationRequest) -> dict[str, MaybeGradient]:
    """Returns the gradient of each trainable variable, having checked it against the variable.

    Args:
        op: The op.
        gradients: What its program returned: one for each differentiable input, then one for each connected variable.
        request: What was asked for.

    Raises:
        OpContractError: A gradient has another shape or dtype than its variable.
    """
    remaining = iter(gradients[sum(spec.differentiable for spec in op.signature.inputs.values()) :])
    named: dict[str, MaybeGradient] = {}
    for name, spec in op.variables.items():
        if not spec.differentiable:
            continue
        gradient = next(remaining) if name in op.connected_variables else None
        least = tuple(size or 0 for size in spec.shape or ())
        shape = stacked_shape(least, request)
        if gradient is not None:
            own_shape = gradient.shape[1:] if request.stack else gradient.shape
            wanted = stacked_shape(own_shape if spec.accepts_shape(own_shape) else least, request)
            _check_gradient(op, ("variable", name), gradient, wanted, spec.dtype.numpy)
        named[name] = _wrap(gradient, spec, shape, request)
    return named


def name_output_tangents(
    op: Op, outputs: Mapping[str, Array], tangents: Sequence[Array | None], request: EvaluationRequest
) -> dict[str, MaybeGradient]:
    """Returns the tangent of each output, having checked those that there are against their outputs.

    Args:
        op: The op.
        outputs: Its outputs by name.
        tangents: What its program returned: an entry for each differentiable output, in order.
        request: What was asked for.

    Raises:
        OpContractError: A tangent has another shape or dtype than its output.
    """
    remaining = iter(tangents)
    named: dict[str, MaybeGradient] = {}
    for name, spec in op.signature.outputs.items():
        tangent = next(remaining) if spec.differentiable else None
        if tangent is not None:
            _check_gradient(op, ("output", name), tangent, outputs[name].shape, spec.dtype.numpy)
        named[name] = _wrap(tangent, spec, outputs[name].shape, request)
    return named


def name_products(
    op: Op, inputs: Sequence[Array], products: Sequence[Array | None], request: EvaluationRequest
) -> dict[str, MaybeGradient]:
    """Returns the Hessian-vector product of each input, having checked those that there are against their inputs.

    Args:
        op: The op.
        inputs: Its inputs, in order.
        products: What its program returned: an entry for each input, in order.
        request: What was asked for.

    Raises:
        OpContractError: A product has another shape or dtype than its input.
    """
    named: dict[str, MaybeGradient] = {}
    for (name, spec), array, product in zip(op.signature.inputs.items(), inputs, products, strict=True):
        if product is not None:
            _check_gradient(op, ("input", name), product, array.shape, array.dtype)
        named[name] = _wrap(product, spec, array.shape, request)
    return named


def name_jacobians(
    op: Op,
    inputs: Sequence[Array],
    outputs: Mapping[str, Array],
    rows: Sequence[Sequence[Array | None]],
    request: EvaluationRequest,
) -> dict[tuple[str, str], MaybeGradient]:
    """Returns the Jacobian of each differentiable output by each input asked for, in the shape of the one and then the other.

    Args:
        op: The op.
        inputs: Its inputs, in order.
        outputs: Its outputs by name.
        rows: What its program returned: for each differentiable output, an entry for each input.
        request: What was asked for.

    Raises:
        OpContractError: A row has another shape or dtype than its input.
    """
    named: dict[tuple[str, str], MaybeGradient] = {}
    differentiable = [name for name, spec in op.signature.outputs.items() if spec.differentiable]
    for output, of_output in zip(differentiable, rows, strict=True):
        for (name, spec), array, found in zip(op.signature.inputs.items(), inputs, of_output, strict=True):
            shape = (*outputs[output].shape, *array.shape)
            if found is not None:
                _check_gradient(op, ("input", name), found, (outputs[output].size, *array.shape), array.dtype)
            if not request.differentiate or name in request.differentiate:
                named[output, name] = _wrap(None if found is None else found.reshape(shape), spec, shape, request)
    return named


def stacked_shape(shape: tuple[int, ...], request: EvaluationRequest) -> tuple[int, ...]:
    """Returns the shape of a gradient, or of an output gradient, with the leading axis that a request asks for."""
    return (request.stack, *shape) if request.stack else shape


def _wrap(
    gradient: Array | None, spec: TensorSpec, shape: tuple[int, ...], request: EvaluationRequest
) -> MaybeGradient:
    if gradient is not None:
        return MaybeGradient(status=pb.GRADIENT_STATUS_DENSE, array=gradient)
    if not spec.dtype.is_differentiable:
        return MaybeGradient(status=pb.GRADIENT_STATUS_NOT_DIFFERENTIABLE)
    if request.zero_unconnected:
        return MaybeGradient(status=pb.GRADIENT_STATUS_DENSE, array=np.zeros(shape, spec.dtype.numpy))
    return MaybeGradient(status=pb.GRADIENT_STATUS_UNCONNECTED)


def _check_gradient(op: Op, place: tuple[str, str], gradient: Array, shape: Shape, dtype: Any) -> None:
    kind, name = place
    for what, wanted, got in (("shape", shape, gradient.shape), ("dtype", dtype, gradient.dtype)):
        if got != wanted:
            raise OpContractError(
                f"op {quote(op.name)}: its gradient function must return a gradient of {kind} {quote(name)} in its {what}: "
                f"wanted {wanted}, got {got}; the fault is in the op, not in the request",
                reason=f"GRADIENT_{what.upper()}_MISMATCH",
                facts={"op": op.name, kind: name, "wanted": str(wanted), "got": str(got)},
            )
