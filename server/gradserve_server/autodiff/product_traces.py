"""Traces of an op's products: each made when it is first asked for, on the thread of the op's device, and kept.

Their number is bounded by the kinds of product, whatever callers ask for: TensorFlow never lets go of a trace.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from gradserve.errors import GradserveError, OpContractError, Unsupported, quote
from gradserve.tensors import Array
from gradserve_server.autodiff import products
from gradserve_server.autodiff.concrete import concrete_function
from gradserve_server.autodiff.kernel_errors import kernel_text
from gradserve_server.autodiff.vjp import ContractError, FlatOp, is_differentiable

Kind = Literal["stacked_vjp", "stacked_variable_vjp", "jacobian", "jvp", "hvp"]
_OPERATION = re.compile(r"\(op type: (\w+)\)")
_COUNT = tf.TensorSpec([], tf.int32)
_BYTES = tf.TensorSpec([], tf.int64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProductTrace:
    """One product, traced."""

    concrete: Any
    """Concrete function that returns the outputs, and then those results that exist."""
    exists: Sequence[bool]
    """For each result that there could be, whether there is one."""

    def split(self, arrays: Sequence[Array], output_count: int) -> tuple[list[Array], list[Array | None]]:
        """Returns the outputs, and an array or None for each result, of what the concrete function returned."""
        remaining = iter(arrays[output_count:])
        return list(arrays[:output_count]), [next(remaining) if there else None for there in self.exists]


class ProductTraces:
    """The traces of one op."""

    def __init__(
        self,
        *,
        op_name: str,
        op: FlatOp,
        op_with_variables: FlatOp,
        specs: Sequence[Any],
        outputs: Sequence[Any],
        device: str,
    ) -> None:
        """Takes what there is to trace; nothing is traced yet.

        Args:
            op_name: Name of the op, for errors.
            op: The op.
            op_with_variables: The op with its trainable variables.
            specs: A ``tf.TensorSpec`` for each input.
            outputs: Its outputs, as its forward trace has them.
            device: Device such as "cpu:0".
        """
        self._op_name = op_name
        self._op = op
        self._op_with_variables = op_with_variables
        self._specs = list(specs)
        self._device = device
        self._upstream = [tf.TensorSpec(None, output.dtype) for output in outputs if is_differentiable(output)]
        self._vectors = [tf.TensorSpec(None, spec.dtype) for spec in specs if is_differentiable(spec)]
        self._made: dict[tuple[Kind, bool], ProductTrace | GradserveError] = {}

    @property
    def count(self) -> int:
        """How many have been made."""
        return len(self._made)

    def get(self, kind: Kind, *, vectorise: bool = False) -> ProductTrace:
        """Returns a trace, made now if this is the first time.

        Args:
            kind: Which one.
            vectorise: Whether it computes all rows of a stacked product at once, rather than one after the other.

        Raises:
            Unsupported: TensorFlow cannot differentiate the rule (NO_SECOND_RULE).
            OpContractError: A product has another dtype or shape than it must have.
        """
        key = (kind, vectorise)
        if key not in self._made:
            try:
                self._made[key] = self._make(kind, vectorise=vectorise)
            except GradserveError as error:
                self._made[key] = error
        found = self._made[key]
        if isinstance(found, GradserveError):
            raise type(found)(str(found), reason=found.reason, facts=found.facts)
        return found

    def _make(self, kind: Kind, *, vectorise: bool) -> ProductTrace:
        exists: list[bool] = []
        compute, specs = self._definition(kind, vectorise=vectorise)

        def flat(*tensors: Any) -> list[Any]:
            outputs, results = compute(list(tensors[: len(self._specs)]), list(tensors[len(self._specs) :]))
            exists[:] = [result is not None for result in results]
            return [*outputs, *(result for result in results if result is not None)]

        try:
            concrete = concrete_function(flat, [*self._specs, *specs], device=self._device)
        except ContractError as error:
            raise OpContractError(f"op {quote(self._op_name)}: {error}", reason=error.cause) from error
        except (
            Exception
        ) as error:  # whatever TensorFlow raises where a rule cannot be differentiated; see decision 0010
            raise self._no_rule(kind, error) from error
        return ProductTrace(concrete=concrete, exists=exists)

    def _definition(
        self, kind: Kind, *, vectorise: bool
    ) -> tuple[Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]], list[Any]]:
        """Returns what to trace, as a function of inputs and further tensors, and the specs of the latter."""
        op, upstream, vectors = self._op, self._upstream, self._vectors
        given = tf.TensorSpec([len(vectors)], tf.bool)
        if kind == "jvp":
            return lambda inputs, more: products.jvp(op, inputs, more[:-1], more[-1]), [*vectors, given]
        if kind == "hvp":
            split = len(upstream)
            return (
                lambda inputs, more: products.hvp(op, inputs, more[:split], more[split:-1], more[-1]),
                [*upstream, *vectors, given],
            )
        if kind == "jacobian":
            return lambda inputs, more: _flat_rows(*products.jacobian(op, inputs, more[0], vectorise=vectorise)), [
                _COUNT
            ]
        stacked = self._op_with_variables if kind == "stacked_variable_vjp" else op
        return (
            lambda inputs, more: products.stacked_vjp(stacked, inputs, more[:-2], *more[-2:], vectorise=vectorise),
            [*upstream, _COUNT, _BYTES],
        )

    def _no_rule(self, kind: Kind, error: Exception) -> Unsupported:
        text = kernel_text(str(error))
        operation = _OPERATION.search(text)
        what = f"its operation {operation[1]} has none" if operation else f"{type(error).__name__}: {text}"
        return Unsupported(
            f"op {quote(self._op_name)}: TensorFlow has no rule for this derivative ({kind}): {what}",
            reason="NO_SECOND_RULE",
            facts={"op": self._op_name, **({"operation": operation[1]} if operation else {})},
        )


def _flat_rows(outputs: list[Any], rows: list[list[Any]]) -> tuple[list[Any], list[Any]]:
    return outputs, [tensor for of_output in rows for tensor in of_output]
