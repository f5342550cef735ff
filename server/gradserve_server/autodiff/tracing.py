"""Tracing: an ``OpDefinition`` becomes one ``Op`` per dtype, or an ``OpLoadError`` that says what is wrong with it.

Each signature is traced forward, as a VJP, and, if it reads trainable variables, as a VJP with their gradients too, with the
sizes that its specs leave open. No request traces anything.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gradserve.dtypes import dtype_named
from gradserve.signature import Signature, TensorSpec
from gradserve.tensors import Array
from gradserve_server.autodiff.authored import NoRule, trace_authored
from gradserve_server.autodiff.compiled_shapes import MOST_SHAPES, CompiledShapes
from gradserve_server.autodiff.concrete import compiles, runs_python
from gradserve_server.autodiff.declaration import Declaration
from gradserve_server.autodiff.fingerprint import fingerprint
from gradserve_server.autodiff.gradient_rules import has_custom_rule
from gradserve_server.autodiff.product_traces import ProductTraces
from gradserve_server.autodiff.program import TracedProgram
from gradserve_server.autodiff.randomness import draws_random_numbers
from gradserve_server.autodiff.variables import (
    assigning_operations,
    given_variables,
    name_variables,
    trained,
    unreported_variables,
    variables_of,
)
from gradserve_server.autodiff.vjp import FlatOp, is_differentiable, vjp
from gradserve_server.ops import Op, OpDefinition


def trace(definition: OpDefinition, *, source: str, device: str, max_compiled_shapes: int = MOST_SHAPES) -> list[Op]:
    """Traces an op in the dtype of its inputs, and then in each of its further dtypes.

    Args:
        definition: The op.
        source: Where it comes from, such as "module 'ops.py'", for errors.
        device: Device such as "cpu:0", where its graphs are placed.
        max_compiled_shapes: For how many shapes each signature may be compiled, if XLA does that.

    Raises:
        OpLoadError: It cannot be traced, or breaks its contract in a way that a trace shows.
    """
    declaration = Declaration(definition=definition, source=source)
    tracer = _Tracer(declaration=declaration, device=device, max_compiled_shapes=max_compiled_shapes)
    return [tracer.trace(key, specs) for key, specs in declaration.variants()]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tracer:
    declaration: Declaration
    device: str
    max_compiled_shapes: int

    @property
    def definition(self) -> OpDefinition:
        return self.declaration.definition

    def trace(self, key: str, named_specs: list[tuple[str, Any]]) -> Op:
        """Traces one signature."""
        specs = {name: tf.TensorSpec(spec.shape, spec.dtype) for name, spec in named_specs}
        graphs = self._graphs(specs)
        signature = Signature(
            key=key,
            inputs={name: _spec(name, spec, name in graphs.connected) for name, spec in specs.items()},
            outputs={name: _spec(name, tensor, is_differentiable(tensor)) for name, tensor in graphs.outputs.items()},
            batch_axes=self.declaration.batch_axes([*specs, *graphs.outputs]),
        )
        variables, trainable = graphs.variables, graphs.op_with_variables.variables
        example = self.declaration.example(signature)
        repeatable = not any(map(draws_random_numbers, graphs.traces))
        custom = has_custom_rule(graphs.forward)
        definition = self.definition
        return Op(
            name=definition.name,
            version=definition.version,
            signature=signature,
            documentation=definition.documentation,
            gradient=definition.gradient,
            elementwise=definition.elementwise,
            stateful=definition.stateful,
            device=self.device,
            fingerprint=fingerprint(signature, graphs.traces, variables),
            program=self._program(list(specs.values()), graphs, example, repeatable),
            variables={name: _spec(name, variable, name in trainable) for name, variable in variables.items()},
            connected_variables=graphs.connected_variables,
            example=example,
            example_is_given=bool(definition.example),
            source=self.declaration.source,
            no_vjp=graphs.no_vjp,
            repeatable=repeatable,
            has_custom_rule=custom,
            linear=None if custom or graphs.no_vjp else True,
            is_compiled=any(map(compiles, graphs.traces)),
        )

    def _graphs(self, specs: Mapping[str, Any]) -> "_Graphs":
        """Traces the graphs of one signature."""
        flat = self.declaration.flat_function()
        names: list[str] = []

        def function(*inputs: Any) -> list[Any]:
            named = self.declaration.dense_outputs(flat(*inputs))
            names[:] = [name for name, _ in named]
            return [tensor for _, tensor in named]

        forward = trace_authored(self.declaration, function, list(specs.values()), device=self.device)
        self._refuse_assignment(forward)
        outputs = dict(zip(names, forward.outputs, strict=True))
        variables = self._variables(forward)
        trainable = trained(variables, self.definition.function)
        op = FlatOp(function=function, input_names=list(specs))
        op_with_variables = dataclasses.replace(op, variables=trainable)
        trace_vjp = functools.partial(
            self._trace_vjp, specs=list(specs.values()), outputs=outputs, uncounted=len(outputs) + len(trainable)
        )
        vjp_trace, connected, no_vjp = trace_vjp(op)
        variable_vjp, connected_variables, _ = trace_vjp(op_with_variables) if trainable else (None, set(), "")
        return _Graphs(
            op=op,
            op_with_variables=op_with_variables,
            outputs=outputs,
            variables=variables,
            forward=forward,
            vjp=vjp_trace,
            connected=connected,
            no_vjp=no_vjp,
            variable_vjp=variable_vjp,
            connected_variables=connected_variables,
        )

    def _program(
        self, specs: list[Any], graphs: "_Graphs", example: Sequence[Array], repeatable: bool
    ) -> TracedProgram:
        return TracedProgram(
            op_name=self.definition.name,
            forward_trace=graphs.forward,
            vjp_trace=graphs.vjp,
            variable_vjp_trace=graphs.variable_vjp,
            has_python=any(map(runs_python, graphs.traces)),
            output_count=len(graphs.outputs),
            differentiable_inputs=[index for index, spec in enumerate(specs) if is_differentiable(spec)],
            connected_inputs=[index for index, name in enumerate(graphs.op.input_names) if name in graphs.connected],
            device=self.device,
            example=example,
            compiled_shapes=self._compiled_shapes(),
            is_repeatable=repeatable and not self.definition.stateful,
            products=ProductTraces(
                op_name=self.definition.name,
                op=graphs.op,
                op_with_variables=graphs.op_with_variables,
                specs=specs,
                outputs=list(graphs.outputs.values()),
                device=self.device,
            ),
        )

    def _compiled_shapes(self) -> CompiledShapes | None:
        compiles = self.definition.jit_compile
        return CompiledShapes(self.definition.name, self.max_compiled_shapes) if compiles else None

    def _trace_vjp(
        self, op: FlatOp, *, specs: list[Any], outputs: Mapping[str, Any], uncounted: int
    ) -> tuple[Any, set[str], str]:
        """Traces the VJP of an op.

        Returns:
            The trace, the names of the inputs and variables that it returns gradients for (those of the variables
            alone, if there are any), and why there is no trace.
        """
        if self.definition.no_vjp:
            return None, set(), self.definition.no_vjp
        upstream = [tf.TensorSpec(None, tensor.dtype) for tensor in outputs.values() if is_differentiable(tensor)]
        if not upstream:
            return None, set(), "none of its outputs is of a floating-point or complex dtype"
        connected: list[str] = []

        def flat_vjp(*tensors: Any) -> list[Any]:
            results, gradients = vjp(op, tensors[: len(specs)], tensors[len(specs) :])
            wanted = list(zip([*op.input_names, *op.variables], gradients, strict=True))[
                len(specs) if op.variables else 0 :
            ]
            connected[:] = [name for name, gradient in wanted if gradient is not None]
            return [*results, *(gradient for gradient in gradients if gradient is not None)]

        try:
            traced = trace_authored(
                self.declaration, flat_vjp, [*specs, *upstream], device=self.device, uncounted=uncounted
            )
        except NoRule as error:
            return None, set(), str(error)
        if any(map(tf.is_symbolic_tensor, traced.captured_inputs)):
            return (
                None,
                set(),
                (
                    "its rule was saved with values of a loop or branch, which TensorFlow cannot load; keep the custom gradient out "
                    "of tf.while_loop and tf.cond, or put the loop into it"
                ),
            )
        return traced, set(connected), ""

    def _variables(self, trace: Any) -> dict[str, Any]:
        """Returns the variables that a trace reads, by name, having refused dtypes that are not served."""
        try:
            given = given_variables(self.definition.variables)
        except TypeError as error:
            raise self.declaration.failure(str(error), "BAD_VARIABLES") from error
        found = variables_of(trace, given)
        self._refuse_unreported(unreported_variables(trace, found))
        named = name_variables(found, self.definition.function, self.definition.variables)
        for name, variable in named.items():
            self.declaration.check_kind(variable, f"variable {name!r}", tf.Variable)
        return named

    def _refuse_unreported(self, unreported: list[str]) -> None:
        if unreported:
            raise self.declaration.failure(
                f"it reads variables by their handles alone ({', '.join(unreported)}), which TensorFlow does not report, so "
                "that they would have no gradients; give them: op(variables=[variable])",
                "UNREPORTED_VARIABLE",
            )

    def _refuse_assignment(self, trace: Any) -> None:
        operations = assigning_operations(trace)
        if operations and not self.definition.stateful:
            raise self.declaration.failure(
                f"it changes a variable ({', '.join(operations)}), so that calls depend on those before them; "
                "declare it with stateful=True, or keep the state out of the op",
                "ASSIGNS_VARIABLE",
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Graphs:
    """The graphs of one signature, and what they showed."""

    op: FlatOp
    op_with_variables: FlatOp
    """The op with its trainable variables."""
    outputs: Mapping[str, Any]
    """Outputs by name, as the forward trace has them."""
    variables: Mapping[str, Any]
    """All variables that it reads, by name."""
    forward: Any
    vjp: Any
    connected: Collection[str]
    """Names of the inputs that ``vjp`` returns gradients for."""
    no_vjp: str
    """Why there is no ``vjp``."""
    variable_vjp: Any
    connected_variables: Collection[str]

    @property
    def traces(self) -> list[Any]:
        """Those that there are."""
        return [trace for trace in (self.forward, self.vjp, self.variable_vjp) if trace is not None]


def _spec(name: str, tensor: Any, differentiable: bool) -> TensorSpec:
    numpy_name = "string" if tensor.dtype == tf.string else np.dtype(tensor.dtype.as_numpy_dtype).name
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return TensorSpec(name=name, dtype=dtype_named(numpy_name), shape=shape, differentiable=differentiable)
