"""``TracedProgram``: the concrete functions of an op, from numpy arrays to numpy arrays."""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradserve.errors import GradserveError, InvalidRequest, Unsupported, quote
from gradserve.tensors import Array
from gradserve_server.autodiff.compiled_shapes import CompiledShapes
from gradserve_server.autodiff.concrete import Executable, nodes_of
from gradserve_server.autodiff.dependence import Dependence, dependence_of
from gradserve_server.autodiff.kernel_errors import translate
from gradserve_server.autodiff.own_derivative import NoOwnDerivative, OwnVjp, trace_own_vjp
from gradserve_server.autodiff.product_traces import Kind, ProductTraces
from gradserve_server.autodiff.widened import NoWiderForm, widened
from gradserve_server.program import NO_LIMIT
from gradserve_server.rule_facts import rows_agree

_BY_VALUE = re.compile(r"(Stateless)?(While|If|Case)|Enter|Switch")
"""Nodes whose values decide what else runs, in graphs of TensorFlow 2 and 1."""
_LATER = {"_own", "_wide_forward", "_wide_vjp", "_nudged_vjp"}
"""Traces that are made when a check first asks for them."""
_NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_BUFFERS = frozenset(tf.dtypes.as_dtype(name) for name in _NUMBERS.split())
"""Dtypes whose tensors numpy can look into without a copy: not bfloat16, of which Python's buffers know nothing, nor strings."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedProgram:
    """Runs an op's traces; implements ``gradserve_server.program.Program``."""

    op_name: str
    """Name of the op, for errors."""
    forward_trace: Any
    """Concrete function of the flat inputs that returns the flat outputs."""
    vjp_trace: Any
    """Concrete function of the flat inputs and output gradients; None if the op has no backward pass."""
    variable_vjp_trace: Any
    """The same, but with gradients of the variables after those of the inputs; None if it reads no trainable one."""
    has_python: bool
    """Whether its graph holds Python code, as by ``tf.numpy_function``."""
    output_count: int
    """How many of the tensors that a VJP trace returns are outputs; the others are gradients."""
    differentiable_inputs: Sequence[int]
    """Which inputs are of a floating-point or complex dtype."""
    connected_inputs: Sequence[int]
    """Which inputs ``vjp_trace`` returns a gradient for, in order."""
    products: ProductTraces
    """Traces of further derivatives, made when they are first asked for."""
    device: str
    """Device such as "cpu:0"."""
    example: Sequence[Array]
    """Inputs at which ways to compute the same are compared."""
    compiled_shapes: CompiledShapes | None
    """What XLA compiled it for; None if it does not."""
    is_repeatable: bool
    """Whether equal inputs give equal results, and it may be run more often than it is asked to."""
    _executables: dict[Any, Executable] = dataclasses.field(default_factory=dict)
    """How to call each trace that has been called."""

    @functools.cached_property
    def is_bounded(self) -> bool:
        """Whether values cannot make it take much longer: it holds no loops, branches or Python code."""
        traces = [trace for trace in (self.forward_trace, self.vjp_trace) if trace is not None]
        return not self.has_python and not any(
            _BY_VALUE.fullmatch(node.op) for trace in traces for node in nodes_of(trace)
        )

    @property
    def trace_count(self) -> int:
        """How many concrete functions there are."""
        at_start = (self.forward_trace, self.vjp_trace, self.variable_vjp_trace)
        further = self.products.count + len(_LATER & self.__dict__.keys())
        return sum(trace is not None for trace in at_start) + further

    def forward(self, inputs: Sequence[Array]) -> list[Array]:
        """Evaluates the op."""
        return self._run(self.forward_trace, inputs)

    def vjp(
        self, inputs: Sequence[Array], output_gradients: Sequence[Array], *, with_variables: bool = False
    ) -> tuple[list[Array], list[Array]]:
        """Evaluates the op and pulls back the output gradients."""
        trace = self.variable_vjp_trace if with_variables else self.vjp_trace
        results = self._run(trace, [*inputs, *output_gradients])
        return results[: self.output_count], results[self.output_count :]

    def stacked_vjp(
        self,
        inputs: Sequence[Array],
        output_gradients: Sequence[Array],
        stack: int,
        *,
        max_bytes: int = NO_LIMIT,
        with_variables: bool = False,
    ) -> tuple[list[Array], list[Array]]:
        """Evaluates the op once and pulls back ``stack`` output gradients."""
        kind: Kind = "stacked_variable_vjp" if with_variables else "stacked_vjp"
        arrays = [*inputs, *output_gradients, np.int32(stack)[...], np.int64(max_bytes)[...]]
        outputs, gradients = self._product_of_rows(kind, arrays)
        return outputs, [gradient for gradient in gradients if gradient is not None]

    def jacobian(self, inputs: Sequence[Array], max_rows: int) -> tuple[list[Array], list[list[Array | None]]]:
        """Evaluates the op once and returns, for each differentiable output, its Jacobian by each input."""
        outputs, rows = self._product_of_rows("jacobian", [*inputs, np.int32(max_rows)[...]])
        return outputs, [rows[start : start + len(inputs)] for start in range(0, len(rows), len(inputs))]

    def jvp(self, inputs: Sequence[Array], tangents: Sequence[Array | None]) -> tuple[list[Array], list[Array | None]]:
        """Evaluates the op and pushes tangents forward through it."""
        given = self._given_gradients(tangents)
        outputs, results = self._product("jvp", [*inputs, *self._filled(inputs, tangents)])
        slots = range(len(inputs), len(inputs) + len(results))
        return outputs, [
            self._existing(result, [(gradient, slot) for gradient in given])
            for slot, result in zip(slots, results, strict=True)
        ]

    def hvp(
        self, inputs: Sequence[Array], output_gradients: Sequence[Array], vectors: Sequence[Array | None]
    ) -> tuple[list[Array], list[Array | None]]:
        """Evaluates the op, its gradients, and the gradient of their inner product with the vectors."""
        given = self._given_gradients(vectors)
        filled = self._filled(inputs, vectors)
        outputs, results = self._product("hvp", [*inputs, *output_gradients, *filled])
        return outputs, [
            self._existing(result, [(gradient, slot) for gradient in given])
            if slot in self.differentiable_inputs
            else None
            for slot, result in enumerate(results)
        ]

    def own_vjp(self, inputs: Sequence[Array], output_gradients: Sequence[Array]) -> list[Array | None]:
        """Returns the gradients by TensorFlow's own derivative of the forward pass."""
        own = self._own
        if isinstance(own, NoOwnDerivative):
            raise Unsupported(
                f"op {quote(self.op_name)}: TensorFlow has no derivative of its forward pass: {own.reason}",
                reason="NO_OWN_DERIVATIVE",
                facts={"op": self.op_name},
            )
        found = iter(self._run(own.trace, [*inputs, *output_gradients]))
        return [next(found) if index in own.connected else None for index in range(len(inputs))]

    def wide_forward(self, inputs: Sequence[Array]) -> list[Array]:
        """Evaluates the op's graph in float64."""
        return self._run_wide(self._wide_forward, inputs)

    def wide_vjp(
        self, inputs: Sequence[Array], output_gradients: Sequence[Array], *, nudged: bool = False
    ) -> tuple[list[Array], list[Array]]:
        """Evaluates the graph of the VJP in float64."""
        results = self._run_wide(self._nudged_vjp if nudged else self._wide_vjp, [*inputs, *output_gradients])
        return results[: self.output_count], results[self.output_count :]

    def _run_wide(self, trace: Any, arrays: Sequence[Array]) -> list[Array]:
        if isinstance(trace, NoWiderForm):
            raise Unsupported(
                f"op {quote(self.op_name)}: its graph has no form for float64: {trace}",
                reason="NO_WIDER_FORM",
                facts={"op": self.op_name},
            )
        return self._run(trace, arrays)

    @functools.cached_property
    def _wide_forward(self) -> Any:
        return self._widened(self.forward_trace)

    @functools.cached_property
    def _wide_vjp(self) -> Any:
        return self._widened(self.vjp_trace)

    @functools.cached_property
    def _nudged_vjp(self) -> Any:
        return self._widened(self.vjp_trace, nudged=True)

    def _widened(self, trace: Any, *, nudged: bool = False) -> Any:
        try:
            return widened(trace, device=self.device, nudged=nudged)
        except NoWiderForm as error:
            return error

    @functools.cached_property
    def _own(self) -> OwnVjp | NoOwnDerivative:
        try:
            return trace_own_vjp(self.forward_trace, device=self.device)
        except NoOwnDerivative as error:
            return error

    @functools.cached_property
    def vectorises(self) -> bool:
        """Whether TensorFlow pulls several output gradients back together as it does each alone.

        It may know no vectorised form of an operation, or a wrong one. That is tried at the op's example when it is first
        asked for.
        """
        return self.is_repeatable and rows_agree(self._pull_back_together, self, self.example)

    def _pull_back_together(
        self, inputs: Sequence[Array], output_gradients: Sequence[Array], stack: int
    ) -> Sequence[Array | None]:
        arrays = [*inputs, *output_gradients, np.int32(stack)[...], np.int64(NO_LIMIT)[...]]
        return self._product("stacked_vjp", arrays, vectorise=True)[1]

    def _product_of_rows(self, kind: Kind, arrays: Sequence[Array]) -> tuple[list[Array], list[Array | None]]:
        """Computes all rows together, or one after the other if TensorFlow cannot do that, here or at the op's example.

        What fails together may go well alone: gradients have one more axis, and kernels a limit of those; the size of a
        tensor may depend on its values.

        Raises:
            Unsupported: The op is differentiated by a ``tf.py_function``, which keeps its tape for one gradient alone
                (ONE_GRADIENT_ONLY).
        """
        if self._is_differentiated_once:
            raise Unsupported(
                f"op {quote(self.op_name)}: TensorFlow pulls back one output gradient through a tf.py_function, no stack and "
                "no Jacobian; ask for one at a time, or give the op a rule by tf.custom_gradient",
                reason="ONE_GRADIENT_ONLY",
                facts={"op": self.op_name},
            )
        if self.vectorises:
            with contextlib.suppress(GradserveError):
                return self._product(kind, arrays, vectorise=True)
        return self._product(kind, arrays)

    def _product(
        self, kind: Kind, arrays: Sequence[Array], *, vectorise: bool = False
    ) -> tuple[list[Array], list[Array | None]]:
        trace = self.products.get(kind, vectorise=vectorise)
        return trace.split(self._run(trace.concrete, arrays), self.output_count)

    def _given_gradients(self, vectors: Sequence[Array | None]) -> list[int]:
        """Returns which results of ``vjp_trace`` are the gradients of inputs that a vector is given for."""
        given = {index for index, vector in zip(self.differentiable_inputs, vectors, strict=True) if vector is not None}
        return [self.output_count + n for n, index in enumerate(self.connected_inputs) if index in given]

    def _filled(self, inputs: Sequence[Array], vectors: Sequence[Array | None]) -> list[Array]:
        """Returns the vectors, with a zero of rank 0 in the place of those that are not given; and which ones are."""
        filled = [
            np.zeros((), inputs[index].dtype) if vector is None else vector
            for index, vector in zip(self.differentiable_inputs, vectors, strict=True)
        ]
        return [*filled, np.array([vector is not None for vector in vectors])]

    def _existing(self, result: Array | None, pairs: Iterable[tuple[int, int]]) -> Array | None:
        """Returns what a second pass found, or None where there is nothing to be found.

        Args:
            result: What TensorFlow found: None, or a sum over ``pairs`` which leaves out those that it cannot differentiate.
            pairs: Gradients, as results of ``vjp_trace``, and what they were differentiated by, as one of its inputs.

        Raises:
            Unsupported: There is something to be found, but TensorFlow has no rule for it (NO_SECOND_RULE).
        """
        ways = [self._dependence.blockers(gradient, slot) for gradient, slot in pairs]
        open_ways = [blockers for blockers in ways if blockers is not None]
        blocked = sorted(set().union(*open_ways))
        if blocked or (open_ways and result is None):
            what = f"its operations {', '.join(blocked)} have none" if blocked else "it gives none"
            raise Unsupported(
                f"op {quote(self.op_name)}: TensorFlow has no rule for this derivative of its gradient: {what}",
                reason="NO_SECOND_RULE",
                facts={"op": self.op_name, "operations": ", ".join(blocked)},
            )
        return result if open_ways else None

    @functools.cached_property
    def _dependence(self) -> Dependence:
        return dependence_of(self.vjp_trace)

    @functools.cached_property
    def _is_differentiated_once(self) -> bool:
        if not self.has_python:
            return False
        forward = dependence_of(self.forward_trace)
        pairs = itertools.product(range(self.output_count), self.connected_inputs)
        return any("EagerPyFunc" in (forward.blockers(output, input_) or ()) for output, input_ in pairs)

    def _run(self, trace: Any, arrays: Sequence[Array]) -> list[Array]:
        if self.compiled_shapes is not None and trace in (self.forward_trace, self.vjp_trace, self.variable_vjp_trace):
            self.compiled_shapes.add(trace, arrays)
        executable = self._executables.get(trace)
        if executable is None:
            executable = self._executables[trace] = Executable(trace)
        try:
            return [_to_array(tensor) for tensor in executable(arrays)]
        except tf.errors.OpError as error:
            public = translate(error, self.op_name, has_python=self.has_python)
            if public is None:
                raise
            raise public from error
        except UnicodeDecodeError as error:  # TensorFlow fails to tell of values that are no UTF-8
            if self.has_python:
                raise
            raise InvalidRequest(
                f"op {quote(self.op_name)}: a kernel refused the values, with a text that is no UTF-8",
                reason="VALUES_REFUSED",
                facts={"op": self.op_name},
            ) from error


def _to_array(tensor: Any) -> Array:
    """Returns the elements of a tensor; where they are, if it lies in main memory and numpy can tell its dtype from there."""
    if tensor.dtype in _BUFFERS:
        return np.asarray(memoryview(tensor))
    value = tensor.numpy()
    if isinstance(value, bytes):  # a string tensor of rank 0; numpy would drop its trailing NULs
        array = np.empty((), dtype=object)
        array[()] = value
        return array
    return np.asarray(value)
