"""Rows: how many gradients a call may ask for at once, by their number, their shapes, and their bytes.

What would be too much is refused before it is computed, as far as it can be known by then: sizes of outputs are not.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

from gradserve.errors import ResourceExhausted, quote
from gradserve.signature import TensorSpec
from gradserve.tensors import Array, element_count
from gradserve_server.ops import Op
from gradserve_server.requests import EvaluationRequest, check_combined

_COMPUTED_PER_RESPONSE = 4
"""How many times the bytes of the largest response may be computed for one: gradients that nobody asked for come too."""
_LARGEST_ITEM_BYTES = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one call may ask for."""

    max_rows: int
    """Rows of stacked output gradients, or of all Jacobians together."""
    max_response_bytes: int
    """Bytes of a response's tensors."""

    @property
    def max_computed_bytes(self) -> int:
        """Bytes of all gradients that are computed at once, and of the output gradients that they are computed from."""
        return _COMPUTED_PER_RESPONSE * self.max_response_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What the rows of one call consist of."""

    op: Op
    """The op."""
    inputs: Sequence[Array]
    """Its inputs, in order."""
    request: EvaluationRequest
    """What was asked for."""
    limits: Limits
    """The most that may be asked for."""

    def check_stack(self) -> None:
        """Refuses a stack of which the request alone tells that it is too large.

        Raises:
            InvalidRequest: No tensor can have the shape of a stacked gradient (BAD_SHAPE).
            ResourceExhausted: TOO_MANY_ROWS, or RESPONSE_TOO_LARGE.
        """
        stack, place = self.request.stack, f"op {quote(self.op.name)}"
        self._check_count(stack, self._most_of_stack(0))
        check_combined(tuple(array.shape for array in self.inputs), f"{place}, inputs", rows=stack)
        for spec, array in self._asked():
            element_count((stack, *array.shape), spec.dtype, f"{place}, gradient of {quote(spec.name)}")

    def check_output_gradients(self, outputs: Mapping[str, Array]) -> None:
        """Refuses a stack whose output gradients, spread over these outputs, are too large: they were not pulled back.

        Raises:
            ResourceExhausted: Reason TOO_MANY_ROWS.
        """
        row_bytes = sum(array.nbytes for _, array in self._differentiable(outputs))
        self._check_count(self.request.stack, self._most_of_stack(row_bytes))

    def most_of_jacobian(self) -> int:
        """Returns how many rows Jacobians may have, all together.

        Raises:
            InvalidRequest: So many, and of inputs of these shapes, could not be computed (BAD_SHAPE).
        """
        limits = self.limits
        place = f"op {quote(self.op.name)}, inputs"
        check_combined(tuple(array.shape for array in self.inputs), place, rows=limits.max_rows)
        return min(
            limits.max_rows,
            limits.max_response_bytes // max(1, self._response_bytes()),
            limits.max_computed_bytes // max(1, self._computed_bytes()),
            math.isqrt(
                limits.max_computed_bytes // _LARGEST_ITEM_BYTES
            ),  # unit output gradients are as many as they are long
        )

    def check_jacobian(self, outputs: Mapping[str, Array]) -> None:
        """Refuses Jacobians of these outputs that have more rows than may be: they were not computed.

        Raises:
            InvalidRequest: No tensor can have the shape of a Jacobian (BAD_SHAPE).
            ResourceExhausted: TOO_MANY_ROWS, or RESPONSE_TOO_LARGE.
        """
        self._check_count(sum(array.size for _, array in self._differentiable(outputs)), self.most_of_jacobian())
        for output, value in self._differentiable(outputs):
            for spec, array in self._asked():
                place = f"op {quote(self.op.name)}, Jacobian of {quote(output.name)} by {quote(spec.name)}"
                element_count((*value.shape, *array.shape), spec.dtype, place)

    def _check_count(self, rows: int, most: int) -> None:
        limits = self.limits
        size = rows * self._response_bytes()
        if rows <= limits.max_rows and size > limits.max_response_bytes:
            raise response_too_large(limits.max_response_bytes, size)
        if rows > most:
            setting = "--max-rows" if most == limits.max_rows else "--max-message-bytes"
            raise ResourceExhausted(
                f"op {quote(self.op.name)}: too many rows: wanted at most {most}, got {rows}; ask for fewer at once, or "
                f"raise {setting} of the server",
                reason="TOO_MANY_ROWS",
                facts={"wanted": str(most), "got": str(rows)},
            )

    def _most_of_stack(self, output_gradient_bytes: int) -> int:
        row_bytes = max(1, self._computed_bytes(), output_gradient_bytes)
        return min(self.limits.max_rows, self.limits.max_computed_bytes // row_bytes)

    def _differentiable(self, outputs: Mapping[str, Array]) -> list[tuple[TensorSpec, Array]]:
        return [(spec, outputs[name]) for name, spec in self.op.signature.outputs.items() if spec.differentiable]

    def _asked(self) -> list[tuple[TensorSpec, Array]]:
        """Returns the inputs that a gradient is sent for, as tensors of a floating-point or complex dtype have them."""
        differentiate, zeros = self.request.differentiate, self.request.zero_unconnected
        return [
            (spec, array)
            for spec, array in zip(self.op.signature.inputs.values(), self.inputs, strict=True)
            if (not differentiate or spec.name in differentiate)
            and (spec.differentiable or (zeros and spec.dtype.is_differentiable))
        ]

    def _response_bytes(self) -> int:
        """Returns how many bytes of each row are sent."""
        trainable = [name for name, spec in self.op.variables.items() if spec.differentiable]
        sent = trainable if self.request.zero_unconnected else self.op.connected_variables
        return sum(array.nbytes for _, array in self._asked()) + self._variable_bytes(sent)

    def _computed_bytes(self) -> int:
        """Returns how many bytes of each row are computed."""
        of_inputs = sum(
            array.nbytes
            for spec, array in zip(self.op.signature.inputs.values(), self.inputs, strict=True)
            if spec.differentiable
        )
        return of_inputs + self._variable_bytes(self.op.connected_variables)

    def _variable_bytes(self, names: Collection[str]) -> int:
        specs = [self.op.variables[name] for name in names] if self.request.variable_gradients else []
        return sum(math.prod(size or 0 for size in spec.shape or ()) * spec.dtype.numpy.itemsize for spec in specs)


def response_too_large(wanted: int, got: int) -> ResourceExhausted:
    """Returns the error for a response whose tensors have more bytes than a message may."""
    return ResourceExhausted(
        f"the response is larger than a message may be: wanted at most {wanted} bytes, got {got}; "
        "send less, or raise --max-message-bytes of the server",
        reason="RESPONSE_TOO_LARGE",
        facts={"wanted": str(wanted), "got": str(got)},
    )
