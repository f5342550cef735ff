"""Declarations: what the author of an op declared, checked, and as flat named specs, functions and outputs.

Whatever is wrong with it becomes an ``OpLoadError`` that names source, op and cause.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradserve.dtypes import dtype_of
from gradserve.errors import InvalidRequest
from gradserve.signature import Signature
from gradserve.tensors import Array
from gradserve_server.autodiff import structure
from gradserve_server.autodiff.vjp import FlatFunction
from gradserve_server.ops import OpDefinition, OpLoadError
from gradserve_server.warmup import example_inputs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """An ``OpDefinition`` and where it came from."""

    definition: OpDefinition
    """What the author declared."""
    source: str
    """Where it comes from, as the operator named it, such as "module 'ops.py'"."""

    def variants(self) -> list[tuple[str, list[tuple[str, Any]]]]:
        """Returns the named input specs of each signature to trace, by key."""
        try:
            declared = structure.flatten(self.definition.inputs)
        except TypeError as error:
            raise self.failure(str(error), "BAD_INPUTS") from error
        names = [name for name, _ in declared]
        if len(set(names)) < len(names):
            raise self.failure(
                f"each input needs a name of its own, nested ones joined by '/': got {names}", "BAD_INPUTS"
            )
        for name, spec in declared:
            self.check_kind(spec, f"input {name!r}", tf.TensorSpec)
        keys = [(self.definition.signature, declared)]
        own = {spec.dtype for _, spec in declared if spec.dtype.is_floating}
        further = [dtype for dtype in map(self._further_dtype, self.definition.dtypes) if own != {dtype}]
        return keys + [(dtype.name, [(name, _with_dtype(spec, dtype)) for name, spec in declared]) for dtype in further]

    def _further_dtype(self, wanted: Any) -> Any:
        try:
            dtype = tf.as_dtype(wanted)
        except TypeError as error:
            raise self.failure(f"dtypes: no such dtype: {wanted!r}", "BAD_DTYPES") from error
        if not dtype.is_floating:
            raise self.failure(f"dtypes: wanted floating-point dtypes alone, got {dtype.name}", "BAD_DTYPES")
        self.check_kind(tf.TensorSpec(None, dtype), "dtypes", tf.TensorSpec)
        return dtype

    def flat_function(self) -> FlatFunction:
        """Returns the op as a function of flat inputs, bound by position."""
        inputs = self.definition.inputs
        try:
            order, defaults = structure.positional_order(self.definition.function, list(inputs))
        except TypeError as error:
            raise self.failure(str(error), "BAD_INPUTS") from error

        def call(*tensors: Any) -> Any:
            packed = structure.pack(inputs, tensors)
            return self.definition.function(*[packed[name] if name in packed else defaults[name] for name in order])

        return call

    def dense_outputs(self, result: Any) -> list[tuple[str, Any]]:
        """Returns the tensors of what the op returned, by name."""
        named = structure.name_outputs(result)
        if self.definition.outputs is not None:
            wanted = list(self.definition.outputs)
            if len(wanted) != len(named):
                raise self.failure(f"outputs names {len(wanted)} but the op returns {len(named)}", "BAD_OUTPUTS")
            named = [(name, value) for name, (_, value) in zip(wanted, named, strict=True)]
        names = [name for name, _ in named]
        if len(set(names)) < len(names):
            raise self.failure(f"each output needs a name of its own: got {names}", "BAD_OUTPUTS")
        return [(name, self._dense(value, f"output {name!r}")) for name, value in named]

    def _dense(self, value: Any, place: str) -> Any:
        if isinstance(value, int | float | complex | bool | np.ndarray | np.generic | tf.IndexedSlices | tf.Variable):
            value = tf.convert_to_tensor(value)
        self.check_kind(value, place, tf.Tensor)
        return value

    def check_kind(self, value: Any, place: str, wanted: Any) -> None:
        """Refuses what is no dense tensor of a dtype of the contract."""
        if not isinstance(value, wanted) or isinstance(value, tf.RaggedTensorSpec | tf.SparseTensorSpec):
            raise self.failure(
                f"{place}: only dense tensors are served: wanted {wanted.__name__}, got {type(value).__name__}; "
                f"{_remedy_for_kind(value)}",
                "UNSUPPORTED_KIND",
            )
        try:
            dtype_of(np.dtype(value.dtype.as_numpy_dtype), place)
        except (InvalidRequest, TypeError, KeyError) as error:  # KeyError: resources and variants have no numpy dtype
            raise self.failure(f"{place}: dtype {value.dtype.name} is not served", "UNSUPPORTED_KIND") from error

    def example(self, signature: Signature) -> Sequence[Array]:
        """Returns inputs for the warm-up: the author's, or drawn."""
        given = structure.flatten_like(self.definition.inputs, self.definition.example or {})
        unknown = [name for name in given if name not in signature.inputs]
        if unknown:
            raise self.failure(f"example names {unknown}, which are none of {list(signature.inputs)}", "BAD_EXAMPLE")
        try:
            return example_inputs(signature.inputs, given)
        except (InvalidRequest, ValueError, TypeError) as error:
            raise self.failure(f"example does not fit the inputs: {error}", "BAD_EXAMPLE") from error

    def batch_axes(self, names: list[str]) -> dict[str, int]:
        """Returns the batch axis of each input and output that has one."""
        axis = self.definition.batch_axis
        if isinstance(axis, Mapping):
            unknown = [name for name in axis if name not in names]
            if unknown:
                raise self.failure(f"batch_axis names {unknown}, which are none of {names}", "BAD_BATCH_AXIS")
            return {name: value for name, value in axis.items() if value is not None}
        return {} if axis is None else dict.fromkeys(names, axis)

    def explain_count(self, wanted: int, got: int, uncounted: int) -> str:
        """Says how many gradients were wanted and got, without the outputs and variables that TensorFlow counts in."""
        inputs = self.definition.inputs
        _, defaults = structure.positional_order(self.definition.function, list(inputs))
        if wanted == len(structure.flatten(inputs)) + len(defaults) + uncounted:
            wanted, got = wanted - uncounted, got - uncounted
        kept = f", and one for each parameter that keeps a default before them ({list(defaults)})" if defaults else ""
        return (
            f"the gradient function must return one gradient per input{kept}: wanted {wanted}, got {got}; "
            "return None for an input that has no gradient"
        )

    def failure(self, text: str, cause: str) -> OpLoadError:
        """Returns the error that says why the op cannot be loaded."""
        return OpLoadError(
            text, source=self.source, cause=cause, name=self.definition.name, version=self.definition.version
        )


def _remedy_for_kind(value: Any) -> str:
    if value is None:
        return "return a tensor"
    if isinstance(value, tf.DType):
        return f"write tf.TensorSpec(None, tf.{value.name})"
    return "pass values and indices (or row splits) as tensors of their own"


def _with_dtype(spec: Any, dtype: Any) -> Any:
    return tf.TensorSpec(spec.shape, dtype) if spec.dtype.is_floating else spec
