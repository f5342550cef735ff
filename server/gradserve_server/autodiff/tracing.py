"""Tracing: an ``OpDefinition`` becomes one ``Op`` per dtype, or an ``OpLoadError`` that says what is wrong with it.

Each signature is traced forward, as a VJP, and, if it reads trainable variables, as a VJP with their gradients too, with the
sizes that its specs leave open. No request traces anything.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from gradserve.dtypes import dtype_named
from gradserve.signature import Signature, TensorSpec
from gradserve_server.autodiff.concrete import concrete_function
from gradserve_server.autodiff.declaration import Declaration
from gradserve_server.autodiff.fingerprint import fingerprint
from gradserve_server.autodiff.gradient_rules import has_custom_rule
from gradserve_server.autodiff.product_traces import ProductTraces
from gradserve_server.autodiff.program import TracedProgram, has_python_code
from gradserve_server.autodiff.randomness import draws_random_numbers
from gradserve_server.autodiff.variables import assigning_operations, name_variables, variables_of
from gradserve_server.autodiff.vjp import ContractError, FlatFunction, FlatOp, is_differentiable, vjp
from gradserve_server.ops import Op, OpDefinition, OpLoadError

_WRONG_COUNT = re.compile(
    r"returned too (?:few|many) gradients. Expected (?P<wanted>\d+) but received (?P<got>\d+)"
    r"|Num gradients (?P<got_inside>\d+) generated for .* do not match num inputs (?P<wanted_inside>\d+)",
    re.DOTALL,
)
"""What TensorFlow says of a rule that returns too few or too many gradients: bare, and inside a ``tf.function``."""

_NO_RULE = ("gradient registry", "No gradient defined", "Gradient explicitly disabled")
"""What TensorFlow says of an operation that it has no gradient for."""

_HINTS = {
    "as a Python `bool`": "use tf.where or tf.cond for a choice that depends on a tensor",
    "Iterating over a symbolic": "under tf.custom_gradient return the output and the gradient function, as a pair",
    "Cannot convert a symbolic": "use TensorFlow's functions rather than NumPy's, or tf.numpy_function",
}


def trace(definition: OpDefinition, *, source: str, device: str) -> list[Op]:
    """Traces an op in the dtype of its inputs, and then in each of its further dtypes.

    Args:
        definition: The op.
        source: Where it comes from, such as "module 'ops.py'", for errors.
        device: Device such as "cpu:0", where its graphs are placed.

    Raises:
        OpLoadError: It cannot be traced, or breaks its contract in a way that a trace shows.
    """
    declaration = Declaration(definition=definition, source=source)
    tracer = _Tracer(declaration=declaration, device=device)
    return [tracer.trace(key, specs) for key, specs in declaration.variants()]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tracer:
    declaration: Declaration
    device: str

    @property
    def definition(self) -> OpDefinition:
        return self.declaration.definition

    def trace(self, key: str, specs: list[tuple[str, Any]]) -> Op:
        """Traces one signature."""
        flat = self.declaration.flat_function()
        tensor_specs = [tf.TensorSpec(spec.shape, spec.dtype) for _, spec in specs]
        names: list[str] = []

        def forward(*inputs: Any) -> list[Any]:
            named = self.declaration.dense_outputs(flat(*inputs))
            names[:] = [name for name, _ in named]
            return [tensor for _, tensor in named]

        forward_trace = self._concrete(forward, tensor_specs)
        self._refuse_assignment(forward_trace)
        outputs = dict(zip(names, forward_trace.outputs, strict=True))
        variables = self._variables(forward_trace)
        trainable = {n: v for n, v in variables.items() if v.trainable and is_differentiable(v)}
        op = FlatOp(function=forward, input_names=[name for name, _ in specs])
        op_with_variables = dataclasses.replace(op, variables=trainable)
        trace_vjp = functools.partial(
            self._trace_vjp, specs=tensor_specs, outputs=outputs, uncounted=len(outputs) + len(trainable)
        )
        vjp_trace, connected, no_vjp = trace_vjp(op)
        variable_vjp_trace, connected_variables, _ = trace_vjp(op_with_variables) if trainable else (None, set(), "")
        signature = Signature(
            key=key,
            inputs={name: _spec(name, spec, name in connected) for name, spec in specs},
            outputs={name: _spec(name, tensor, is_differentiable(tensor)) for name, tensor in outputs.items()},
            batch_axes=self.declaration.batch_axes([*dict(specs), *outputs]),
        )
        traces = [trace for trace in (forward_trace, vjp_trace, variable_vjp_trace) if trace is not None]
        example = self.declaration.example(signature)
        repeatable = not any(map(draws_random_numbers, traces))
        return Op(
            name=self.definition.name,
            version=self.definition.version,
            signature=signature,
            documentation=self.definition.documentation,
            gradient=self.definition.gradient,
            elementwise=self.definition.elementwise,
            stateful=self.definition.stateful,
            device=self.device,
            fingerprint=fingerprint(signature, traces),
            program=TracedProgram(
                op_name=self.definition.name,
                forward_trace=forward_trace,
                vjp_trace=vjp_trace,
                variable_vjp_trace=variable_vjp_trace,
                has_python=any(map(has_python_code, traces)),
                output_count=len(outputs),
                differentiable_inputs=[index for index, spec in enumerate(tensor_specs) if is_differentiable(spec)],
                connected_inputs=[index for index, (name, _) in enumerate(specs) if name in connected],
                device=self.device,
                example=example,
                is_repeatable=repeatable,
                products=ProductTraces(
                    op_name=self.definition.name,
                    op=op,
                    op_with_variables=op_with_variables,
                    specs=tensor_specs,
                    outputs=list(outputs.values()),
                    device=self.device,
                ),
            ),
            variables={name: _spec(name, variable, name in trainable) for name, variable in variables.items()},
            connected_variables=connected_variables,
            example=example,
            example_is_given=bool(self.definition.example),
            source=self.declaration.source,
            no_vjp=no_vjp,
            repeatable=repeatable,
            has_custom_rule=has_custom_rule(forward_trace),
        )

    def _trace_vjp(
        self, op: FlatOp, *, specs: list[Any], outputs: Mapping[str, Any], uncounted: int
    ) -> tuple[Any, set[str], str]:
        """Traces the VJP of an op.

        Returns:
            The trace, the names of the inputs and variables that it returns gradients for (those of the variables
            alone, if there are any), and why there is no trace.
        """
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
            return self._concrete(flat_vjp, [*specs, *upstream], uncounted), set(connected), ""
        except _NoRule as error:
            return None, set(), str(error)

    def _variables(self, trace: Any) -> dict[str, Any]:
        """Returns the variables that a trace reads, by name, having refused dtypes that are not served."""
        named = name_variables(variables_of(trace), self.definition.function, self.definition.variables)
        for name, variable in named.items():
            self.declaration.check_kind(variable, f"variable {name!r}", tf.Variable)
        return named

    def _refuse_assignment(self, trace: Any) -> None:
        operations = assigning_operations(trace)
        if operations and not self.definition.stateful:
            raise self.declaration.failure(
                f"it changes a variable ({', '.join(operations)}), so that calls depend on those before them; "
                "declare it with stateful=True, or keep the state out of the op",
                "ASSIGNS_VARIABLE",
            )

    def _concrete(self, function: FlatFunction, specs: list[Any], uncounted: int = 0) -> Any:
        """Traces a function; whatever that raises becomes an ``OpLoadError``."""
        try:
            return concrete_function(function, specs, device=self.device, jit_compile=self.definition.jit_compile)
        except (OpLoadError, _NoRule):
            raise
        except ContractError as error:
            raise self.declaration.failure(str(error), error.cause) from error
        except LookupError as error:
            if any(said in str(error) for said in _NO_RULE):
                raise _NoRule(f"TensorFlow has no gradient for one of its operations: {error}") from error
            raise self.declaration.failure(f"{type(error).__name__}: {error}", "TRACE_FAILED") from error
        except BaseException as error:  # the op is the operator's code and may raise anything, even to exit
            wrong_count = _WRONG_COUNT.search(_text(error))
            if wrong_count is not None:
                wanted, got = (int(wrong_count[n] or wrong_count[f"{n}_inside"]) for n in ("wanted", "got"))
                text = self.declaration.explain_count(wanted, got, uncounted)
                raise self.declaration.failure(text, "GRADIENT_COUNT_MISMATCH") from error
            raise self.declaration.failure(
                f"{type(error).__name__}: {_text(error)}{_hint(_text(error))}", "TRACE_FAILED"
            ) from error


class _NoRule(Exception):
    """TensorFlow has no gradient rule for an operation of the graph, so the op has a forward pass only."""


def _hint(text: str) -> str:
    """Returns what to do about the commonest mistakes, of which TensorFlow's own text says something else."""
    return next((f"; in an op: {hint}" for said, hint in _HINTS.items() if said in text), "")


def _spec(name: str, tensor: Any, differentiable: bool) -> TensorSpec:
    numpy_name = "string" if tensor.dtype == tf.string else np.dtype(tensor.dtype.as_numpy_dtype).name
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return TensorSpec(name=name, dtype=dtype_named(numpy_name), shape=shape, differentiable=differentiable)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the exception's own __str__ may fail; its class is named beside this
        return "(its text cannot be shown)"
