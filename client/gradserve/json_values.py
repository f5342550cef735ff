"""What the command line prints as JSON: plain values for ops, results and checks."""

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gradserve.gradient_check import GradientCheck
from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult, HvpResult, JacobianResult, JvpResult, VjpResult
from gradserve.signature import TensorSpec
from gradserve.tensors import Array


def describe(array: Array) -> tuple[str, str, str]:
    """Returns an array's dtype, shape and values as text."""
    dtype = "string" if array.dtype == object else array.dtype.name
    return dtype, str(array.shape), np.array2string(array, threshold=50, separator=", ")


def op_as_json(info: OpInfo) -> dict[str, Any]:
    """Returns what is known of an op for JSON."""
    return {
        "name": info.name,
        "version": info.version,
        "documentation": info.documentation,
        "gradient": info.gradient,
        "elementwise": info.elementwise,
        "stateful": info.stateful,
        "device": info.device,
        "fingerprint": info.fingerprint,
        "failure": info.failure,
        "repeatable": info.repeatable,
        "linear": info.linear,
        "traces": info.traces,
        "check": info.check,
        "check_text": info.check_text,
        "variables": _specs_as_json(info.variables),
        "signatures": {
            key: {"inputs": _specs_as_json(s.inputs), "outputs": _specs_as_json(s.outputs)}
            for key, s in info.signatures.items()
        },
    }


def _specs_as_json(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    return {
        name: {"dtype": spec.dtype.name, "shape": spec.shape, "differentiable": spec.differentiable}
        for name, spec in specs.items()
    }


def result_as_json(result: ForwardResult) -> dict[str, Any]:
    """Returns a result for JSON."""
    value: dict[str, Any] = {
        "outputs": _arrays_as_json(result.outputs),
        "version": result.version,
        "request_id": result.request_id,
        "timing_milliseconds": dict(result.timing),
    }
    if isinstance(result, VjpResult):
        value["input_gradients"] = _arrays_as_json(result.input_gradients)
        value["variable_gradients"] = _arrays_as_json(result.variable_gradients)
        value["status"] = dict(result.status)
    elif isinstance(result, JvpResult):
        value |= {"output_tangents": _arrays_as_json(result.output_tangents), "status": dict(result.status)}
    elif isinstance(result, HvpResult):
        value |= {"products": _arrays_as_json(result.products), "status": dict(result.status)}
    elif isinstance(result, JacobianResult):
        value["jacobians"] = {output: _arrays_as_json(by_input) for output, by_input in result.jacobians.items()}
        value["status"] = {output: dict(by_input) for output, by_input in result.status.items()}
    return value


def check_as_json(check: GradientCheck) -> dict[str, Any]:
    """Returns what a check found for JSON; numbers that there are none of are null."""
    findings = [dataclasses.asdict(finding) for finding in check.findings]
    for finding in findings:
        for name in ("wanted", "got", "tolerance"):
            number = finding[name]
            finding[name] = None if math.isnan(number) else _finite_or_name(number)
    return {
        "verdict": check.verdict,
        "text": check.text,
        "points": check.points,
        "signature": check.signature,
        "version": check.version,
        "fingerprint": check.fingerprint,
        "findings": findings,
    }


def _arrays_as_json(arrays: Mapping[str, Array | None]) -> dict[str, Any]:
    return {name: _array_as_json(array) for name, array in arrays.items()}


def _array_as_json(array: Array | None) -> dict[str, Any] | None:
    if array is None:
        return None
    dtype, _, _ = describe(array)
    return {"dtype": dtype, "shape": list(array.shape), "value": _to_lists(array)}


def _to_lists(array: Array) -> Any:
    """Returns nested lists that JSON can hold, as protobuf's JSON has them: NaN and infinities as strings, bytes as base64.

    Complex numbers become [real, imaginary].
    """
    if array.dtype == object:
        return _map(lambda item: base64.b64encode(item).decode(), array)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _map(_finite_or_name, array)
    return array.tolist()


def _map(function: Callable[[Any], Any], array: Array) -> Any:
    mapped = np.empty(array.shape, dtype=object)
    mapped.reshape(-1)[:] = [function(item) for item in array.reshape(-1).tolist()]
    return mapped.tolist()


def _finite_or_name(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
