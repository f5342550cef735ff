"""What the command line prints: a readable table, or JSON."""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from gradserve.gradient_check import Finding, GradientCheck
from gradserve.json_values import check_as_json, describe, op_as_json, result_as_json
from gradserve.op_info import OpInfo
from gradserve.results import ForwardResult
from gradserve.signature import TensorSpec


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
            self._json([op_as_json(info) for info in infos])
        elif detailed:
            for info in infos:
                self._op(info)
        else:
            rows = [(i.name, str(i.version), i.gradient, i.device, _summary(i)) for i in infos]
            self._table(("op", "version", "gradient", "device", "documentation"), rows)

    def result(self, result: ForwardResult) -> None:
        """Prints outputs and derivatives."""
        if self.as_json:
            self._json(result_as_json(result))
            return
        rows = [("output", name, *describe(array)) for name, array in result.outputs.items()]
        for kind, derivatives in result.derivatives().items():
            for name, (array, status) in derivatives.items():
                shown = describe(array) if array is not None else ("", "", f"none ({status.replace('_', ' ')})")
                rows.append((kind, name, *shown))
        self._table(("kind", "name", "dtype", "shape", "value"), rows)

    def checks(self, checks: Mapping[str, GradientCheck]) -> None:
        """Prints what checks of gradients found, by op and signature."""
        if self.as_json:
            self._json({name: check_as_json(check) for name, check in checks.items()})
            return
        for name, check in checks.items():
            verdict = f"{check.verdict}: "
            self._line(f"{name}: {verdict}{check.text.partition(verdict)[2] or check.text}")
            rows = [_finding_row(finding) for finding in check.findings]
            if rows:
                self._table(("  verdict", "test", "input", "element", "wanted", "got", "tolerance"), rows)
            for text in dict.fromkeys(
                finding.text for finding in check.findings if finding.verdict in ("fail", "departs")
            ):
                self._line(f"  {text}")

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
        for line in _facts(info):
            self._line(f"  {line}")
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


def _facts(info: OpInfo) -> list[str]:
    """Returns what a caller should know of an op beside its signatures."""
    facts = [] if info.repeatable else ["not repeatable: it draws random numbers that depend on no input"]
    facts += ["stateful: a call changes it"] if info.stateful else []
    facts += ["gradient not linear in the output gradients"] if info.linear is False else []
    return facts + ([f"last check: {info.check}: {info.check_text}"] if info.check else [])


def _summary(info: OpInfo) -> str:
    return f"FAILED: {info.failure}" if info.failure else info.documentation.partition("\n")[0]


def _spec_text(spec: TensorSpec) -> str:
    shape = "any shape" if spec.shape is None else str(spec.shape).replace("None", "any")
    return f"{spec.dtype.name} {shape}{'' if spec.differentiable else ', no gradient'}"


def _finding_row(finding: Finding) -> tuple[str, ...]:
    numbers = ["" if math.isnan(number) else f"{number:.7g}" for number in (finding.wanted, finding.got)]
    place = ", ".join(map(str, finding.index)) if numbers[1] else ""
    tolerance = f"{finding.tolerance:.2g}" if numbers[1] else ""
    return f"  {finding.verdict}", finding.test, finding.input, f"[{place}]" if place else "", *numbers, tolerance
