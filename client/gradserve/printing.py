"""What the command line prints: a readable table, or JSON."""

import base64
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult, VjpResult
from gradserve.signature import TensorSpec
from gradserve.tensors import Array


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Printer:
    """Prints results to a stream."""

    as_json: bool
    """Whether to print one JSON value instead of tables."""
    stream: TextIO = dataclasses.field(default_factory=lambda: sys.stdout)
    """Where to."""

    def ops(self, infos: Sequence[OpInfo], *, detailed: bool) -> None:
        """Prints a line an op, or all that is known of each."""
        if self.as_json:
            self._json([_op_as_json(info) for info in infos])
        elif detailed:
            for info in infos:
                self._op(info)
        else:
            rows = [(i.name, str(i.version), i.gradient, i.device, _summary(i)) for i in infos]
            self._table(("op", "version", "gradient", "device", "documentation"), rows)

    def result(self, result: ForwardResult | VjpResult) -> None:
        """Prints outputs and gradients."""
        if self.as_json:
            self._json(_result_as_json(result))
            return
        rows = [("output", name, *_describe(array)) for name, array in result.outputs.items()]
        for kind, gradients in _gradients(result).items():
            for name, array in gradients.items():
                shown = _describe(array) if array is not None else ("", "", _status(result, name))
                rows.append((kind, name, *shown))
        self._table(("kind", "name", "dtype", "shape", "value"), rows)

    def health(self, service: str, status: str) -> None:
        """Prints the health of a service, or of the server."""
        if self.as_json:
            self._json({"service": service, "status": status})
        else:
            self._line(f"{service or 'server'}: {status}")

    def _op(self, info: OpInfo) -> None:
        self._line(f"{info.name} version {info.version}: {info.gradient} gradient, on {info.device or 'no device'}")
        if info.failure:
            self._line(f"  could not be loaded: {info.failure}")
        for line in info.documentation.splitlines():
            self._line(f"  {line}".rstrip())
        for spec in info.variables.values():
            self._line(f"  variable {spec.name}: {_spec_text(spec)}")
        for signature in info.signatures.values():
            self._line(f"  signature {signature.key}")
            for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
                for spec in specs.values():
                    self._line(f"    {kind} {spec.name}: {_spec_text(spec)}")

    def _table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Prints columns as wide as their widest line; a cell may have several lines."""
        cells = [[cell.splitlines() or [""] for cell in row] for row in [header, *rows]]
        widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)]
        for row in cells:
            for index in range(max(map(len, row))):
                parts = [cell[index] if index < len(cell) else "" for cell in row]
                self._line("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())

    def _json(self, value: Any) -> None:
        self._line(json.dumps(value, indent=2, allow_nan=False))

    def _line(self, text: str) -> None:
        print(text, file=self.stream)


def _gradients(result: ForwardResult | VjpResult) -> dict[str, Mapping[str, Array | None]]:
    if not isinstance(result, VjpResult):
        return {}
    return {"gradient": result.input_gradients, "variable gradient": result.variable_gradients}


def _summary(info: OpInfo) -> str:
    return f"FAILED: {info.failure}" if info.failure else info.documentation.partition("\n")[0]


def _spec_text(spec: TensorSpec) -> str:
    shape = "any shape" if spec.shape is None else str(spec.shape).replace("None", "any")
    return f"{spec.dtype.name} {shape}{'' if spec.differentiable else ', no gradient'}"


def _describe(array: Array) -> tuple[str, str, str]:
    dtype = "string" if array.dtype == object else array.dtype.name
    return dtype, str(array.shape), np.array2string(array, threshold=50, separator=", ")


def _status(result: ForwardResult | VjpResult, name: str) -> str:
    status = result.status[name] if isinstance(result, VjpResult) else ""
    return f"none ({status.replace('_', ' ')})"


def _op_as_json(info: OpInfo) -> dict[str, Any]:
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


def _result_as_json(result: ForwardResult | VjpResult) -> dict[str, Any]:
    value: dict[str, Any] = {
        "outputs": {name: _array_as_json(array) for name, array in result.outputs.items()},
        "version": result.version,
        "request_id": result.request_id,
        "timing_milliseconds": dict(result.timing),
    }
    if isinstance(result, VjpResult):
        value["input_gradients"] = {name: _array_as_json(array) for name, array in result.input_gradients.items()}
        value["variable_gradients"] = {n: _array_as_json(array) for n, array in result.variable_gradients.items()}
        value["status"] = dict(result.status)
    return value


def _array_as_json(array: Array | None) -> dict[str, Any] | None:
    if array is None:
        return None
    dtype, _, _ = _describe(array)
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
